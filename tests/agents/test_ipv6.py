"""Pools with an IPv6 prefix: both families in everything, one move for all of a pool, the worst word of a gateway."""

from dataclasses import replace
from pathlib import Path

import pytest

from dataplane.diff import DeleteRoute
from dataplane.model import TABLE_MAIN
from dataplane.probe import ProbeState
from dataplane.probe_window import Judgement, Word
from dataplane.sysctl import IPV6_FORWARDING
from fsm.records import AgentBase, Plan
from fsm.types import Probe, Session
from orchestrator.agents import node as node_module
from orchestrator.agents import node_state, preconditions
from orchestrator.agents.edge_state import own_prefixes, probe_source_ipv6
from orchestrator.agents.watch import GRACE_MISSES, worst
from tests.agents.edge_world import EdgeWorld, FakeProber, command
from tests.agents.fakes import base, eventually
from tests.agents.node_world import NodeWorld, node_pool

IPV4, IPV6 = "192.0.2.0/26", "2001:db8:2::/64"
BOTH = (IPV4, IPV6)


@pytest.fixture
def edge(tmp_path: Path) -> EdgeWorld:
    world = EdgeWorld(tmp_path)
    state = world.kernel.state
    world.kernel.kernel.state = replace(state, sysctls={**state.sysctls, IPV6_FORWARDING: "0"})
    return world


