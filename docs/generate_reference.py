"""Write docs/manifests.md and docs/configuration.md from the models: `python docs/generate_reference.py`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestrator.config.cli import CliConfig
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.config.manifests import EdgeGatewayManifestSpec, EIPPoolSpec
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.config.orchestrator import OrchestratorConfig
from orchestrator.config.problems import allowed_of, inner_models
from orchestrator.config.sections import Agent, Root

DOCS = Path(__file__).resolve().parent

DAEMONS = {"orchestrator": OrchestratorConfig, "edge agent": EdgeAgentConfig, "node agent": NodeAgentConfig}

UNUSED = {
    "autoAssign": "Kept; without Kubernetes nobody asks for it",
    "advertiseWhenEmpty": "Kept; nobody counts addresses in use yet, so a pool is always announced",
    "serviceAllocation": "Kept; without Kubernetes nobody asks for it",
}
"""Fields of the manifests that this version takes and that change nothing yet."""

MANIFESTS = """# Manifests

Generated from the models (`make docs`); do not edit.

A folder of manifests states the intent. Each orchestrator is told where it is (`manifests` in its configuration, or
`bgplb orchestrator --manifests DIR`), and the leader acts on it.

- Read are `*.yaml` and `*.yml` files directly in the folder, no dot files; a file may hold several documents. `status`
  is passed over.
- It is read after 200 ms without a change, and **accepted whole or not at all**: with one problem anywhere, the last
  good state stays in force and every problem is logged. An empty folder deletes nothing.
- A pool that lives and is to get a prefix of a pool that goes keeps its addresses until that one is gone;
  `bgplb status` says what it waits for.
- An object is deleted only if a running leader saw it in the folder and then saw it go. A new leader whose folder lacks
  something keeps it and says `IntentMissing`; `bgplb manifests apply DIR --prune` deletes it.
- `bgplb manifests check DIR` applies the same rules and changes nothing.
- `TunnelPeer` and `RouteAdvertisement` are outputs; found in the folder, they are an error that says so.
- What a later version will have is refused by name. What is taken and changes nothing yet is marked below.

Beside the rules in the tables: prefixes of two pools must not overlap, nor may a pool overlap the ranges of tunnels and
probes; `gatewayRef` must name an EdgeGateway of the folder; an edge and a gateway belong to one EdgeGateway; a pool's
prefixes lie within the `aggregate` of their family; no more gateways than the probe range has addresses; the detection
time of the `profile` must be below the orchestrator's `lease.ttl_ms`.

## Example

```yaml
apiVersion: networking.example.net/v1alpha1
kind: EdgeGateway
metadata:
  name: edge-gateway
spec:
  edges:
    - name: edge-1
      endpoint: 203.0.113.1
      asn: 64512
  gateways: [gw-a, gw-b]
  gatewayASN: 64513
---
apiVersion: networking.example.net/v1alpha1
kind: EIPPool
metadata:
  name: external-ip-pool-1
spec:
  aggregate: 192.0.2.0/24
  addresses: [192.0.2.0/26]
  gatewayRef: edge-gateway
```

A pool may have prefixes of both families, which move as a whole; its IPv6 ones lie in `aggregateIPv6`. The first IPv6
prefix of any pool gives the tunnels of its EdgeGateway their IPv6 addresses, and IPv6 forwarding is switched on there.

```yaml
apiVersion: networking.example.net/v1alpha1
kind: EdgeGateway
metadata:
  name: both
spec:
  edges:
    - name: edge-2
      endpoint: 2001:db8:113::1
      asn: 64512
  gateways: [gw-c, gw-d]
  gatewayASN: 64513
---
apiVersion: networking.example.net/v1alpha1
kind: EIPPool
metadata:
  name: external-ip-pool-2
spec:
  aggregate: 198.51.100.0/24
  aggregateIPv6: 2001:db8::/32
  addresses: [198.51.100.64/26, "2001:db8:2::/64"]
  gatewayRef: both
```

`apiVersion` is always `networking.example.net/v1alpha1`; `metadata.name` is a DNS label.
"""

CONFIGURATION = """# Configuration

Generated from the models (`make docs`); do not edit.

Each daemon reads one YAML file: `/etc/bgplb/orchestrator.yaml`, `edge-agent.yaml` or `node-agent.yaml`. The other
commands read `cli.yaml`, or the first of the daemons' files that is there; `--config FILE` or `BGPLB_CONFIG` names
another.

