"""The nftables table ``inet bgplb`` as data: pure, no IO, and never a rule that drops anything.

A rule set is held as the JSON objects that ``nft -j list table`` would print for it (libnftables-json(5)), so that what
should be there and what is there compare as text. Chains, in the order in which a packet meets them:

``prerouting``   connections that come in through an edge's tunnel are given that edge's connection mark; answers
                 (``ct direction reply`` only: in the original direction the request would be sent back into the tunnel)
                 get it copied to the packet, where a policy rule reads it; TCP MSS is clamped
``probe``        the probe's address is translated to the responder behind the forwarding path
``output``       the same copy for answers that the machine itself sends
``postrouting``  TCP MSS is clamped
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

TABLE = "bgplb"
FAMILY = "inet"

_TCP_IP_HEADERS = {"ipv4": 40, "ipv6": 60}
_MANGLE, _DSTNAT = -150, -100
_ALL_BITS = 0xFFFFFFFF

Json = dict[str, Any]


@dataclass(frozen=True)
class Tunnel:
    """A tunnel interface towards one edge, and the mark (within the mask, not 0) of connections through it."""

    device: str
    mark: int


@dataclass(frozen=True)
class GatewayRules:
    """What a gateway needs. ``mask``: the bits of packet and connection mark that are ours; all others are kept.

    ``mtu``: bytes, of the tunnels. ``probe``: probe address to the address inside the probe namespace.
    Raises ValueError on a mark outside the mask, or used twice.
    """

    tunnels: tuple[Tunnel, ...]
    mask: int
    mtu: int
    probe: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        marks = [tunnel.mark for tunnel in self.tunnels]
        if any(mark == 0 or mark & ~self.mask for mark in marks):
            raise ValueError(f"marks {marks} must be non-zero and lie within the mask {self.mask:#x}")
        if len(set(marks)) != len(marks):
            raise ValueError(f"marks {marks} must differ: one per edge")

    def ruleset(self) -> str:
        """The whole table, normalised."""
        devices = [tunnel.device for tunnel in self.tunnels]
        prerouting = [rule for tunnel in self.tunnels for rule in self._mark_rules(tunnel)]
        return _render(
            [
                _chain("prerouting", "filter", "prerouting", _MANGLE),
                _chain("probe", "nat", "prerouting", _DSTNAT),
                _chain("output", "route", "output", _MANGLE),
                _chain("postrouting", "filter", "postrouting", _MANGLE),
                *_rules("prerouting", prerouting + _clamp("iifname", devices, self.mtu)),
                *_rules("probe", self._probe_rules(devices)),
                *_rules("output", [_copy_mark(tunnel.mark, self.mask) for tunnel in self.tunnels]),
                *_rules("postrouting", _clamp("oifname", devices, self.mtu)),
            ]
        )

    def _mark_rules(self, tunnel: Tunnel) -> list[list[Json]]:
        # Compared with our mark, not with `ct state new`: connections that were there before the rules, or that have
        # moved here from another edge, are marked by their next packet.
        enters = [
            _is(_meta("iifname"), tunnel.device),
            _is(_ct("direction"), "original"),
            _is(_masked(_ct("mark"), self.mask), tunnel.mark, "!="),
            _mangle(_ct("mark"), _merge(_ct("mark"), tunnel.mark, self.mask)),
        ]
        return [enters, _copy_mark(tunnel.mark, self.mask)]

    def _probe_rules(self, devices: list[str]) -> list[list[Json]]:
        rules: list[list[Json]] = []
        for address, inside in sorted(self.probe.items()):
            protocol = "ip" if ip_address(address).version == 4 else "ip6"
            rules.extend(
                [
                    _is(_meta("iifname"), device),
                    _is({"payload": {"protocol": protocol, "field": "daddr"}}, address),
                    {"dnat": {"family": protocol, "addr": inside}},
                ]
                for device in devices
            )
        return rules


@dataclass(frozen=True)
class EdgeRules:
    """What an edge needs: the MSS of TCP connections through its tunnels, whose MTU is `mtu` bytes."""

    tunnels: tuple[str, ...]
    mtu: int

    def ruleset(self) -> str:
        """The whole table, normalised."""
        return _render(
            [
                _chain("prerouting", "filter", "prerouting", _MANGLE),
                _chain("postrouting", "filter", "postrouting", _MANGLE),
                *_rules("prerouting", _clamp("iifname", list(self.tunnels), self.mtu)),
                *_rules("postrouting", _clamp("oifname", list(self.tunnels), self.mtu)),
            ]
        )


def normalise(listing: str) -> str:
    """What ``nft -j list table inet bgplb`` printed, without what the kernel adds (handles, versions, counts)."""
    objects = json.loads(listing)["nftables"]
    return _render([_without_handles(item) for item in objects if "metainfo" not in item and "table" not in item])


def transaction(ruleset: str | None) -> str:
    """The one JSON document that makes the table be `ruleset`, or be gone (None), all or nothing.

    The table is added first so that deleting it can't fail; marks on connections and translations that are in use
    live in conntrack and survive the replacement.
    """
    table = {"family": FAMILY, "name": TABLE}
    commands: list[Json] = [{"add": {"table": table}}, {"delete": {"table": table}}]
    if ruleset is not None:
        commands.append({"add": {"table": table}})
        commands.extend({"add": item} for item in json.loads(ruleset)["nftables"])
    return json.dumps({"nftables": commands})


def _render(objects: list[Json]) -> str:
    return json.dumps({"nftables": objects}, sort_keys=True, indent=1)


def _without_handles(item: Any) -> Any:
    if isinstance(item, dict):
        counts = item.get("counter")
        if isinstance(counts, dict):
            item = {**item, "counter": None}
        return {key: _without_handles(value) for key, value in item.items() if key != "handle"}
    if isinstance(item, list):
        return [_without_handles(value) for value in item]
    return item


def _chain(name: str, kind: str, hook: str, priority: int) -> Json:
    fields = {"family": FAMILY, "table": TABLE, "name": name, "type": kind, "hook": hook, "prio": priority}
    return {"chain": {**fields, "policy": "accept"}}


def _rules(chain: str, rules: Iterable[list[Json]]) -> list[Json]:
    return [{"rule": {"family": FAMILY, "table": TABLE, "chain": chain, "expr": expressions}} for expressions in rules]


def _clamp(direction: str, devices: list[str], mtu: int) -> list[list[Json]]:
    """Lower the MSS of SYN packets; the kernel never raises one that is smaller already."""
    return [
        [
            _is(_meta(direction), device),
            _is(_meta("nfproto"), family),
            _is({"payload": {"protocol": "tcp", "field": "flags"}}, "syn", "in"),
            _mangle({"tcp option": {"name": "maxseg", "field": "size"}}, mtu - headers),
        ]
        for device in devices
        for family, headers in _TCP_IP_HEADERS.items()
    ]


def _copy_mark(mark: int, mask: int) -> list[Json]:
    return [
        _is(_ct("direction"), "reply"),
        _is(_masked(_ct("mark"), mask), mark),
        _mangle(_meta("mark"), _merge(_meta("mark"), mark, mask)),
    ]


def _masked(key: Json, mask: int) -> Json:
    return key if mask == _ALL_BITS else {"&": [key, mask]}


def _merge(key: Json, mark: int, mask: int) -> Json | int:
    """`key` with the bits of the mask set to those of the mark, all others kept."""
    if mask == _ALL_BITS:
        return mark
    # nft folds (key & ~mask) | mark into this equal form, and lists it so.
    return {"|": [{"&": [key, (_ALL_BITS & ~mask) | mark]}, mark]}


def _meta(key: str) -> Json:
    return {"meta": {"key": key}}


def _ct(key: str) -> Json:
    return {"ct": {"key": key}}


def _is(left: Json, right: object, operator: str = "==") -> Json:
    return {"match": {"op": operator, "left": left, "right": right}}


def _mangle(key: Json, value: object) -> Json:
    return {"mangle": {"key": key, "value": value}}
