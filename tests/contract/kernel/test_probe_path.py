"""A packet's whole way: edge, WireGuard, gateway, translated probe address, responder, and back by the mark."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dataplane.icmp import EchoSocket
from dataplane.kernel import LinuxKernel, converge
from dataplane.keys import ensure_private_key
from dataplane.model import Address, KernelState, Link, Route, Rule
from dataplane.netlink import Netlink
from dataplane.nft_rules import EdgeRules, GatewayRules, Tunnel
from dataplane.probe import Prober, ProbeState
from dataplane.probe_namespace import ProbeNamespace
from dataplane.wireguard import PeerUpdate
from dataplane.wireguard_uapi import UserspaceWireGuard
from tests.contract.kernel.conftest import BoottimeClock, eventually, inside, ip, need, unique

EDGE_SOURCE = "203.0.113.1"
PROBE_ADDRESS = "10.78.0.1"
POOL = "192.0.2.0/26"
MARK, MASK = 0x1000, 0xF000
MTU = 1280


@dataclass
class Path_:
    """One edge and one gateway, joined by an underlay and a tunnel."""

    edge: str
    gateway: str
    edge_device: str
    gateway_device: str
    edge_kernel: LinuxKernel
    gateway_kernel: LinuxKernel
    edge_wireguard: UserspaceWireGuard
    gateway_wireguard: UserspaceWireGuard
    gateway_key: str
    responder: ProbeNamespace

    def gateway_rules(self) -> GatewayRules:
        inner = self.responder.inside[0].split("/")[0]
        return GatewayRules((Tunnel(self.gateway_device, MARK),), MASK, MTU, {PROBE_ADDRESS: inner})

    def gateway_state(self) -> KernelState:
        tunnel = Link(self.gateway_device, "wireguard", MTU, "bgplb:edge-1")
        return KernelState(
            links=frozenset({tunnel, self.responder.host_link}),
            addresses=frozenset({Address(self.gateway_device, "10.77.0.1/31"), *self.responder.host_addresses}),
            routes=frozenset({Route("0.0.0.0/0", 10077, self.gateway_device, mtu_lock=MTU)}),
            rules=frozenset(
                {
                    Rule("ipv4", 10077, 10077, source=POOL),
                    Rule("ipv4", 10078, 10077, fwmark=MARK, fwmask=MASK),
                }
            ),
            sysctls={"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.rp_filter": "0"},
            nft=self.gateway_rules().ruleset(),
        )

    def edge_state(self) -> KernelState:
        return KernelState(
            links=frozenset({Link(self.edge_device, "wireguard", MTU, "bgplb:gw-a")}),
            addresses=frozenset({Address(self.edge_device, "10.77.0.0/31")}),
            routes=frozenset(
                {
                    Route(f"{PROBE_ADDRESS}/32", 254, self.edge_device),
                    Route(POOL, 254, self.edge_device, mtu_lock=MTU),
                }
            ),
            sysctls={"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.rp_filter": "0"},
            nft=EdgeRules((self.edge_device,), MTU).ruleset(),
        )


@pytest.fixture
async def path(make_namespace: Callable[[], str], tmp_path: Path) -> AsyncIterator[Path_]:
    need("wireguard-go", "nft", "ip")
    edge, gateway = make_namespace(), make_namespace()
    ip("-n", edge, "link", "add", "u0", "type", "veth", "peer", "name", "u0", "netns", gateway)
    for namespace, address in ((edge, "203.0.113.5/30"), (gateway, "203.0.113.6/30")):
        ip("-n", namespace, "addr", "add", address, "dev", "u0")
        ip("-n", namespace, "link", "set", "u0", "up")
        for parameter in ("all", "default", "u0"):
            inside(namespace, "sysctl", "-qw", f"net.ipv4.conf.{parameter}.rp_filter=0")
    ip("-n", edge, "addr", "add", f"{EDGE_SOURCE}/32", "dev", "lo")
    ip("-n", gateway, "route", "add", "default", "via", "203.0.113.5")
    edge_key, gateway_key = tmp_path / "edge.key", tmp_path / "gateway.key"
    edge_public, gateway_public = ensure_private_key(edge_key).public, ensure_private_key(gateway_key).public
    edge_device, gateway_device = unique("g"), unique("e")
    edge_kernel, gateway_kernel = LinuxKernel.of(edge), LinuxKernel.of(gateway)
    edge_wireguard = UserspaceWireGuard(edge_kernel.netlink, edge)
    gateway_wireguard = UserspaceWireGuard(gateway_kernel.netlink, gateway)
    responder = ProbeNamespace(name=unique("pr"))
    made = Path_(
        edge, gateway, edge_device, gateway_device, edge_kernel, gateway_kernel, edge_wireguard, gateway_wireguard,
        gateway_public, responder,
    )  # fmt: skip
    try:
        await edge_wireguard.ensure_device(edge_device, edge_key, 51820, MTU, "bgplb:gw-a")
        await gateway_wireguard.ensure_device(gateway_device, gateway_key, None, MTU, "bgplb:edge-1")
        allowed = frozenset({"10.77.0.1/32", f"{PROBE_ADDRESS}/32", POOL})
        await edge_wireguard.update(edge_device, [PeerUpdate(gateway_public, allowed)])
        peer = PeerUpdate(edge_public, frozenset({"0.0.0.0/0"}), endpoint="203.0.113.5:51820", keepalive_s=1)
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


async def echo(path: Path_, count: int = 10) -> int:
    """How many of `count` echo requests from the edge's own address through the tunnel are answered."""
    answered: set[int] = set()
    sock = EchoSocket(EDGE_SOURCE, PROBE_ADDRESS, path.edge_device, path.edge)
    try:
        for number in range(count):
            sock.send(PROBE_ADDRESS, number)
            await asyncio.sleep(0.02)
        for _ in range(25):
            sock.receive(lambda number, _: answered.add(number))
            if len(answered) == count:
                break
            await asyncio.sleep(0.02)
    finally:
        sock.close()
    return len(answered)


