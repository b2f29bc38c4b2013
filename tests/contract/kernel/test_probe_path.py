"""A packet's whole way: edge, WireGuard, gateway, translated probe address, responder, and back by the mark."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dataplane.diff import Op, SetLink
from dataplane.icmp import EchoSocket
from dataplane.kernel import converge
from dataplane.model import KernelState, Link
from dataplane.namespace import entered
from dataplane.netlink import Netlink
from dataplane.probe import Prober, ProbeState
from dataplane.probe_namespace import ProbeNamespace
from orchestrator.clock import BootClock
from tests.contract.kernel.conftest import eventually, inside, ip, need, unique
from tests.contract.kernel.tunnel_path import (
    EDGE_SOURCE,
    FROM_TO,
    MTU,
    PROBE_ADDRESS,
    TunnelPath,
    echo,
    tunnel_path,
    warm,
)


@pytest.fixture
async def path(make_namespace: Callable[[], str], tmp_path: Path) -> AsyncIterator[TunnelPath]:
    async with tunnel_path(make_namespace, tmp_path) as made:
        yield made


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
    path: TunnelPath, sabotage: Callable[[KernelState], KernelState], version: int
) -> None:
    await warm(path, version)
    assert await echo(path, version=version) == 10
    await converge(path.gateway_kernel, sabotage(path.gateway_state()), [254, 10077])
    assert await echo(path, version=version) == 0
    await converge(path.gateway_kernel, path.gateway_state(), [254, 10077])
    assert await echo(path, version=version) == 10


async def test_a_second_pass_changes_nothing(path: TunnelPath) -> None:
    await path.responder.ensure(path.gateway_kernel.netlink)
    assert await converge(path.gateway_kernel, path.gateway_state(), [254, 10077]) == ()
    assert await converge(path.edge_kernel, path.edge_state(), [254]) == ()


@pytest.mark.parametrize("version", [4, 6])
async def test_the_prober_says_passing_then_failing_then_passing(path: TunnelPath, version: int) -> None:
    source, to = FROM_TO[version]
    await warm(path, version)
    clock = BootClock()
    told: list[ProbeState] = []
    prober = Prober(path.edge_device, source, to, 20, clock, told.append, mtu=MTU, namespace=path.edge)
    prober.start()
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
        prober.close()


async def test_a_narrow_path_fails_only_the_full_size_probe(path: TunnelPath) -> None:
    """And it is told, though every small question is answered before its answer is due."""
    await warm(path)
    told: list[ProbeState] = []
    prober = Prober(path.edge_device, EDGE_SOURCE, PROBE_ADDRESS, 20, BootClock(), told.append, MTU, path.edge)
    prober.start()
    try:
        await eventually(lambda: told and told[-1].judgement.settled and told[-1].full_size == "passing", "all is well")
        ip("-n", path.gateway, "link", "set", path.responder.host_device, "mtu", "1000")
        await eventually(lambda: told[-1].full_size == "failing", "full size failing")
        assert prober.evaluate().word == "passing"
    finally:
        prober.close()


async def test_a_flow_from_before_the_rules_is_answered_once_they_are_there(path: TunnelPath) -> None:
    """Tracked without mark and translation, and kept alive by the questions themselves: must not stay lost."""
    await warm(path)
    await path.gateway_kernel.nft.apply(None)
    prober = Prober(path.edge_device, EDGE_SOURCE, PROBE_ADDRESS, 20, BootClock(), lambda _: None, MTU, path.edge)
    prober.start()
    try:
        await eventually(lambda: prober.evaluate().word == "failing", "failing without rules")
        await path.gateway_kernel.nft.apply(path.gateway_rules().ruleset())
        await eventually(lambda: prober.evaluate().word == "passing", "passing once the rules are there")
    finally:
        prober.close()


SERVICE = "192.0.2.10"


def service(path: TunnelPath) -> None:
    """A service as kube-proxy makes it, in a table that is not ours: translated to a pod behind the gateway."""
    pod = path.responder.inside_address(4)
    for command in (
        ("add", "table", "ip", "proxy"),
        ("add", "chain", "ip", "proxy", "pre", "{ type nat hook prerouting priority dstnat; }"),
        ("add", "rule", "ip", "proxy", "pre", "ip", "daddr", SERVICE, "dnat", "to", pod),
    ):
        done = inside(path.gateway, "nft", *command)
        assert done.returncode == 0, done.stderr


async def test_a_connection_from_before_the_rules_is_marked_by_its_next_packet(path: TunnelPath) -> None:
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


def server_side_mss(path: TunnelPath, client: str) -> int:
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
    path: TunnelPath, make_namespace: Callable[[], str]
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


async def test_a_responder_that_is_right_is_only_looked_at(
    make_namespace: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ip")
    netlink = Netlink(make_namespace())
    responder = ProbeNamespace(name=unique("pr"))
    written: list[object] = []
    real = Netlink._perform

    async def recorded(self: Netlink, op: Op) -> None:
        written.append(op)
        await real(self, op)

    monkeypatch.setattr(Netlink, "_perform", recorded)
    try:
        await responder.ensure(netlink)
        assert written
        written.clear()
        await responder.ensure(netlink)
        assert written == []
        inside = Netlink(responder.name)
        await inside.apply([SetLink(Link(responder.inside_device, "veth", 1500, "", up=True))])
        written.clear()
        await responder.ensure(netlink)
        assert [type(op) for op in written] == [SetLink], "the alias that says that it is ours"
        await inside.close()
    finally:
        await responder.remove(netlink)
        await netlink.close()


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
