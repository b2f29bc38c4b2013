"""Desired state: what each agent has to make true, projected from the records. Pure; the whole level, never a step."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Address, IPv6Network

from fsm.records import (
    AgentBase,
    EdgeGatewaySpec,
    EdgePool,
    EdgeSpec,
    Identity,
    NodePool,
    PoolRecord,
    PoolSpec,
    Tunnel,
)
from fsm.types import PROFILES, PoolState

S = PoolState

ARMED = (S.ACTIVE_HEALTHY, S.IDLE, S.STRANDED)
"""States in which the edge holds the plan."""

EDGE, NODE = "edge", "node"
Key = tuple[str, str]
"""(role, agent)"""


def edge_pool(record: PoolRecord, spec: PoolSpec) -> EdgePool:
    """What an edge does with the pool: whom it points at, under which epoch, and what it may do by itself."""
    owner, epoch = record.owner, record.epoch
    if record.state == S.TERMINATING:
        return EdgePool(spec.addresses, None, epoch, deleted=True)
    if record.state in (S.FAILURE_DETECTED, S.WITHDRAWN):
        owner = record.target
    elif record.state == S.DRAINING:
        owner, epoch = (record.target, epoch) if record.switched else (owner, record.base_epoch)
    plan = record.plan if record.state in ARMED else ()
    return EdgePool(spec.addresses, owner, epoch, planned=record.switched, plan=plan)


def announcers(record: PoolRecord) -> frozenset[str]:
    """Gateways that shall announce the pool."""
    if not record.announce or record.state in (S.PENDING, S.IDLE, S.TERMINATING):
        return frozenset()
    if record.state in (S.FAILURE_DETECTED, S.WITHDRAWN):
        names = {record.target}
    elif record.state == S.DRAINING:
        names = {record.owner, record.target}
    else:
        names = {record.owner}
    return frozenset(name for name in names if name)


def pool_desired(record: PoolRecord, spec: PoolSpec, group: EdgeGatewaySpec) -> dict[Key, EdgePool | NodePool]:
    """The pool's part of every agent's desired state. Answers are prepared on every gateway, owner or not."""
    told = announcers(record)
    wanted: dict[Key, EdgePool | NodePool] = {}
    if record.epoch:
        command = edge_pool(record, spec)
        if len(group.edges) > 1:
            command = replace(command, plan=())  # each would act on what it sees alone
        for edge in group.edges:
            wanted[EDGE, edge.name] = command
    for gateway in group.gateways:
        wanted[NODE, gateway] = NodePool(spec.addresses, gateway in told, record.epoch)
    return wanted


MAX_GATEWAYS = 255
"""A gateway's number is one octet of the tunnel's address, the number plus one the last of the probe's."""
MAX_EDGES = 64
"""An edge's number counts tables from `tables.first` on; twice the number is the last octet of the tunnel's address."""


def allocate(known: Mapping[str, int], names: Iterable[str], limit: int) -> dict[str, int]:
    """A number below `limit` for each name: the one it has, or the smallest that is free.

    Raises ValueError when none is left.
    """
    wanted = list(names)
    numbers = {name: known[name] for name in wanted if name in known}
    free = (n for n in range(limit) if n not in set(numbers.values()))
    for name in wanted:
        if name not in numbers:
            number = next(free, None)
            if number is None:
                raise ValueError(f"more than {limit} are named: no number is left for {name}")
            numbers[name] = number
    return numbers


def tunnel_addresses(group: EdgeGatewaySpec, slot: int, edge_index: int) -> tuple[str, str, str]:
    """(edge's, gateway's, probe) IPv4 address of a tunnel: one /31 for each edge and gateway (RFC 3021)."""
    block = int(IPv4Network(group.tunnel_ipv4).network_address) + slot * 256 + edge_index * 2
    probe = int(IPv4Network(group.probe_ipv4).network_address) + slot + 1
    edge, gateway, responder = (str(IPv4Network((n, 32)).network_address) for n in (block, block + 1, probe))
    return edge, gateway, responder