async def warm(path: Path_) -> None:
    """Wait for the first handshake."""
    for _ in range(30):
        if await echo(path, 2):
            return
    raise AssertionError("no answer through the tunnel in 30 attempts")


async def test_all_come_back_by_the_mark_and_none_without_it(path: Path_) -> None:
    await warm(path)
    assert await echo(path) == 10
    wanted = path.gateway_state()
    sabotaged = replace(wanted, rules=frozenset(rule for rule in wanted.rules if rule.fwmark is None))
    await converge(path.gateway_kernel, sabotaged, [254, 10077])
    assert await echo(path) == 0
    await converge(path.gateway_kernel, path.gateway_state(), [254, 10077])
    assert await echo(path) == 10


async def test_a_second_pass_changes_nothing(path: Path_) -> None:
    await path.responder.ensure(path.gateway_kernel.netlink)
    assert await converge(path.gateway_kernel, path.gateway_state(), [254, 10077]) == ()
    assert await converge(path.edge_kernel, path.edge_state(), [254]) == ()


async def test_the_prober_says_passing_then_failing_then_passing(path: Path_) -> None:
    await warm(path)
    clock = BoottimeClock()
    told: list[ProbeState] = []
    prober = Prober(path.edge_device, EDGE_SOURCE, PROBE_ADDRESS, 20, clock, told.append, mtu=MTU, namespace=path.edge)
    task = asyncio.create_task(prober.run())
    try:
        await eventually(lambda: prober.evaluate().judgement.settled, "50 answers in a row")
        await eventually(lambda: prober.evaluate().full_size == "passing", "a full-size answer")
        ip("-n", path.gateway, "link", "set", "u0", "down")
        cut = clock.now()
        await eventually(lambda: prober.evaluate().word == "failing", "failing after the cut")
        last = prober.evaluate().judgement.last_answered_s
        assert last is not None and last <= cut + 0.5
        ip("-n", path.gateway, "link", "set", "u0", "up")
        ip("-n", path.gateway, "route", "replace", "default", "via", "203.0.113.5")
        await eventually(lambda: prober.evaluate().word == "passing", "passing after the repair", 20)
        words = [state.word for state in told if state.word in ("passing", "failing")]
        assert [word for word, before in zip(words, [None, *words], strict=False) if word != before] == [
            "passing",
            "failing",
            "passing",
        ]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_narrow_path_fails_only_the_full_size_probe(path: Path_) -> None:
    await warm(path)
    ip("-n", path.gateway, "link", "set", path.responder.host_device, "mtu", "1000")
    prober = Prober(path.edge_device, EDGE_SOURCE, PROBE_ADDRESS, 20, BoottimeClock(), lambda _: None, MTU, path.edge)
    task = asyncio.create_task(prober.run())
    try:
        await eventually(lambda: prober.evaluate().full_size == "failing", "full size failing")
        assert prober.evaluate().word == "passing"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_flow_from_before_the_rules_is_answered_once_they_are_there(path: Path_) -> None:
    """Tracked without mark and translation, and kept alive by the questions themselves: must not stay lost."""
    await warm(path)
    await path.gateway_kernel.nft.apply(None)
    prober = Prober(path.edge_device, EDGE_SOURCE, PROBE_ADDRESS, 20, BoottimeClock(), lambda _: None, MTU, path.edge)
    task = asyncio.create_task(prober.run())
    try:
        await eventually(lambda: prober.evaluate().word == "failing", "failing without rules")
        await path.gateway_kernel.nft.apply(path.gateway_rules().ruleset())
        await eventually(lambda: prober.evaluate().word == "passing", "passing once the rules are there")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_removal_leaves_the_host_as_it_was(make_namespace: Callable[[], str]) -> None:
    need("ip")
    host = make_namespace()
    netlink = Netlink(host)
    before = ip("-n", host, "link", "show")
    responder = ProbeNamespace(name=unique("pr"))
    try:
        await responder.ensure(netlink)
        await responder.ensure(netlink)
    finally:
        await responder.remove(netlink)
    await responder.remove(netlink)
    assert ip("-n", host, "link", "show") == before
    assert responder.name not in ip("netns", "list")
    await netlink.close()
