"""A packet's whole way: edge, WireGuard, gateway, translated probe address, responder, and back by the mark."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dataplane.icmp import EchoSocket
from dataplane.kernel import LinuxKernel, converge
from dataplane.keys import ensure_private_key
from dataplane.model import Address, KernelState, Link, Route, Rule
from dataplane.namespace import entered
from dataplane.netlink import Netlink
from dataplane.nft_rules import EdgeRules, GatewayRules, Tunnel
from dataplane.probe import Prober, ProbeState
from dataplane.probe_namespace import ProbeNamespace
from dataplane.sysctl import IPV6_FORWARDING
from dataplane.wireguard import PeerUpdate
from dataplane.wireguard_uapi import UserspaceWireGuard
from tests.contract.kernel.conftest import BoottimeClock, eventually, inside, ip, need, unique

EDGE_SOURCE = "203.0.113.1"
PROBE_ADDRESS = "10.78.0.1"
FROM_TO = {4: (EDGE_SOURCE, PROBE_ADDRESS), 6: ("2001:db8:113::1", "fd78::1")}
POOL, POOL_6 = "192.0.2.0/26", "2001:db8:2::/64"
MARK, MASK = 0x1000, 0xF000
MTU = 1280
SYSCTLS = {"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.rp_filter": "0", IPV6_FORWARDING: "1"}


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
    for address in (f"{EDGE_SOURCE}/32", f"{FROM_TO[6][0]}/128"):
        ip("-n", edge, "addr", "add", address, "dev", "lo")
    ip("-n", gateway, "route", "add", "default", "via", "203.0.113.5")
    edge_key, gateway_key = tmp_path / "edge.key", tmp_path / "gateway.key"
    edge_public, gateway_public = ensure_private_key(edge_key).public, ensure_private_key(gateway_key).public
    edge_device, gateway_device = unique("g"), unique("e")
    edge_kernel, gateway_kernel = LinuxKernel.of(edge), LinuxKernel.of(gateway)
    edge_wireguard = UserspaceWireGuard(edge_kernel.netlink, edge)
    gateway_wireguard = UserspaceWireGuard(gateway_kernel.netlink, gateway)
    responder = ProbeNamespace(name=unique("pr")).with_ipv6()
    made = Path_(
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


async def echo(path: Path_, count: int = 10, version: int = 4) -> int:
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


async def warm(path: Path_, version: int = 4) -> None:
    """Wait for the first handshake, and with IPv6 until the veth's link-local address may be used (RFC 4862)."""
    for _ in range(30):
        if await echo(path, 2, version) == 2:
            return
    raise AssertionError("no answer through the tunnel in 30 attempts")


def without_rule(wanted: KernelState) -> KernelState:
    """The policy rule that reads the mark is gone; the source rule stays."""
    return replace(wanted, rules=frozenset(rule for rule in wanted.rules if rule.fwmark is None))


def without_mark(wanted: KernelState) -> KernelState:
    """The nftables rules of the chain that marks connections and answers are gone."""
    ruleset = json.loads(wanted.nft or "")
    kept = [item for item in ruleset["nftables"] if item.get("rule", {}).get("chain") != "prerouting"]
    return replace(wanted, nft=json.dumps({"nftables": kept}))


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("sabotage", [without_rule, without_mark])
async def test_all_come_back_by_the_mark_and_none_without_it(
    path: Path_, sabotage: Callable[[KernelState], KernelState], version: int
) -> None:
    await warm(path, version)
    assert await echo(path, version=version) == 10
    await converge(path.gateway_kernel, sabotage(path.gateway_state()), [254, 10077])
    assert await echo(path, version=version) == 0
    await converge(path.gateway_kernel, path.gateway_state(), [254, 10077])
    assert await echo(path, version=version) == 10


