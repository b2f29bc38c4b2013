"""A way for packets: edge, WireGuard, gateway, and a namespace behind it that answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dataplane.icmp import EchoSocket
from dataplane.kernel import LinuxKernel, converge
from dataplane.keys import ensure_private_key
from dataplane.model import Address, KernelState, Link, Route, Rule
from dataplane.nft_rules import EdgeRules, GatewayRules, Tunnel
from dataplane.probe_namespace import ProbeNamespace
from dataplane.sysctl import IPV6_FORWARDING
from dataplane.wireguard import PeerUpdate, WireGuard
from dataplane.wireguard_kernel import KernelWireGuard, kernel_has_wireguard
from dataplane.wireguard_uapi import UserspaceWireGuard
from tests.contract.kernel.conftest import inside, ip, need, unique

EDGE_SOURCE = "203.0.113.1"
PROBE_ADDRESS = "10.78.0.1"
FROM_TO = {4: (EDGE_SOURCE, PROBE_ADDRESS), 6: ("2001:db8:113::1", "fd78::1")}
POOL, POOL_6 = "192.0.2.0/26", "2001:db8:2::/64"
MARK, MASK = 0x1000, 0xF000
MTU = 1280
SYSCTLS = {"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.rp_filter": "0", IPV6_FORWARDING: "1"}


@dataclass
class TunnelPath:
    """One edge and one gateway, joined by an underlay and a tunnel."""

    edge: str
    gateway: str
    edge_device: str
    gateway_device: str
    edge_kernel: LinuxKernel
    gateway_kernel: LinuxKernel
    edge_wireguard: WireGuard
    gateway_wireguard: WireGuard
    gateway_key: str
    responder: ProbeNamespace

    def gateway_rules(self) -> GatewayRules:
        probe = {to: self.responder.inside_address(version) for version, (_, to) in FROM_TO.items()}
        return GatewayRules((Tunnel(self.gateway_device, MARK),), MASK, MTU, probe)

    def gateway_state(self) -> KernelState:
        tunnel = Link(self.gateway_device, "wireguard", MTU, "bgplb:edge-1")
        return KernelState(
            links=frozenset({tunnel, self.responder.host_link}),
            addresses=frozenset(
                {
                    Address(self.gateway_device, "10.77.0.1/31"),
                    Address(self.gateway_device, "fd77::1/127"),
                    *self.responder.host_addresses,
                }
            ),
            routes=frozenset(
                {
                    Route("0.0.0.0/0", 10077, self.gateway_device, mtu_lock=MTU),
                    Route("::/0", 10077, self.gateway_device, mtu_lock=MTU),
                }
            ),
            rules=frozenset(
                {
                    Rule("ipv4", 10077, 10077, fwmark=MARK, fwmask=MASK),
                    Rule("ipv4", 10078, 10077, source=POOL),
                    Rule("ipv6", 10077, 10077, fwmark=MARK, fwmask=MASK),
                    Rule("ipv6", 10078, 10077, source=POOL_6),
                }
            ),
            sysctls=SYSCTLS,
            nft=self.gateway_rules().ruleset(),
        )

    def edge_state(self) -> KernelState:
        return KernelState(
            links=frozenset({Link(self.edge_device, "wireguard", MTU, "bgplb:gw-a")}),
            addresses=frozenset({Address(self.edge_device, "10.77.0.0/31"), Address(self.edge_device, "fd77::/127")}),
            routes=frozenset(
                {
                    Route(f"{PROBE_ADDRESS}/32", 254, self.edge_device),
                    Route("fd78::1/128", 254, self.edge_device),
                    Route(POOL, 254, self.edge_device, mtu_lock=MTU),
                    Route(POOL_6, 254, self.edge_device, mtu_lock=MTU),
                }
            ),
            sysctls=SYSCTLS,
            nft=EdgeRules((self.edge_device,), MTU).ruleset(),
        )


@asynccontextmanager
async def tunnel_path(make_namespace: Callable[[], str], tmp_path: Path) -> AsyncIterator[TunnelPath]:
    """Make it; removed at the end of the block."""
    need("wireguard-go", "nft", "ip")
    edge, gateway = make_namespace(), make_namespace()
    ip("-n", edge, "link", "add", "u0", "type", "veth", "peer", "name", "u0", "netns", gateway)
    for namespace, address in ((edge, "203.0.113.5/30"), (gateway, "203.0.113.6/30")):
        ip("-n", namespace, "addr", "add", address, "dev", "u0")
        ip("-n", namespace, "link", "set", "u0", "up")
        for parameter in ("all", "default", "u0"):
            inside(namespace, "sysctl", "-qw", f"net.ipv4.conf.{parameter}.rp_filter=0")
    for address in (f"{EDGE_SOURCE}/32", f"{FROM_TO[6][0]}/128"):
        ip("-n", edge, "addr", "add", address, "dev", "lo")
    ip("-n", gateway, "route", "add", "default", "via", "203.0.113.5")
    edge_key, gateway_key = tmp_path / "edge.key", tmp_path / "gateway.key"
    edge_public, gateway_public = ensure_private_key(edge_key).public, ensure_private_key(gateway_key).public
    edge_device, gateway_device = unique("g"), unique("e")
    edge_kernel, gateway_kernel = LinuxKernel.of(edge), LinuxKernel.of(gateway)
    # The kernel's WireGuard where there is one, as agents choose by default.
    backend = KernelWireGuard if await kernel_has_wireguard(edge_kernel.netlink, unique("wt")) else UserspaceWireGuard
    edge_wireguard, gateway_wireguard = backend(edge_kernel.netlink, edge), backend(gateway_kernel.netlink, gateway)
    responder = ProbeNamespace(name=unique("pr")).with_ipv6()
    made = TunnelPath(
        edge, gateway, edge_device, gateway_device, edge_kernel, gateway_kernel, edge_wireguard, gateway_wireguard,
        gateway_public, responder,
    )  # fmt: skip
    try:
        await edge_wireguard.ensure_device(edge_device, edge_key, 51820, MTU, "bgplb:gw-a")
        await gateway_wireguard.ensure_device(gateway_device, gateway_key, None, MTU, "bgplb:edge-1")
        allowed = frozenset({"10.77.0.1/32", f"{PROBE_ADDRESS}/32", POOL, "fd77::1/128", "fd78::1/128", POOL_6})
        await edge_wireguard.update(edge_device, [PeerUpdate(gateway_public, allowed)])
        peer = PeerUpdate(edge_public, frozenset({"0.0.0.0/0", "::/0"}), endpoint="203.0.113.5:51820", keepalive_s=1)
        await gateway_wireguard.update(gateway_device, [peer])
        await responder.ensure(gateway_kernel.netlink)
        assert await converge(gateway_kernel, made.gateway_state(), [254, 10077])
        assert await converge(edge_kernel, made.edge_state(), [254])
        yield made
    finally:
        await responder.remove(gateway_kernel.netlink)
        for wireguard, kernel in ((edge_wireguard, edge_kernel), (gateway_wireguard, gateway_kernel)):
            await wireguard.close()
            await kernel.close()


async def echo(path: TunnelPath, count: int = 10, version: int = 4) -> int:
    """How many of `count` echo requests from the edge's own address through the tunnel are answered."""
    answered: set[int] = set()
    source, to = FROM_TO[version]
    sock = EchoSocket(source, to, path.edge_device, path.edge)
    try:
        for number in range(count):
            sock.send(to, number)
            await asyncio.sleep(0.02)
        for _ in range(25):
            sock.receive(lambda number, _: answered.add(number))
            if len(answered) == count:
                break
            await asyncio.sleep(0.02)
    finally:
        sock.close()
    return len(answered)


async def warm(path: TunnelPath, version: int = 4) -> None:
    """Wait for the first handshake, and with IPv6 until the veth's link-local address may be used (RFC 4862)."""
    for _ in range(30):
        if await echo(path, 2, version) == 2:
            return
    raise AssertionError("no answer through the tunnel in 30 attempts")