@pytest.fixture
def gateway(tmp_path: Path) -> NodeWorld:
    world = NodeWorld(tmp_path)
    world.sysctl(IPV6_FORWARDING, "0")
    return world


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks come often."""
    monkeypatch.setattr(node_module, "CHECK_EVERY_S", 0.05)


def edge_base() -> AgentBase:
    return base("edge", "edge-1", BOTH)


# ---- edge --------------------------------------------------------------------------------------------------------


async def test_an_edge_has_both_families_of_a_tunnel(edge: EdgeWorld) -> None:
    async with edge.running():
        edge.tell(("web", command("gw-a", 1, BOTH)), base=edge_base())
        await edge.confirmed(command("gw-a", 1, BOTH))
        await eventually(lambda: "fd78::1/128" in edge.applier.text, "BIRD's configuration")
        state = edge.kernel.state
        on_tunnel = {address.cidr for address in state.addresses if address.device == "bgplb-g0"}
        assert on_tunnel == {"10.77.0.0/31", "10.77.255.0/32", "fd77::/127", "fd77:0:0:ff::1/128"}
        routes = {(r.prefix, r.device, r.mtu_lock) for r in state.routes if r.table == TABLE_MAIN}
        assert {(IPV4, "bgplb-g0", 1280), (IPV6, "bgplb-g0", 1280), ("fd78::1/128", "bgplb-g0", None)} <= routes
        assert state.sysctls[IPV6_FORWARDING] == "1"
        own = {"10.77.0.1/32", "10.78.0.1/32", "fd77::1/128", "fd78::1/128"}
        assert edge.wireguard.allowed("bgplb-g0", "key-gw-a") == {*own, *BOTH}
        assert own_prefixes(edge_base().tunnels[0]) == own


async def test_without_ipv6_pools_an_edge_has_none_of_it(edge: EdgeWorld) -> None:
    async with edge.running():
        edge.tell(("web", command("gw-a", 1)), base=base("edge", "edge-1", (IPV4,)))
        await edge.confirmed(command("gw-a", 1))
        await eventually(lambda: "fd78" not in edge.applier.text and edge.applier.text, "BIRD's configuration")
        assert not [a for a in edge.kernel.state.addresses if ":" in a.cidr]
        assert not [r for r in edge.kernel.state.routes if r.family == "ipv6"]
        assert edge.kernel.state.sysctls[IPV6_FORWARDING] == "0"
        assert "ipv6 {" not in edge.applier.text


@pytest.mark.parametrize("planned", [False, True])
async def test_both_families_move_in_one_command(edge: EdgeWorld, planned: bool) -> None:
    async with edge.running():
        edge.tell(("web", command("gw-a", 1, BOTH)), base=edge_base())
        await edge.confirmed(command("gw-a", 1, BOTH))
        edge.tell(("web", command("gw-b", 2, BOTH, planned=planned)))
        await edge.confirmed(command("gw-b", 2, BOTH, planned=planned))
        for prefix in BOTH:
            assert edge.kernel.routes_to(prefix) == ["bgplb-g1"]
        await eventually(lambda: all(edge.senders(prefix) == {"gw-b"} for prefix in BOTH), "only gw-b may send")


@pytest.mark.parametrize("strayed", BOTH)
async def test_a_route_of_either_family_that_another_hand_moved_is_put_right(edge: EdgeWorld, strayed: str) -> None:
    async with edge.running() as agent:
        edge.tell(("web", command("gw-a", 1, BOTH)), base=edge_base())
        await edge.confirmed(command("gw-a", 1, BOTH))
        route = next(r for r in edge.kernel.state.routes if r.prefix == strayed)
        await edge.kernel.change_routes([DeleteRoute(route)])
        agent._base_wake.set()
        await eventually(lambda: edge.kernel.routes_to(strayed) == ["bgplb-g0"], "the route again")


@pytest.mark.parametrize("silent", ["10.78.0.1", "fd78::1"])
async def test_a_family_that_is_not_answered_is_its_gateways_word(edge: EdgeWorld, silent: str) -> None:
    async with edge.running() as agent:
        edge.tell(("web", command("gw-a", 1, BOTH)), base=edge_base())
        await edge.confirmed(command("gw-a", 1, BOTH))
        assert agent._watch.witness("gw-a").probe == Probe.PASSING
        FakeProber.silent = {silent}
        assert agent._watch.witness("gw-a").probe == Probe.FAILING
        assert not agent._watch.witness("gw-a").settled
        assert agent._watch.witness("gw-a").family == ("IPv6" if ":" in silent else "IPv4")
        assert (agent._watch.witness("gw-b").probe, agent._watch.witness("gw-b").family) == (Probe.PASSING, "")


async def test_a_plan_moves_both_families(edge: EdgeWorld) -> None:
    async with edge.running():
        armed = command("gw-a", 1, BOTH, plan=(Plan("gw-b", 2, 1),))
        edge.tell(("web", armed), base=edge_base())
        await edge.confirmed(armed)
        for gateway in ("gw-a", "gw-b"):
            edge.session(gateway, up=True)
        await eventually(lambda: edge.seen().gateways["gw-b"].session == Session.UP, "both sessions up", 5.0)
        FakeProber.silent = {"fd78::1"}  # one family is enough, if the session falls
        edge.session("gw-a", up=False)
        await eventually(lambda: all(edge.kernel.routes_to(p) == ["bgplb-g1"] for p in BOTH), "the plan")


async def test_ipv6_that_joins_leaves_the_probes_of_ipv4_alone(edge: EdgeWorld) -> None:
    async with edge.running() as agent:
        edge.tell(("web", command("gw-a", 1)), base=base("edge", "edge-1", (IPV4,)))
        await eventually(lambda: agent._watch.probe("gw-a"), "a probe")
        before = dict(agent._watch._probers["gw-a"])
        edge.tell(base=edge_base())
        await eventually(lambda: len(agent._watch._probers["gw-a"]) == 2, "the second probe")
        after = agent._watch._probers["gw-a"]
        assert {question: after[question] for question in before} == before
        edge.tell(base=base("edge", "edge-1", (IPV4,)))
        await eventually(lambda: len(agent._watch._probers["gw-a"]) == 1, "the second probe to go")
        assert agent._watch._probers["gw-a"] == before


# ---- gateway -----------------------------------------------------------------------------------------------------


async def test_a_gateway_has_both_families(gateway: NodeWorld) -> None:
    async with gateway.running():
        gateway.tell(("web", node_pool(True, 1, BOTH)), base=base("node", "gw-a", BOTH))
        await eventually(lambda: (r := gateway.seen()) is not None and r.ready, f"ready; lacking {gateway.failed()}")
        state = gateway.kernel.state
        assert {a.cidr for a in state.addresses if a.device == "bgplb-e0"} == {"10.77.0.1/31", "fd77::1/127"}
        assert {(r.prefix, r.table, r.device, r.mtu_lock) for r in state.routes} == {
            ("0.0.0.0/0", 10077, "bgplb-e0", 1280),
            ("::/0", 10077, "bgplb-e0", 1280),
        }
        assert {(r.family, r.priority, r.source, r.table) for r in state.rules} == {
            ("ipv4", 10077, None, 10077),
            ("ipv6", 10077, None, 10077),
            ("ipv4", 10078, IPV4, 10077),
            ("ipv6", 10078, IPV6, 10077),
        }
        assert gateway.wireguard.allowed("bgplb-e0", "key-edge") == {"0.0.0.0/0", "::/0"}
        assert gateway.kernel.ruleset is not None and '"fd78::1"' in gateway.kernel.ruleset
        assert "fd78::1/128" in gateway.applier.text
        announced = gateway.applier.announced
        assert announced is not None and {str(prefix) for prefix in announced.pools[0].prefixes} == set(BOTH)


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "in_use", "ok"),
    [
        ("1", "1", True, True),
        ("1", "0", True, False),
        ("0", "1", True, False),
        ("1", "?", True, False),
        ("1", "0", False, True),
    ],
)
def test_forwarding_is_needed_of_each_family_in_use(ipv4: str, ipv6: str, in_use: bool, ok: bool) -> None:
    found = preconditions.forwarding({"net.ipv4.ip_forward": ipv4, IPV6_FORWARDING: ipv6}, in_use)
    assert found.ok is ok
    assert (f"{IPV6_FORWARDING} = {ipv6}" in found.detail) is in_use


async def test_without_ipv6_pools_a_gateway_has_none_of_it(gateway: NodeWorld) -> None:
    async with gateway.running():
        gateway.tell(("web", node_pool(True, 1)), base=base("node", "gw-a", (IPV4,)))
        await eventually(lambda: (r := gateway.seen()) is not None and r.ready, f"ready; lacking {gateway.failed()}")
        assert not [a for a in gateway.kernel.state.addresses if ":" in a.cidr]
        assert gateway.kernel.state.sysctls[IPV6_FORWARDING] == "0"
        assert gateway.wireguard.allowed("bgplb-e0", "key-edge") == {"0.0.0.0/0"}
        assert "ipv6 {" not in gateway.applier.text


def test_an_edge_that_is_reached_over_ipv6() -> None:
    tunnel = base("node", "gw-a", BOTH).tunnels[0]
    assert node_state.endpoint(tunnel) == "203.0.113.1:51820"
    assert node_state.endpoint(replace(tunnel, endpoint="2001:db8::1")) == "[2001:db8::1]:51820"


def test_probes_come_from_beyond_all_tunnels() -> None:
    sources = {probe_source_ipv6(tunnel) for tunnel in edge_base().tunnels}
    assert sources == {"fd77:0:0:ff::1"}


# ---- one word from two probes ------------------------------------------------------------------------------------


def state(word: Word, missed: int = 0, good: int = 60, answered_s: float | None = 5.0) -> ProbeState:
    full_size = "passing" if word in ("passing", "doubtful") else "failing"
    return ProbeState(Judgement(word, missed, good, good >= 50, answered_s, 0.001), full_size, 0)  # type: ignore[arg-type]


PASSING, DOUBTFUL = state("passing"), state("doubtful", missed=1)
FAILING = state("failing", missed=5, good=0, answered_s=3.0)
NEW = state("failing", missed=7, good=0, answered_s=None)
NEVER = state("failing", missed=GRACE_MISSES, good=0, answered_s=None)


@pytest.mark.parametrize("one", [PASSING, DOUBTFUL, FAILING, NEW])
def test_a_single_family_speaks_for_itself(one: ProbeState) -> None:
    assert worst([one]) == one


@pytest.mark.parametrize(("better", "worse"), [(PASSING, DOUBTFUL), (PASSING, FAILING), (DOUBTFUL, FAILING)])
def test_the_worst_word_counts(better: ProbeState, worse: ProbeState) -> None:
    for both in ([better, worse], [worse, better]):
        found = worst(both)
        assert (found.word, found.judgement.missed) == (worse.word, worse.judgement.missed)
        assert found.full_size == worse.full_size


def test_an_outage_begins_with_the_first_family_that_is_silent() -> None:
    assert worst([PASSING, FAILING]).judgement.last_answered_s == 3.0


def test_ipv6_that_is_being_set_up_moves_nothing_and_settles_nothing() -> None:
    found = worst([PASSING, NEW])
    assert (found.word, found.judgement.missed, found.full_size) == ("passing", 0, "passing")
    assert not found.judgement.settled


def test_ipv6_that_never_comes_counts_in_the_end() -> None:
    assert worst([PASSING, NEVER]).word == "failing"


def test_ipv4_has_no_such_grace() -> None:
    assert worst([NEW, PASSING]).word == "failing"
