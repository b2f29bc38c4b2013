"""What a node agent keeps on disk, and what follows from it for kernel and BIRD. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, ip_address

from birdctl.commands import network
from birdctl.render import Announcements, Bfd, GatewayConfig, PoolAnnouncement, Session
from dataplane import nft_rules
from dataplane.model import Address, KernelState, Link, Route, Rule, canonical
from dataplane.nft_foreign import Ours
from dataplane.probe_namespace import ProbeNamespace
from dataplane.sysctl import IPV6_FORWARDING, IPVS_REROUTE
from fsm.records import AgentBase, NodePool, Tunnel
from orchestrator.agents.permit import LEAST_TTL_MS
from orchestrator.config.node_agent import NodeAgentConfig

MARK_RULE, SOURCE_RULE = 10077, 10078
"""Rule priorities: answers by their connection's mark, which names the edge; then those that have none, by source."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The last base and pools that the agent was told, for a start with the store dead.

    Whether a pool is announced is not kept: after a boot nothing is announced until the store says so.
    """

    base: AgentBase = field(default_factory=AgentBase)
    pools: Mapping[str, NodePool] = field(default_factory=dict)
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Endpoint that was given to each edge's peer: written again only when the wish changes, for the sake of NAT."""
    schema: int = 1


def device_name(config: NodeAgentConfig, tunnel: Tunnel) -> str:
    """The tunnel's interface on the gateway."""
    return f"{config.wireguard.interface_prefix}e{tunnel.edge_index}"


def answers_table(config: NodeAgentConfig, tunnel: Tunnel) -> int:
    """The table whose default route leads into the tunnel."""
    return config.tables.first + tunnel.edge_index


def with_room(config: NodeAgentConfig, base: AgentBase) -> tuple[AgentBase, str]:
    """The base with those edges alone that `marks.mask` has a value for, and what is to be said of the others."""
    fit = tuple(tunnel for tunnel in base.tunnels if config.marks.has_room_for(tunnel.edge_index))
    left_out = sorted(tunnel.name for tunnel in base.tunnels if tunnel not in fit)
    if not left_out:
        return base, ""
    text = f"marks.mask {config.marks.mask:#x} has no value left for {', '.join(left_out)}: give it more bits"
    return replace(base, tunnels=fit), text


def tables(config: NodeAgentConfig, base: AgentBase) -> list[int]:
    """Tables that are ours to compare."""
    return [254, *(answers_table(config, tunnel) for tunnel in base.tunnels)]


def endpoint(tunnel: Tunnel) -> str:
    """Where the edge listens for this gateway."""
    host = f"[{tunnel.endpoint}]" if ":" in tunnel.endpoint else tunnel.endpoint
    return f"{host}:{tunnel.port}"


def prefixes(pools: Mapping[str, NodePool]) -> tuple[str, ...]:
    """All pools' prefixes, in order."""
    return tuple(sorted({prefix for pool in pools.values() for prefix in pool.prefixes}))


def speaks_ipv6(base: AgentBase) -> bool:
    """Whether IPv6 is in use: then all of this gateway's tunnels have IPv6 addresses."""
    return any(tunnel.gateway_ipv6 for tunnel in base.tunnels)


def everywhere(tunnel: Tunnel) -> frozenset[str]:
    """What an edge may send through its tunnel: requests come from anywhere."""
    return frozenset({"0.0.0.0/0", "::/0"} if tunnel.gateway_ipv6 else {"0.0.0.0/0"})


def responder_for(base: AgentBase, responder: ProbeNamespace) -> ProbeNamespace:
    """The probes' responder with the families in use."""
    return responder.with_ipv6() if speaks_ipv6(base) else responder


def first_heard(base: AgentBase, silent: Collection[str]) -> tuple[Tunnel, ...]:
    """The tunnel for answers whose connection names none: the first that is not `silent`, of all or none the first."""
    return tuple(tunnel for tunnel in base.tunnels if tunnel.name not in silent)[:1] or base.tunnels[:1]


def withdraws(config: NodeAgentConfig, base: AgentBase) -> bool:
    """Whether this gateway gives its sessions up when it loses the store; with too short a lease it does not."""
    return base.on_store_loss == "withdraw" and config.lease.ttl_ms >= LEAST_TTL_MS


def ends(config: NodeAgentConfig, base: AgentBase) -> frozenset[Address]:
    """The gateway's ends of its tunnels: the addresses that its sessions are on."""
    return frozenset(Address(device_name(config, t), f"{t.gateway_ipv4}/31") for t in base.tunnels)


def lent(config: NodeAgentConfig, base: AgentBase) -> frozenset[Address]:
    """Those ends that `Permit` lends, and nobody else touches; none where the gateway holds."""
    return ends(config, base) if withdraws(config, base) else frozenset()


def lasting_address(tunnel: Tunnel) -> str:
    """One that stays when the lent one goes: with its last address an interface loses all its routes as well.

    From the end of the gateway's /24 downwards: from its start upwards come the ends of its tunnels, 64 at most.
    """
    first = int(IPv4Address(tunnel.gateway_ipv4)) - 1 - 2 * tunnel.edge_index
    return str(IPv4Address(first + 254 - tunnel.edge_index))


