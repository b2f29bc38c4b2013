"""Faults of wires and packets. Those that leave the carrier on are nft filters on the fabric's ports.

A frame that a machine sends enters the fabric at that machine's port (the `netdev` family's ingress hook), one that it
is sent leaves there (egress, Linux 5.16 and newer); so no machine has a rule that its own daemons could see.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from bgplb_lab import control, topology
from bgplb_lab.topology import FABRIC, Machine
from bgplb_lab.world import World, port_name

TUNNEL_BRIDGES = (*(f"{site.tag}-nat-" for site in topology.SITES), "nat-")
GROUPS = {"etcd": tuple(topology.ETCD), "orchestrators": topology.ORCHESTRATORS}
"""What a partition may name besides a machine."""
NAT_PORTS = ("20000-29999", "40000-49999")
"""A NAT box that forgets its mappings takes ports of the range that it does not use yet."""


def ends(world: World, node: str) -> list[str]:
    """The fabric's ends of a machine's links, in the order of the cut."""
    return [port_name(node, port) for port in world.machine(node).ports]


def set_ends(world: World, names: list[str], up: bool) -> int:
    """Plug cables in or out on the fabric's side; answers the stamp just before the first."""
    return int(world.command(FABRIC, {"cmd": "links", "up": up, "names": names})["stamp_ns"])


def cut_links(world: World, node: str, value: str | None) -> int:
    """All links of the machine dead; its kernel state and processes live on.

    The links go on the fabric's side: taking an interface down on its own side would flush the routes over it, and
    this fault must leave the machine exactly as it was, only alone.
    """
    return set_ends(world, ends(world, node), up=False)


def restore_links(world: World, node: str, value: str | None) -> None:
    """Plug the cables in again."""
    set_ends(world, ends(world, node), up=True)


def cut_lan(world: World, node: str, value: str | None) -> int:
    """Only the cluster LAN is gone, and no carrier tells: the tunnel, its BFD and the store are as before."""
    own = [port_name(node, port) for port in world.machine(node).ports if port.bridge == "cluster-lan"]
    return put_filter(world, filter_name("cluster-link-cut", node, value), filters(own, "drop"))


def restore_lan(world: World, node: str, value: str | None) -> None:
    """Packets pass on the LAN again."""
    drop_filter(world, filter_name("cluster-link-cut", node, value))


def tunnel_ends(machine: Machine) -> list[str]:
    """The fabric's ends of the links that tunnels run over."""
    return [port_name(machine.name, port) for port in machine.ports if port.bridge.startswith(TUNNEL_BRIDGES)]


@dataclass(frozen=True)
class Filter:
    """What happens to frames at a port of the fabric: those that the machine sends enter there, the others leave."""

    port: str
    hook: str
    rule: str


def filters(ports: Iterable[str], rule: str, hooks: Iterable[str] = ("ingress", "egress")) -> list[Filter]:
    """The same rule at each of these hooks of each of these ports."""
    return [Filter(port, hook, rule) for port in ports for hook in hooks]


def filter_name(name: str, node: str, value: str | None) -> str:
    """Name of the nft table of one fault."""
    return "_".join((name, node, value or "")).replace("-", "_").rstrip("_")


def filter_text(table: str, found: Iterable[Filter]) -> str:
    """An nft table with one chain for each; each statement on a line of its own."""
    lines = [f"table netdev {table} {{"]
    for number, one in enumerate(found):
        hook = f'  type filter hook {one.hook} device "{one.port}" priority 0;'
        lines += [f" chain c{number} {{", hook, f"  {one.rule}", " }"]
    return "\n".join([*lines, "}"]) + "\n"


def put_filter(world: World, table: str, found: Iterable[Filter]) -> int:
    """Put filters in force; answers a stamp just before."""
    argv = control.enter(world.pid(FABRIC), ["nft", "-f", "-"], whole=False)
    text = filter_text(table, found)
    stamp_ns = time.monotonic_ns()
    control.run(argv, text)
    return stamp_ns


def drop_filter(world: World, table: str) -> None:
    """Take a filter away."""
    control.run(control.enter(world.pid(FABRIC), ["nft", "delete", "table", "netdev", table], whole=False))


def cut_one_way(world: World, node: str, value: str | None) -> int:
    """Nothing reaches the machine (`in`) or nothing leaves it (`out`) on the links that tunnels run over."""
    hook = "ingress" if value == "out" else "egress"
    found = filters(tunnel_ends(world.machine(node)), "drop", (hook,))
    return put_filter(world, filter_name("one-way-cut", node, value), found)


def restore_one_way(world: World, node: str, value: str | None) -> None:
    """Both directions pass again."""
    drop_filter(world, filter_name("one-way-cut", node, value))


def cut_edge_link(world: World, node: str, value: str | None) -> int:
    """Between the gateway and one edge no packet passes; other edges reach it as before."""
    site = topology.SITES[topology.EDGES.index(value or "")]
    found = [
        Filter(port, hook, f"{family} {way} {address} drop")
        for port in tunnel_ends(world.machine(node))
        for family, address in (("ip", site.address), ("ip6", site.address_ipv6))
        for hook, way in (("ingress", "daddr"), ("egress", "saddr"))
    ]
    return put_filter(world, filter_name("edge-link-cut", node, value), found)


def restore_edge_link(world: World, node: str, value: str | None) -> None:
    """Its packets pass again."""
    drop_filter(world, filter_name("edge-link-cut", node, value))


def lose(world: World, node: str, value: str | None) -> int:
    """So many percent of the packets are lost at random, each way, on the links that tunnels run over."""
    found = filters(tunnel_ends(world.machine(node)), f"numgen random mod 100 < {value} drop")
    return put_filter(world, filter_name("loss", node, value), found)


def stop_losing(world: World, node: str, value: str | None) -> None:
    """No packet is lost any more."""
    drop_filter(world, filter_name("loss", node, value))


def management(machine: Machine) -> str:
    """A machine's address on the management network."""
    port = next(port for port in machine.ports if port.bridge == "mgmt")
    return port.addresses[0].split("/")[0]


def split(world: World, node: str, value: str | None) -> int:
    """Between the machine and the other, or the others of a group, no packet passes on the management network."""
    others = [world.machine(name) for name in GROUPS.get(value or "", (value or "",)) if name != node]
    peers = ", ".join(management(other) for other in others)
    found = [
        Filter(f"{node}.mgmt0", "ingress", f"ip daddr {{ {peers} }} drop"),
        Filter(f"{node}.mgmt0", "egress", f"ip saddr {{ {peers} }} drop"),
    ]
    return put_filter(world, filter_name("partition", node, value), found)


def join(world: World, node: str, value: str | None) -> None:
    """They hear each other again."""
    drop_filter(world, filter_name("partition", node, value))


def remap(world: World, node: str, value: str | None) -> int:
    """The NAT box forgets every mapping and takes other ports for the new ones, as after its restart."""
    now = world.inside(node, "nft", "list", "table", "ip", "nat")
    ports = next(choice for choice in NAT_PORTS if choice not in now)
    rules = f"""\
flush table ip nat
table ip nat {{
  chain out {{
    oifname "{topology.OUTER_PORTS}" meta l4proto {{ tcp, udp }} masquerade to :{ports}
    oifname "{topology.OUTER_PORTS}" masquerade
  }}
}}
"""
    stamp_ns = time.monotonic_ns()
    world.inside(node, "nft", "-f", "-", stdin=rules)
    world.inside(node, "conntrack", "--flush")
    return stamp_ns
