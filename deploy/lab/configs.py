"""The files that an operator would have written on each machine: BIRD's, ours, and the manifests."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import yaml
from bgplb_lab import credentials
from bgplb_lab import topology as lab

BIRD_COMMON = """\
log stderr all;
router id {router_id};
timeformat protocol iso long ms;
protocol device {{ scan time 10; }}
protocol bfd {{ interface "*" {{ interval 300 ms; multiplier 5; idle tx interval 1 s; }}; }}
"""

TRANSIT_BIRD = (
    BIRD_COMMON.format(router_id=lab.TRANSIT_ADDRESS)
    + f"""\
protocol kernel {{ ipv4 {{ import none; export all; }}; }}
protocol kernel {{ ipv6 {{ import none; export all; }}; }}
protocol static announced {{ ipv4; route 0.0.0.0/0 unreachable; }}
protocol static announced6 {{ ipv6; route ::/0 unreachable; }}
protocol bgp customer {{
  local {lab.TRANSIT_ADDRESS} as {lab.TRANSIT_ASN};
  neighbor {lab.EDGE_ADDRESS} as {lab.EDGE_ASN};
  bfd on;
  connect delay time 1; connect retry time 2; error wait time 1, 2;
  ipv4 {{ import where net ~ [ {lab.AGGREGATE}{{24,32}} ]; export where proto = "announced"; }};
}}
protocol bgp customer6 {{
  local {lab.TRANSIT_ADDRESS_IPV6} as {lab.TRANSIT_ASN};
  neighbor {lab.EDGE_ADDRESS_IPV6} as {lab.EDGE_ASN};
  bfd on;
  connect delay time 1; connect retry time 2; error wait time 1, 2;
  ipv6 {{ import where net ~ [ {lab.AGGREGATE_IPV6}{{48,128}} ]; export where proto = "announced6"; }};
}}
"""
)

EDGE_BIRD = (
    BIRD_COMMON.format(router_id=lab.EDGE_ADDRESS)
    + f"""\
protocol kernel {{ ipv4 {{ import none; export all; }}; }}
protocol kernel {{ ipv6 {{ import none; export all; }}; }}
protocol static aggregate {{ ipv4; route {lab.AGGREGATE} blackhole; }}
protocol static aggregate6 {{ ipv6; route {lab.AGGREGATE_IPV6} blackhole; }}
protocol static foreign_static {{ ipv4; route 198.18.7.0/24 blackhole; }}
protocol bgp transit {{
  local {lab.EDGE_ADDRESS} as {lab.EDGE_ASN};
  neighbor {lab.TRANSIT_ADDRESS} as {lab.TRANSIT_ASN};
  bfd on;
  connect delay time 1; connect retry time 2; error wait time 1, 2;
  ipv4 {{ import all; export where proto = "aggregate"; }};
}}
protocol bgp transit6 {{
  local {lab.EDGE_ADDRESS_IPV6} as {lab.EDGE_ASN};
  neighbor {lab.TRANSIT_ADDRESS_IPV6} as {lab.TRANSIT_ASN};
  bfd on;
  connect delay time 1; connect retry time 2; error wait time 1, 2;
  ipv6 {{ import all; export where proto = "aggregate6"; }};
}}
"""
)

BIRD_LOCAL = f"""\
protocol static local_floor {{ ipv4; route {lab.FLOOR_PREFIX} unreachable; }}
"""

BIRD_IMPORT_EXTRA = f"""\
if net = {lab.FLOOR_PREFIX} then accept;
"""

EDGE_GATEWAY: dict[str, Any] = {
    "apiVersion": "networking.example.net/v1alpha1",
    "kind": "EdgeGateway",
    "metadata": {"name": "edge-gateway"},
    "spec": {
        "edges": [{"name": "edge-1", "endpoint": lab.EDGE_ADDRESS, "asn": lab.EDGE_ASN}],
        "gateways": list(lab.GATEWAYS),
        "gatewayASN": lab.GATEWAY_ASN,
    },
}
POOL: dict[str, Any] = {
    "apiVersion": "networking.example.net/v1alpha1",
    "kind": "EIPPool",
    "metadata": {"name": lab.POOL},
    "spec": {
        "aggregate": lab.AGGREGATE,
        "aggregateIPv6": lab.AGGREGATE_IPV6,
        "addresses": list(lab.POOL_PREFIXES),
        "gatewayRef": "edge-gateway",
        "autoAssign": False,
        "advertiseWhenEmpty": True,
    },
}


def to_yaml(document: Mapping[str, object]) -> str:
    """One YAML document with its keys in the order written."""
    return yaml.safe_dump(dict(document), sort_keys=False)


def node_agent(name: str, etcd: dict[str, object]) -> str:
    """The config of a gateway's agent; the LAN targets are its neighbours on the cluster LAN."""
    addresses = {"gw-a": "10.10.0.11", "gw-b": "10.10.0.12"}
    others = [address for node, address in addresses.items() if node != name]
    document: dict[str, object] = {
        "name": name,
        "etcd": etcd,
        "lan": {"address": addresses[name], "targets": ["10.10.0.13", *others]},
    }
    if name == "gw-a":
        document["bird"] = {"local_include": "/etc/bgplb/bird-local.conf"}
    return to_yaml(document)


def files(machine: str, auth: lab.Auth = lab.Auth.NONE) -> dict[str, str]:
    """Files of one machine below /etc that hold no secret: relative path -> text."""
    etcd = credentials.section(auth, credentials.daemon_user(machine) or "")
    if machine == "transit":
        return {"bird/bird.conf": TRANSIT_BIRD}
    if machine in lab.EDGES:
        extra = "/etc/bgplb/bird-import-extra.conf"
        agent = {"name": machine, "etcd": etcd, "bird": {"import_extra": extra}}
        return {
            "bird/bird.conf": EDGE_BIRD,
            "bgplb/edge-agent.yaml": to_yaml(agent),
            "bgplb/bird-import-extra.conf": BIRD_IMPORT_EXTRA,
        }
    if machine in lab.GATEWAYS:
        local = {"bgplb/bird-local.conf": BIRD_LOCAL} if machine == "gw-a" else {}
        return {"bgplb/node-agent.yaml": node_agent(machine, etcd), **local}
    if machine in lab.ORCHESTRATORS:
        own = {"name": machine, "etcd": etcd, "manifests": "/etc/bgplb/manifests"}
        return {
            "bgplb/orchestrator.yaml": to_yaml(own),
            "bgplb/cli.yaml": to_yaml({"etcd": credentials.section(auth, credentials.OPERATOR, "operator")}),
            "bgplb/root.yaml": to_yaml({"etcd": credentials.section(auth, credentials.ROOT, credentials.ROOT)}),
        }
    return {}


def manifests(outside: lab.Family = lab.Family.IPV4) -> dict[str, str]:
    """The intent: file name -> text. The orchestrators share one folder, as from one configuration repository.

    `outside`: the IP version in which the tunnels' own packets travel.
    """
    group = deepcopy(EDGE_GATEWAY)
    if outside is lab.Family.IPV6:
        group["spec"]["edges"][0]["endpoint"] = lab.EDGE_ADDRESS_IPV6
    return {"edge-gateway.yaml": to_yaml(group), f"{lab.POOL}.yaml": to_yaml(POOL)}