async def test_a_second_pass_changes_nothing(path: Path_) -> None:
    await path.responder.ensure(path.gateway_kernel.netlink)
    assert await converge(path.gateway_kernel, path.gateway_state(), [254, 10077]) == ()
    assert await converge(path.edge_kernel, path.edge_state(), [254]) == ()


@pytest.mark.parametrize("version", [4, 6])
async def test_the_prober_says_passing_then_failing_then_passing(path: Path_, version: int) -> None:
    source, to = FROM_TO[version]
    await warm(path, version)
    clock = BoottimeClock()
    told: list[ProbeState] = []
    prober = Prober(path.edge_device, source, to, 20, clock, told.append, mtu=MTU, namespace=path.edge)
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


SERVICE = "192.0.2.10"


def service(path: Path_) -> None:
    """A service as kube-proxy makes it, in a table that is not ours: translated to a pod behind the gateway."""
    pod = path.responder.inside_address(4)
    for command in (
        ("add", "table", "ip", "proxy"),
        ("add", "chain", "ip", "proxy", "pre", "{ type nat hook prerouting priority dstnat; }"),
        ("add", "rule", "ip", "proxy", "pre", "ip", "daddr", SERVICE, "dnat", "to", pod),
    ):
        done = inside(path.gateway, "nft", *command)
        assert done.returncode == 0, done.stderr


async def test_a_connection_from_before_the_rules_is_marked_by_its_next_packet(path: Path_) -> None:
    """An agent that starts on a gateway in use must not wait for new connections."""
    await warm(path)
    service(path)
    await path.gateway_kernel.nft.apply(None)
    flow = EchoSocket(EDGE_SOURCE, SERVICE, path.edge_device, path.edge)  # one identifier: one connection
    answers: list[int] = []
    try:
        for number in range(5):
            flow.send(SERVICE, number)
            await asyncio.sleep(0.05)
        flow.receive(lambda number, _: answers.append(number))
        assert answers == []
        await path.gateway_kernel.nft.apply(path.gateway_rules().ruleset())

        def answered() -> bool:
            flow.send(SERVICE, 100 + len(answers))
            flow.receive(lambda number, _: answers.append(number))
            return bool(answers)

        await eventually(answered, "an answer in the old connection")
    finally:
        flow.close()


def server_side_mss(path: Path_, client: str) -> int:
    """What MSS a pod behind the gateway uses towards a client behind the edge, both on 1500-byte links."""
    with entered(path.responder.name):
        listener = socket.create_server((path.responder.inside_address(4), 8080))
    with entered(client):
        outgoing = socket.socket()
    with listener, outgoing:
        listener.settimeout(5)
        outgoing.settimeout(5)
        outgoing.connect((SERVICE, 8080))
        accepted, _ = listener.accept()
        with accepted:
            return accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


async def test_mss_is_clamped_for_connections_through_the_tunnel(
    path: Path_, make_namespace: Callable[[], str]
) -> None:
    await warm(path)
    service(path)
    client = make_namespace()
    ip("-n", client, "link", "add", "c0", "type", "veth", "peer", "name", "c0", "netns", path.edge)
    for namespace, address in ((client, "198.51.100.2/24"), (path.edge, "198.51.100.1/24")):
        ip("-n", namespace, "addr", "add", address, "dev", "c0")
        ip("-n", namespace, "link", "set", "c0", "up")
    ip("-n", client, "route", "add", "default", "via", "198.51.100.1")
    inside(path.edge, "sysctl", "-qw", "net.ipv4.conf.c0.rp_filter=0")
    assert server_side_mss(path, client) <= MTU - 40
    await path.edge_kernel.nft.apply(None)
    assert server_side_mss(path, client) <= MTU - 40, "the gateway's own clamp is enough"
    unclamped = replace(path.gateway_rules(), mtu=1500)
    await path.gateway_kernel.nft.apply(unclamped.ruleset())
    assert server_side_mss(path, client) > MTU - 40, "without any clamp the test would see more"


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
