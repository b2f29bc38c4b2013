"""The files that an operator would have written on each machine: BIRD's, ours, and the manifests."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import yaml
from bgplb_lab import credentials
from bgplb_lab import topology as lab

# One second of scan time: BIRD 2.0.12 may sleep for 3 s with the first UPDATE of a session still to be sent, see
# `birdctl/render.py`.
BIRD_COMMON = """\
log stderr all;
router id {router_id};
timeformat protocol iso long ms;
protocol device {{ scan time 1; }}
protocol bfd {{ interface "*" {{ interval 300 ms; multiplier 5; idle tx interval 1 s; }}; }}
"""

OPERATOR_KERNEL = """\
protocol kernel {{ ipv4 {{ import none; export {0}; }}; }}
protocol kernel {{ ipv6 {{ import none; export {0}; }}; }}
"""
# One second each: BFD says when a neighbour is dead, and a session is soon tried again. A greater second `error wait`
# would be what a neighbour waits that boots twice within 300 s (`error forget time`): BIRD doubles the wait up to it.
NEIGHBOR_TIMERS = "connect delay time 1; connect retry time 1; error wait time 1, 1;"


def transit_bird(sites: Sequence[lab.Site]) -> str:
    """The transit provider's BIRD: a session with each edge and family, a default route for it."""
    text = BIRD_COMMON.format(router_id=lab.TRANSIT_ADDRESS) + OPERATOR_KERNEL.format("all")
    text += "protocol static announced { ipv4; route 0.0.0.0/0 unreachable; }\n"
    text += "protocol static announced6 { ipv6; route ::/0 unreachable; }\n"
    for number, site in enumerate(sites, 1):
        sessions = (
            ("", site.transit, site.address, "ipv4", f"{lab.AGGREGATE}{{24,32}}", "announced"),
            ("v6", site.transit_ipv6, site.address_ipv6, "ipv6", f"{lab.AGGREGATE_IPV6}{{48,128}}", "announced6"),
        )
        for tail, own, neighbor, channel, taken, given in sessions:
            text += f"""\
protocol bgp customer{number}{tail} {{
  local {own} as {lab.TRANSIT_ASN};
  neighbor {neighbor} as {lab.EDGE_ASN};
  bfd on;
  {NEIGHBOR_TIMERS}
  {channel} {{ import where net ~ [ {taken} ]; export where proto = "{given}"; }};
}}
"""
    return text


def edge_bird(site: lab.Site) -> str:
    """An edge's BIRD of the operator's: it announces the aggregates, and what this edge shall attract besides.

    The latter not to the kernel: such a blackhole would be more specific than the pool's own route.
    """
    text = BIRD_COMMON.format(router_id=site.address) + OPERATOR_KERNEL.format(
        'where proto != "part" && proto != "part6"'
    )
    text += f"protocol static aggregate {{ ipv4; route {lab.AGGREGATE} blackhole; }}\n"
    text += f"protocol static aggregate6 {{ ipv6; route {lab.AGGREGATE_IPV6} blackhole; }}\n"
    for prefix in site.attracts:
        name, channel = ("part6", "ipv6") if ":" in prefix else ("part", "ipv4")
        text += f"protocol static {name} {{ {channel}; route {prefix} blackhole; }}\n"
    text += "protocol static foreign_static { ipv4; route 198.18.7.0/24 blackhole; }\n"
    sessions = (
        ("transit", site.address, site.transit, "ipv4", 'proto = "aggregate" || proto = "part"'),
        ("transit6", site.address_ipv6, site.transit_ipv6, "ipv6", 'proto = "aggregate6" || proto = "part6"'),
    )
    for name, own, neighbor, channel, given in sessions:
        text += f"""\
protocol bgp {name} {{
  local {own} as {lab.EDGE_ASN};
  neighbor {neighbor} as {lab.TRANSIT_ASN};
  bfd on;
  {NEIGHBOR_TIMERS}
  {channel} {{ import all; export where {given}; }};
}}
"""
    return text


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
        "edges": [],
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


def files(machine: str, auth: lab.Auth = lab.Auth.NONE, edges: int = 1) -> dict[str, str]:
    """Files of one machine below /etc that hold no secret, in a lab of so many edges: relative path -> text."""
    etcd = credentials.section(auth, credentials.daemon_user(machine) or "")
    if machine == "transit":
        return {"bird/bird.conf": transit_bird(lab.SITES[:edges])}
    if machine in lab.EDGES:
        extra = "/etc/bgplb/bird-import-extra.conf"
        agent = {"name": machine, "etcd": etcd, "bird": {"import_extra": extra}}
        return {
            "bird/bird.conf": edge_bird(lab.SITES[lab.EDGES.index(machine)]),
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


def manifests(
    outside: lab.Family = lab.Family.IPV4, edges: int = 1, profile: lab.Profile = lab.Profile.FAST
) -> dict[str, str]:
    """The intent: file name -> text. The orchestrators share one folder, as from one configuration repository.

    `outside`: the IP version in which the tunnels' own packets travel.
    """
    group = deepcopy(EDGE_GATEWAY)
    group["spec"]["failover"] = {"profile": str(profile)}
    group["spec"]["edges"] = [
        {
            "name": site.name,
            "endpoint": site.address_ipv6 if outside is lab.Family.IPV6 else site.address,
            "asn": lab.EDGE_ASN,
        }
        for site in lab.SITES[:edges]
    ]
    return {"edge-gateway.yaml": to_yaml(group), f"{lab.POOL}.yaml": to_yaml(POOL)}
