"""What the manifests amount to: the intent, or everything that is wrong with it.

A folder is accepted whole or not at all. Nothing here reads a disk: `orchestrator.config.folder` does.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fsm.records import EdgeGatewaySpec, PoolSpec
from fsm.types import PROFILES
from orchestrator.config.manifests import API_VERSION, KINDS, OUTPUT_KINDS, EdgeGateway, EIPPool, Network
from orchestrator.config.problems import NO_VALUE, Problem, path_text, problems_of, quoted, steps
from orchestrator.config.yaml_text import Document, YamlError, documents

UNNAMED = "?"
"""Stands for the name of an object that has none, in the text of a problem."""


@dataclass(frozen=True, slots=True)
class Intent:
    """Pools and edge gateways of a whole folder. With any problem both are empty: the folder is refused whole."""

    pools: tuple[PoolSpec, ...] = ()
    edge_gateways: tuple[EdgeGatewaySpec, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it may be acted upon."""
        return not self.problems


@dataclass(slots=True)
class _Reading:
    """What was read so far. Each object keeps the file it came from, for the problem's text."""

    pools: list[tuple[str, EIPPool]] = field(default_factory=list)
    gateways: list[tuple[str, EdgeGateway]] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, file: str, obj: str, path: str, value: Any, allowed: str) -> None:
        """Note a problem; `path` counts list items from 0, as in `spec.edges.0.name`."""
        shown = "" if value is NO_VALUE else quoted(value)
        self.problems.append(Problem(file, obj, path_text(steps(path)) if path else "", shown, allowed))


def read_intent(files: Mapping[str, bytes], folder: str, lease_ttl_ms: int = 3000) -> Intent:
    """The intent that the files of a folder state, by file name; all problems at once.

    `folder` names it where it is empty; `lease_ttl_ms` is the orchestrator's, which BFD has to be faster than.
    """
    reading = _Reading()
    if not files:
        reading.refuse(folder, "", "", NO_VALUE, "holds no *.yaml or *.yml file; an empty folder deletes nothing")
    for file, data in sorted(files.items()):
        _read_file(reading, file, data)
    _check_together(reading, lease_ttl_ms)
    if reading.problems:
        return Intent(problems=tuple(reading.problems))
    return Intent(
        pools=tuple(sorted((pool.record() for _, pool in reading.pools), key=lambda spec: spec.name)),
        edge_gateways=tuple(sorted((group.record() for _, group in reading.gateways), key=lambda spec: spec.name)),
    )


def _read_file(reading: _Reading, file: str, data: bytes) -> None:
    try:
        found = documents(data)
    except YamlError as error:
        reading.refuse(f"{file}:{error.line}", "", "", NO_VALUE, error.what)
        return
    if not found:
        reading.refuse(file, "", "", NO_VALUE, "holds no object; remove the file, or finish writing it")
    for document in found:
        _read_object(reading, file, document)


def _read_object(reading: _Reading, file: str, document: Document) -> None:
    value = document.value
    where = f"{file}:{document.line}"
    if not isinstance(value, dict):
        reading.refuse(where, "", "", value, "an object with apiVersion, kind, metadata and spec")
        return
    kind, name = value.get("kind", NO_VALUE), _name_of(value)
    if kind in OUTPUT_KINDS:
        text = "an output that bgplb writes itself, never an input; remove it from the folder"
        reading.refuse(file, f"{kind}/{name}", "kind", kind, text)
        return
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        missing = NO_VALUE if kind is NO_VALUE else kind
        reading.refuse(where, "", "kind", missing, f"one of {', '.join(KINDS)} ({API_VERSION})")
        return
    obj = f"{kind}/{name}"
    if obj in reading.seen:
        text = f"an object is given once, and {reading.seen[obj]} has it already"
        reading.refuse(where, obj, "metadata.name", name, text)
        return
    if name != UNNAMED:
        reading.seen[obj] = where
    try:
        parsed = model.model_validate(value)
    except ValidationError as error:
        reading.problems += problems_of(error, model, file, obj)
        return
    if isinstance(parsed, EIPPool):
        reading.pools.append((file, parsed))
    else:
        reading.gateways.append((file, parsed))


