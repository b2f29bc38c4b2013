"""What an edge agent keeps on disk, and what follows from it for kernel and BIRD. Pure apart from the file itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address

from birdctl.commands import Network, network
from birdctl.render import Bfd, EdgeConfig, Session
from dataplane.model import Address, KernelState, Link, Route
from dataplane.nft_rules import EdgeRules
from dataplane.sysctl import IPV6_FORWARDING
from fsm.fence import Accepted, FenceState
from fsm.records import AgentBase, EdgePool, Tunnel
from orchestrator.config.edge_agent import EdgeAgentConfig


@dataclass(frozen=True, slots=True)
class EdgeState:
    """Written before it is acted upon: a restart with the store dead starts from here.

    `parking_key`: public key of the peer that holds, on every tunnel, what the gateway there must not send.
    """

    parking_key: str
    base: AgentBase = field(default_factory=AgentBase)
    fence: FenceState = field(default_factory=FenceState)
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Where each gateway was last heard from: given to a peer that is made anew, so that the edge can speak first."""
    kept: frozenset[str] = frozenset()
    """Gateways whose tunnels nobody speaks of any more, and that pools lead through all the same."""
    schema: int = 1


def told(state: EdgeState, base: AgentBase) -> EdgeState:
    """A new base. A tunnel that it lacks stays as long as a pool leads through it: nothing goes without a target.

    A leader whose store was emptied does not know every gateway yet; one that lets a gateway go moves its pools first.
    """
    named, slots = {tunnel.name for tunnel in base.tunnels}, {tunnel.slot for tunnel in base.tunnels}
    left = (tunnel for tunnel in state.base.tunnels if tunnel.name not in named and tunnel.slot not in slots)
    kept = tuple(tunnel for tunnel in left if tunnel.name in _carrying(state))
    whole = replace(base, tunnels=(*base.tunnels, *kept)) if kept else base
    return replace(state, base=whole, kept=frozenset(tunnel.name for tunnel in kept))


def released(state: EdgeState) -> EdgeState:
    """Without the tunnels that were kept only for pools that have left them by now."""
    idle = state.kept - _carrying(state)
    if not idle:
        return state
    tunnels = tuple(tunnel for tunnel in state.base.tunnels if tunnel.name not in idle)
    return replace(state, base=replace(state.base, tunnels=tunnels), kept=state.kept - idle)


def _carrying(state: EdgeState) -> set[str | None]:
    return {command.owner for command in commands(state).values() if not command.deleted}


def device_name(config: EdgeAgentConfig, tunnel: Tunnel) -> str:
    """The tunnel's interface on the edge."""
    return f"{config.wireguard.interface_prefix}g{tunnel.slot}"


def probe_source(tunnel: Tunnel) -> str:
    """Where an edge's probes come from: the last /24 of the tunnels' range, which no gateway's number reaches.

    Not the tunnel's own address: an answer to that would come back also where a gateway's marks are broken.
    """
    first = int(IPv4Address(tunnel.edge_ipv4)) - tunnel.slot * 256 - tunnel.edge_index * 2
    return str(IPv4Address(first + 255 * 256 + tunnel.edge_index))


def probe_source_ipv6(tunnel: Tunnel) -> str:
    """The same for IPv6: in /64 number 255 of the tunnels' range."""
    first = int(IPv6Address(tunnel.edge_ipv6)) - (tunnel.slot << 64) - tunnel.edge_index * 2
    return str(IPv6Address(first + (255 << 64) + tunnel.edge_index + 1))


def probed(tunnel: Tunnel) -> list[tuple[str, str]]:
    """(source, destination) of the probes through a tunnel: IPv4 first, then IPv6 where it is in use."""
    pairs = [(probe_source(tunnel), tunnel.probe_ipv4)]
    return [*pairs, (probe_source_ipv6(tunnel), tunnel.probe_ipv6)] if tunnel.probe_ipv6 else pairs


def by_gateway(base: AgentBase) -> dict[str, Tunnel]:
    """Tunnels by the gateway at their other end."""
    return {tunnel.name: tunnel for tunnel in base.tunnels}


def commands(state: EdgeState) -> dict[str, EdgePool]:
    """The newest command accepted for each pool."""
    return {pool: accepted.command for pool, accepted in state.fence.pools.items()}