def tunnel_ipv6_addresses(group: EdgeGatewaySpec, slot: int, edge_index: int) -> tuple[str, str, str]:
    """(edge's, gateway's, probe) IPv6 address of a tunnel: a /64 for each gateway, in it a /127 an edge (RFC 6164)."""
    block = int(IPv6Network(group.tunnel_ipv6).network_address) + (slot << 64) + edge_index * 2
    probe = int(IPv6Network(group.probe_ipv6).network_address) + slot + 1
    return str(IPv6Address(block)), str(IPv6Address(block + 1)), str(IPv6Address(probe))


def needs_ipv6(pools: Iterable[PoolSpec]) -> bool:
    """Whether any of these pools has an IPv6 prefix: then the tunnels of their group get, and keep, IPv6 addresses."""
    return any(":" in prefix for pool in pools for prefix in pool.addresses)


def agent_bases(
    group: EdgeGatewaySpec,
    pools: Iterable[PoolSpec],
    agents: Mapping[Key, Identity],
) -> dict[Key, AgentBase]:
    """The base of every edge and gateway of a group. A tunnel appears once both ends have published a public key."""
    pools = tuple(pools)
    ipv6 = group.ipv6 or needs_ipv6(pools)
    accept = tuple(sorted({prefix for pool in pools for prefix in pool.addresses}))
    at_edge: dict[str, list[Tunnel]] = {edge.name: [] for edge in group.edges}
    at_node: dict[str, list[Tunnel]] = {gateway: [] for gateway in group.gateways}
    for edge in group.edges:
        index = group.edge_number(edge.name)
        for gateway in group.gateways:
            ends = agents.get((EDGE, edge.name)), agents.get((NODE, gateway))
            if ends[0] is None or ends[1] is None or not ends[0].public_key or not ends[1].public_key:
                continue
            at_edge[edge.name].append(_tunnel(group, edge, index, gateway, gateway, ends[1].public_key, ipv6))
            at_node[gateway].append(_tunnel(group, edge, index, gateway, edge.name, ends[0].public_key, ipv6))
    bases: dict[Key, AgentBase] = {}
    for name, tunnels in at_edge.items():
        bases[EDGE, name] = _base(group, tunnels, accept, ())
    for name, tunnels in at_node.items():
        peers = sorted(
            record.lan_address
            for (role, other), record in agents.items()
            if role == NODE and other != name and other in group.gateways and record.lan_address
        )
        bases[NODE, name] = _base(group, tunnels, accept, tuple(peers))
    return bases


def _tunnel(
    group: EdgeGatewaySpec, edge: EdgeSpec, index: int, gateway: str, peer: str, public_key: str, ipv6: bool
) -> Tunnel:
    slot = group.slots[gateway]
    edge_ipv4, gateway_ipv4, probe_ipv4 = tunnel_addresses(group, slot, index)
    edge_ipv6, gateway_ipv6, probe_ipv6 = tunnel_ipv6_addresses(group, slot, index) if ipv6 else ("", "", "")
    return Tunnel(
        name=peer,
        slot=slot,
        public_key=public_key,
        endpoint=edge.endpoint,
        port=group.port_base + slot,
        edge_ipv4=edge_ipv4,
        gateway_ipv4=gateway_ipv4,
        probe_ipv4=probe_ipv4,
        edge_asn=edge.asn,
        gateway_asn=group.gateway_asn,
        edge_index=index,
        edge_ipv6=edge_ipv6,
        gateway_ipv6=gateway_ipv6,
        probe_ipv6=probe_ipv6,
    )


def _base(
    group: EdgeGatewaySpec, tunnels: list[Tunnel], accept: tuple[str, ...], lan_peers: tuple[str, ...]
) -> AgentBase:
    profile = PROFILES[group.profile]
    return AgentBase(
        tunnels=tuple(tunnels),
        mtu=group.mtu,
        keepalive_s=group.keepalive_s,
        hold_time_s=group.hold_time_s,
        bfd_interval_ms=profile.interval_ms,
        bfd_multiplier=profile.multiplier,
        probe_interval_ms=profile.probe_interval_ms,
        drain_linger_ms=group.drain_linger_ms,
        on_store_loss=group.on_store_loss,
        accept=accept,
        lan_peers=lan_peers,
    )