def kernel_state(
    config: NodeAgentConfig, state: NodeState, responder: ProbeNamespace, ipvs: bool, silent: Collection[str] = ()
) -> KernelState:
    """Links, addresses, rules, routes and sysctls of a gateway, owner or standby alike.

    `ipvs`: its kernel has it. `silent`: edges from which nothing comes.
    """
    base = state.base
    responder = responder_for(base, responder)
    links, addresses = {responder.host_link}, set(responder.host_addresses)
    routes, rules = set(), set()
    sysctls = {"net.ipv4.ip_forward": "1"}
    if ipvs and base.tunnels:
        sysctls[IPVS_REROUTE] = "1"  # or its answers go the way of the pod's address, past the source rule
    for tunnel in base.tunnels:
        device, table = device_name(config, tunnel), answers_table(config, tunnel)
        mark = config.marks.value(tunnel.edge_index)
        links.add(Link(device, "wireguard", base.mtu, f"bgplb:{tunnel.name}"))
        lasting = f"{lasting_address(tunnel)}/32" if withdraws(config, base) else f"{tunnel.gateway_ipv4}/31"
        addresses.add(Address(device, lasting))
        routes.add(Route("0.0.0.0/0", table, device, mtu_lock=base.mtu))
        rules.add(Rule("ipv4", MARK_RULE, table, fwmark=mark, fwmask=config.marks.mask))
        if tunnel.gateway_ipv6:
            addresses.add(Address(device, f"{tunnel.gateway_ipv6}/127"))
            routes.add(Route("::/0", table, device, mtu_lock=base.mtu))
            rules.add(Rule("ipv6", MARK_RULE, table, fwmark=mark, fwmask=config.marks.mask))
            sysctls[IPV6_FORWARDING] = "1"
        # Loose: requests come from anywhere, and the way back to them is not this tunnel (RFC 3704 section 2.4).
        sysctls[f"net.ipv4.conf.{device}.rp_filter"] = "2"
    for tunnel in first_heard(base, silent):
        for prefix in prefixes(state.pools):
            rules.add(Rule(canonical(prefix)[1], SOURCE_RULE, answers_table(config, tunnel), source=prefix))
    return KernelState(frozenset(links), frozenset(addresses), frozenset(routes), frozenset(rules), sysctls)


def nft_table(config: NodeAgentConfig, base: AgentBase, responder: ProbeNamespace) -> str | None:
    """Marks, probe translation and MSS of a gateway; None without a tunnel."""
    if not base.tunnels:
        return None
    tunnels = tuple(
        nft_rules.Tunnel(device_name(config, tunnel), config.marks.value(tunnel.edge_index)) for tunnel in base.tunnels
    )
    responder = responder_for(base, responder)
    probe = {tunnel.probe_ipv4: responder.inside_address(4) for tunnel in base.tunnels}
    probe |= {tunnel.probe_ipv6: responder.inside_address(6) for tunnel in base.tunnels if tunnel.probe_ipv6}
    return nft_rules.GatewayRules(tunnels, config.marks.mask, base.mtu, probe).ruleset()


def ours(config: NodeAgentConfig, base: AgentBase) -> Ours:
    """What foreign rules must leave alone."""
    return Ours(
        frozenset(config.marks.value(tunnel.edge_index) for tunnel in base.tunnels),
        config.marks.mask,
        frozenset(device_name(config, tunnel) for tunnel in base.tunnels),
    )


def bird_config(config: NodeAgentConfig, base: AgentBase) -> GatewayConfig | None:
    """The gateway's BIRD; None without a tunnel."""
    if not base.tunnels:
        return None
    first = base.tunnels[0]
    # Its end of the tunnel with edge number 0, whether there is one or not: another router id would drop all sessions.
    router_id = IPv4Address(int(IPv4Address(first.gateway_ipv4)) - 2 * first.edge_index)
    probes = {f"{tunnel.probe_ipv4}/32" for tunnel in base.tunnels}
    probes |= {f"{tunnel.probe_ipv6}/128" for tunnel in base.tunnels if tunnel.probe_ipv6}
    sessions = tuple(
        Session(
            name=tunnel.name,
            interface=device_name(config, tunnel),
            local=ip_address(tunnel.gateway_ipv4),
            neighbor=ip_address(tunnel.edge_ipv4),
            far_asn=tunnel.edge_asn,
        )
        for tunnel in base.tunnels
    )
    return GatewayConfig(
        router_id=router_id,
        asn=first.gateway_asn,
        sessions=sessions,
        probe_prefixes=tuple(network(text) for text in sorted(probes)),
        announce_file=config.bird.announce_file,
        hold_time_s=base.hold_time_s,
        bfd=Bfd(base.bfd_interval_ms, base.bfd_multiplier),
        local_include=config.bird.local_include,
    )


def announcements(pools: Mapping[str, NodePool]) -> Announcements:
    """What BIRD shall announce."""
    return Announcements(
        tuple(
            PoolAnnouncement(name, tuple(network(prefix) for prefix in pool.prefixes), pool.announce)
            for name, pool in sorted(pools.items())
        )
    )