def _name_of(value: dict[Any, Any]) -> str:
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else UNNAMED


def _check_together(reading: _Reading, lease_ttl_ms: int) -> None:
    _check_references(reading)
    _check_pool_overlaps(reading)
    _check_ranges(reading)
    _check_names(reading)
    for file, group in reading.gateways:
        profile = PROFILES[group.spec.failover.profile]
        detection_ms = profile.interval_ms * profile.multiplier
        if detection_ms >= lease_ttl_ms:
            text = f"a profile whose detection time, here {detection_ms} ms, is below lease.ttl_ms, {lease_ttl_ms} ms"
            reading.refuse(file, _title(group), "spec.failover.profile", group.spec.failover.profile, text)


def _check_references(reading: _Reading) -> None:
    """Also a refused EdgeGateway is known: its own problem is said already."""
    known = sorted(obj.partition("/")[2] for obj in reading.seen if obj.startswith("EdgeGateway/"))
    for file, pool in reading.pools:
        if pool.spec.gateway_ref not in known:
            text = f"the name of an EdgeGateway in this folder ({', '.join(known) or 'there is none'})"
            reading.refuse(file, _title(pool), "spec.gatewayRef", pool.spec.gateway_ref, text)


def _check_pool_overlaps(reading: _Reading) -> None:
    """Sorted by address, an overlap is always with the widest one that began before: n log n for a thousand pools."""
    entries = [
        (ipaddress.ip_network(text), file, pool, index)
        for file, pool in reading.pools
        for index, text in enumerate(pool.spec.addresses)
    ]
    entries.sort(key=lambda e: (e[0].version, int(e[0].network_address), e[0].prefixlen, e[2].metadata.name))
    widest: tuple[Network, str, EIPPool, int] | None = None
    for entry in entries:
        net, file, pool, index = entry
        if widest is not None and net.overlaps(widest[0]):
            if pool is not widest[2]:
                text = f"a prefix that does not overlap {widest[0]} of {_title(widest[2])} in {widest[1]}"
                reading.refuse(file, _title(pool), f"spec.addresses.{index}", str(net), text)
            continue
        widest = entry


def _check_ranges(reading: _Reading) -> None:
    """Tunnels and probes use addresses that no pool may promise to the public."""
    for group_file, group in reading.gateways:
        tunnel = group.spec.tunnel
        ranges = {
            "tunnel.ipv4": tunnel.ipv4,
            "tunnel.ipv6": tunnel.ipv6,
            "tunnel.probe.ipv4": tunnel.probe.ipv4,
            "tunnel.probe.ipv6": tunnel.probe.ipv6,
        }
        for label, text in ranges.items():
            ours = ipaddress.ip_network(text)
            for _, pool in reading.pools:
                for address in pool.spec.addresses:
                    if ours.overlaps(ipaddress.ip_network(address)):
                        allowed = f"a prefix that does not overlap {address} of {_title(pool)}"
                        reading.refuse(group_file, _title(group), f"spec.{label}", text, allowed)


def _check_names(reading: _Reading) -> None:
    """An edge or a gateway belongs to one EdgeGateway: its tunnels are numbered within it."""
    owners: dict[tuple[str, str], str] = {}
    for file, group in reading.gateways:
        names = [("edge", f"spec.edges.{i}.name", edge.name) for i, edge in enumerate(group.spec.edges)]
        names += [("gateway", f"spec.gateways.{i}", name) for i, name in enumerate(group.spec.gateways)]
        for role, path, name in names:
            owner = owners.setdefault((role, name), _title(group))
            if owner != _title(group):
                reading.refuse(file, _title(group), path, name, f"a name that {owner} does not have already")


def _title(manifest: EIPPool | EdgeGateway) -> str:
    return f"{manifest.kind}/{manifest.metadata.name}"