def by_prefix(pools: Mapping[str, Accepted]) -> dict[str, list[str]]:
    """The pools that have a command for each prefix."""
    found: dict[str, list[str]] = {}
    for pool, accepted in pools.items():
        for prefix in accepted.command.prefixes:
            found.setdefault(prefix, []).append(pool)
    return found


def steering_route(config: EdgeAgentConfig, prefix: str, tunnel: Tunnel, mtu: int) -> Route:
    """The route that decides who receives a prefix."""
    return Route(prefix, config.tables.main, device_name(config, tunnel), mtu_lock=mtu)


def kernel_state(config: EdgeAgentConfig, state: EdgeState, pools: Mapping[str, EdgePool]) -> KernelState:
    """Links, addresses and routes of the edge for these pools, whose owner may be None: then they have no route."""
    mtu, tunnels = state.base.mtu, by_gateway(state.base)
    links, addresses, routes = set(), set(), set()
    sysctls = {"net.ipv4.ip_forward": "1"}
    for name, tunnel in tunnels.items():
        device = device_name(config, tunnel)
        links.add(Link(device, "wireguard", mtu, f"bgplb:{name}"))
        addresses |= {Address(device, f"{tunnel.edge_ipv4}/31"), Address(device, f"{probe_source(tunnel)}/32")}
        routes.add(Route(f"{tunnel.probe_ipv4}/32", config.tables.main, device))
        if tunnel.edge_ipv6:
            addresses |= {Address(device, f"{tunnel.edge_ipv6}/127")}
            addresses |= {Address(device, f"{probe_source_ipv6(tunnel)}/128")}
            routes.add(Route(f"{tunnel.probe_ipv6}/128", config.tables.main, device))
            sysctls[IPV6_FORWARDING] = "1"
        # Loose: while a move lingers, answers come in through a tunnel that the route no longer points at (RFC 3704).
        sysctls[f"net.ipv4.conf.{device}.rp_filter"] = "2"
    for command in pools.values():
        owner = tunnels.get(command.owner or "")
        if owner is not None:
            routes |= {steering_route(config, prefix, owner, mtu) for prefix in command.prefixes}
    return KernelState(frozenset(links), frozenset(addresses), frozenset(routes), sysctls=sysctls)


def nft_rules(config: EdgeAgentConfig, base: AgentBase) -> str | None:
    """The edge's nft table; None without a tunnel."""
    devices = tuple(sorted(device_name(config, tunnel) for tunnel in base.tunnels))
    return EdgeRules(devices, base.mtu).ruleset() if devices else None


def probe_prefixes(tunnel: Tunnel) -> tuple[Network, ...]:
    """What the gateway always announces. The IPv6 one is there from the first IPv6 pool on: it makes the channel."""
    texts = [f"{tunnel.probe_ipv4}/32"] + ([f"{tunnel.probe_ipv6}/128"] if tunnel.probe_ipv6 else [])
    return tuple(network(text) for text in texts)


def bird_config(config: EdgeAgentConfig, base: AgentBase) -> EdgeConfig | None:
    """The edge's private BIRD; None without a tunnel."""
    if not base.tunnels:
        return None
    pools = tuple(network(prefix) for prefix in base.accept)
    sessions = tuple(
        Session(
            name=tunnel.name,
            interface=device_name(config, tunnel),
            local=ip_address(tunnel.edge_ipv4),
            neighbor=ip_address(tunnel.gateway_ipv4),
            far_asn=tunnel.gateway_asn,
            accept=(*probe_prefixes(tunnel), *pools),
        )
        for tunnel in base.tunnels
    )
    first = base.tunnels[0]
    return EdgeConfig(
        router_id=IPv4Address(first.edge_ipv4),
        asn=first.edge_asn,
        sessions=sessions,
        hold_time_s=base.hold_time_s,
        bfd=Bfd(base.bfd_interval_ms, base.bfd_multiplier),
        signal_table=config.tables.signal,
        import_extra=config.bird.import_extra,
        local_include=config.bird.local_include,
    )


def own_prefixes(tunnel: Tunnel) -> frozenset[str]:
    """AllowedIPs that a gateway's peer always has: its end of the tunnel and its probe address, of each family."""
    ends = {f"{tunnel.gateway_ipv4}/32"} | ({f"{tunnel.gateway_ipv6}/128"} if tunnel.gateway_ipv6 else set())
    return frozenset(ends | {str(prefix) for prefix in probe_prefixes(tunnel)})