- `bgplb config example ROLE` prints a file with every setting; `bgplb config check ROLE FILE` names all problems of a
  file at once, one a line: `FILE: field: value 'X': what is allowed`.
- Unknown fields and wrong types are refused. A setting that is left out has its default.
- Private keys are made on the machine, mode 0600, and never leave it. A key file that others may read is refused.
"""

RELATIONS = """
## Relations

- `lease.renew_every_ms` is at most a third of `lease.ttl_ms`; `lease.stale_after_ms` is less than `lease.ttl_ms` and at
  least twice `lease.heartbeat_every_ms`. Only the orchestrator judges who is stale.
- Where a group says `onStoreLoss: withdraw`, `lease.ttl_ms` of its node agents is at least 6000; one with less is not
  ready ([Loss of the store](architecture.md#loss-of-the-store)).
- `etcd.cert` and `etcd.key` are given together, as are `etcd.username` and `etcd.password_file`; all endpoints are
  `http://` or all `https://`, and with `ca` or `cert` they are `https://`.
- The tables differ from each other and from the kernel's own; `tables.first` has 64 free numbers after it.
"""


def manifests() -> str:
    """The page on EIPPool and EdgeGateway."""
    parts = [MANIFESTS]
    for kind, model in (("EIPPool", EIPPoolSpec), ("EdgeGateway", EdgeGatewayManifestSpec)):
        parts.append(f"\n## {kind}: `spec`\n\n")
        parts.append(_table(_rows(model, "")))
    return "".join(parts)


def configuration() -> str:
    """The page on the daemons' files."""
    parts = [CONFIGURATION]
    for title, sentence, rows in (
        ("All daemons", "In the files of the three daemons.", list(_rows(Root, ""))),
        ("Orchestrator", "`orchestrator.yaml`", _own(OrchestratorConfig)),
        ("Both agents", "`edge-agent.yaml` and `node-agent.yaml`", _own(Agent)),
        ("Node agent", "`node-agent.yaml`", _own(NodeAgentConfig, Agent)),
        ("Edge agent", "`edge-agent.yaml`", _own(EdgeAgentConfig, Agent)),
        (
            "Command line",
            "`cli.yaml`; it has `etcd` as above, too.",
            [r for r in _rows(CliConfig, "") if "." not in r[0]],
        ),
    ):
        body = _table(rows) if rows else "Nothing beside what both agents have.\n"
        parts.append(f"\n## {title}\n\n{sentence}\n\n{body}")
    parts.append(RELATIONS)
    return "".join(parts)


Row = tuple[str, str, str, str]


def _own(model: type[BaseModel], beyond: type[BaseModel] | None = None) -> list[Row]:
    """Rows of the fields that `model` has beyond what is described already."""
    known = set((beyond or Root).model_fields)
    return [row for row in _rows(model, "") if row[0].split(".")[0] not in known]


def _rows(model: type[BaseModel], prefix: str) -> Iterator[Row]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        if not field.description:
            continue  # refused by name; the refusal says why
        inner = inner_models(field.annotation)
        if inner and not _is_list(field):
            yield from _rows(inner[0], f"{path}.")
            continue
        yield path, f"{field.description}.", allowed_of(field), _default(path, field)
        if inner:
            yield from _rows(inner[0], f"{path}[].")


def _is_list(field: FieldInfo) -> bool:
    return "tuple" in str(field.annotation)


def _default(path: str, field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if path == "http.listen":
        return ", ".join(f"`{model.LISTEN}` ({name})" for name, model in DAEMONS.items())
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value == {} or value == ():
        return "none"
    if isinstance(value, int) and not isinstance(value, bool) and value > 0xFFFF_FF:
        return f"`{value:#x}`"
    text = yaml.safe_dump(str(value) if isinstance(value, Path) else value, default_flow_style=True)
    return f"`{text.removesuffix(chr(10)).removesuffix(chr(10) + '...')}`"


def _note(path: str) -> str:
    for field, note in UNUSED.items():
        if path == field or path.startswith(f"{field}."):
            return f" *{note}.*"
    return ""


def _table(rows: Iterable[Row]) -> str:
    lines = ["| field | meaning | allowed | default |", "| --- | --- | --- | --- |"]
    for path, meaning, allowed, default in rows:
        cells = (f"`{path}`", meaning + _note(path), allowed, default)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def generated() -> dict[Path, str]:
    """Each generated file with the text that it must have."""
    return {DOCS / "manifests.md": manifests(), DOCS / "configuration.md": configuration()}


def main() -> None:
    """Write them."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
