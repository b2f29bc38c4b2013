"""What agents are told: the projection of each state, tunnels, slots and addresses."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from fsm.desired import (
    MAX_EDGES,
    MAX_GATEWAYS,
    agent_bases,
    allocate,
    announcers,
    edge_pool,
    pool_desired,
    tunnel_addresses,
    tunnel_ipv6_addresses,
)
from fsm.records import EdgePool, Identity, NodePool, Plan, PoolRecord, Tunnel
from fsm.types import PoolState
from orchestrator.agents.edge_state import probe_source, probe_source_ipv6
from tests.fsm.test_table import record_in
from tests.fsm.world import PREFIXES, ModelWorld

S = PoolState
WORLD = ModelWorld(gateways=("gw-a", "gw-b", "gw-c"), edges=("edge-1", "edge-2"))
GROUP, SPEC = WORLD.group, WORLD.spec
SWITCHED = {"switched": True}

# state, changes, whom the edge points at, under which epoch, planned, who announces
PROJECTIONS = [
    (S.ACTIVE_HEALTHY, {}, "gw-a", 5, False, {"gw-a"}),
    (S.ACTIVE_HEALTHY, SWITCHED, "gw-a", 5, True, {"gw-a"}),
    (S.FAILURE_DETECTED, {}, "gw-b", 5, False, {"gw-b"}),
    (S.WITHDRAWN, {}, "gw-b", 5, False, {"gw-b"}),
    (S.WITHDRAWN, {"owner": None}, "gw-b", 5, False, {"gw-b"}),
    (S.DRAINING, {}, "gw-a", 3, False, {"gw-a", "gw-b"}),
    (S.DRAINING, SWITCHED, "gw-b", 5, True, {"gw-a", "gw-b"}),
    (S.PEER_UPDATED, {}, "gw-a", 5, False, {"gw-a"}),
    (S.STANDBY_ADVERTISING, {}, "gw-a", 5, False, {"gw-a"}),
    (S.STRANDED, {}, "gw-a", 5, False, {"gw-a"}),
    (S.HELD, {}, "gw-a", 5, False, {"gw-a"}),
    (S.IDLE, {}, "gw-a", 5, False, set()),
    (S.HELD, {"announce": False}, "gw-a", 5, False, set()),
    (S.DRAINING, {"announce": False}, "gw-a", 3, False, set()),
]


@pytest.mark.parametrize(("state", "changes", "owner", "epoch", "planned", "told"), PROJECTIONS)
def test_projection(
    state: str, changes: dict[str, object], owner: str, epoch: int, planned: bool, told: set[str]
) -> None:
    record = replace(record_in(state), **changes)  # type: ignore[arg-type]
    armed = record.plan if state in (S.ACTIVE_HEALTHY, S.IDLE, S.STRANDED) else ()
    assert edge_pool(record, SPEC) == EdgePool(PREFIXES, owner, epoch, planned, armed)
    assert announcers(record) == told
    wanted = pool_desired(record, SPEC, GROUP)
    assert wanted["edge", "edge-1"] == wanted["edge", "edge-2"] == replace(edge_pool(record, SPEC), plan=())
    for gateway in GROUP.gateways:
        assert wanted["node", gateway] == NodePool(PREFIXES, gateway in told, 5)


def test_every_state_is_projected() -> None:
    assert {p[0] for p in PROJECTIONS} | {S.PENDING, S.TERMINATING} == set(S)


def test_pending_tells_edges_nothing() -> None:
    wanted = pool_desired(record_in(S.PENDING), SPEC, GROUP)
    assert set(wanted) == {("node", g) for g in GROUP.gateways}
    assert all(isinstance(w, NodePool) and not w.announce for w in wanted.values())


def test_terminating_is_a_tombstone() -> None:
    record = record_in(S.TERMINATING)
    assert edge_pool(record, SPEC) == EdgePool(PREFIXES, None, 5, deleted=True)
    assert announcers(record) == frozenset()


@pytest.mark.parametrize(("edges", "told"), [(1, True), (2, False)])
def test_plan_reaches_an_edge_that_is_alone(edges: int, told: bool) -> None:
    plan = (Plan("gw-b", 6, 5), Plan("gw-c", 7, 6))
    record = replace(record_in(S.ACTIVE_HEALTHY), plan=plan)
    command = pool_desired(record, SPEC, replace(GROUP, edges=GROUP.edges[:edges]))["edge", "edge-1"]
    assert isinstance(command, EdgePool) and command.plan == (plan if told else ())


def test_old_owner_stops_only_with_a_target() -> None:
    """Nothing is withdrawn without a target: in each state with an owner, an edge points at somebody."""
    for state in S:
        record: PoolRecord = record_in(state)
        if state not in (S.PENDING, S.TERMINATING):
            assert edge_pool(record, SPEC).owner is not None


# ---- slots and addresses -----------------------------------------------------------------------------------------


def test_slots_stay_and_gaps_are_filled() -> None:
    assert allocate({}, ["gw-a", "gw-b"], 9) == {"gw-a": 0, "gw-b": 1}
    assert allocate({"gw-a": 0, "gw-b": 1}, ["gw-b"], 9) == {"gw-b": 1}
    assert allocate({"gw-b": 1}, ["gw-c", "gw-b", "gw-d"], 9) == {"gw-b": 1, "gw-c": 0, "gw-d": 2}


def test_slots_do_not_depend_on_the_order_of_those_known() -> None:
    known = {"gw-a": 3, "gw-b": 0}
    assert allocate(known, ["gw-b", "gw-a"], 9) == allocate(known, ["gw-a", "gw-b"], 9) == known


def test_slots_run_out() -> None:
    full = [f"gw-{n}" for n in range(MAX_GATEWAYS)]
    assert sorted(allocate({}, full, MAX_GATEWAYS).values()) == list(range(255))
    with pytest.raises(ValueError, match=r"more than 255 are named.*gw-late"):
        allocate({}, [*full, "gw-late"], MAX_GATEWAYS)


def test_an_edge_keeps_its_addresses_when_another_goes() -> None:
    numbered = replace(GROUP, edge_numbers={"edge-1": 0, "edge-2": 1})
    before = agent_bases(numbered, [SPEC], agents())
    after = agent_bases(replace(numbered, edges=GROUP.edges[1:]), [SPEC], agents())
    assert after["edge", "edge-2"] == before["edge", "edge-2"]
    assert after["node", "gw-b"].tunnels == before["node", "gw-b"].tunnels[1:]


def test_every_tunnel_of_a_full_group_has_addresses_of_its_own() -> None:
    """No two tunnels share an address, none is one that edges send their probes from, and all lie in their range."""
    slots, numbers = range(0, MAX_GATEWAYS, 2), range(MAX_EDGES)
    pairs = [(slot, number) for slot in slots for number in numbers]
    for version, of in ((4, tunnel_addresses), (6, tunnel_ipv6_addresses)):
        ends = [address for pair in pairs for address in of(GROUP, *pair)[:2]]
        assert len(set(ends)) == 2 * len(pairs)
        tunnels = [tunnel_of(slot, number) for slot, number in pairs]
        sources = {probe_source(t) if version == 4 else probe_source_ipv6(t) for t in tunnels}
        assert len(sources) == MAX_EDGES and not sources & set(ends)
        whole = ip_network(GROUP.tunnel_ipv4 if version == 4 else GROUP.tunnel_ipv6)
        assert all(ip_address(address) in whole for address in (*ends, *sources))


def tunnel_of(slot: int, number: int) -> Tunnel:
    four, six = tunnel_addresses(GROUP, slot, number), tunnel_ipv6_addresses(GROUP, slot, number)
    return Tunnel("gw", slot, "", "", 0, *four, 64512, 64513, number, *six)


@pytest.mark.parametrize(
    ("slot", "edge_index", "expected"),
    [
        (0, 0, ("10.77.0.0", "10.77.0.1", "10.78.0.1")),
        (1, 0, ("10.77.1.0", "10.77.1.1", "10.78.0.2")),
        (1, 1, ("10.77.1.2", "10.77.1.3", "10.78.0.2")),
        (254, 0, ("10.77.254.0", "10.77.254.1", "10.78.0.255")),
    ],
)
def test_tunnel_addresses(slot: int, edge_index: int, expected: tuple[str, str, str]) -> None:
    assert tunnel_addresses(GROUP, slot, edge_index) == expected


@pytest.mark.parametrize(
    ("slot", "edge_index", "expected"),
    [
        (0, 0, ("fd77::", "fd77::1", "fd78::1")),
        (1, 0, ("fd77:0:0:1::", "fd77:0:0:1::1", "fd78::2")),
        (1, 1, ("fd77:0:0:1::2", "fd77:0:0:1::3", "fd78::2")),
        (254, 63, ("fd77:0:0:fe::7e", "fd77:0:0:fe::7f", "fd78::ff")),
    ],
)
def test_tunnel_ipv6_addresses(slot: int, edge_index: int, expected: tuple[str, str, str]) -> None:
    assert tunnel_ipv6_addresses(GROUP, slot, edge_index) == expected


def test_one_ipv6_prefix_gives_every_tunnel_of_the_group_its_ipv6_addresses() -> None:
    both = replace(SPEC, name="both", addresses=("192.0.2.64/26", "2001:db8:2::/64"))
    alone, beside = (agent_bases(GROUP, pools, agents()) for pools in ([SPEC], [SPEC, both]))
    for key, base in beside.items():
        assert [t.gateway_ipv4 for t in base.tunnels] == [t.gateway_ipv4 for t in alone[key].tunnels]
        assert all(not (t.edge_ipv6 or t.gateway_ipv6 or t.probe_ipv6) for t in alone[key].tunnels)
        assert all(t.edge_ipv6 and t.gateway_ipv6 and t.probe_ipv6 for t in base.tunnels)
        assert set(base.accept) == {*PREFIXES, "192.0.2.64/26", "2001:db8:2::/64"}


def test_a_group_that_has_spoken_ipv6_goes_on() -> None:
    """Its gateways would give it up before its edges stop to ask."""
    for base in agent_bases(replace(GROUP, ipv6=True), [SPEC], agents()).values():
        assert all(tunnel.probe_ipv6 for tunnel in base.tunnels)
    assert not replace(GROUP, ipv6=True).stated().ipv6


def test_a_pool_of_both_families_is_one_command() -> None:
    both = replace(SPEC, addresses=("192.0.2.0/26", "2001:db8:2::/64"))
    wanted = pool_desired(record_in(S.ACTIVE_HEALTHY), both, GROUP)
    assert {command.prefixes for command in wanted.values()} == {both.addresses}


def agents() -> dict[tuple[str, str], Identity]:
    found = {("edge", e.name): Identity("edge", e.name, f"key of {e.name}") for e in GROUP.edges}
    lan = {g: f"10.10.0.{n + 1}" for n, g in enumerate(GROUP.gateways)}
    return found | {("node", g): Identity("node", g, f"key of {g}", lan[g]) for g in GROUP.gateways}


def test_bases_join_every_edge_with_every_gateway() -> None:
    bases = agent_bases(GROUP, [SPEC], agents())
    edge, gateway = bases["edge", "edge-2"], bases["node", "gw-b"]
    assert [t.name for t in edge.tunnels] == ["gw-a", "gw-b", "gw-c"]
    assert [t.name for t in gateway.tunnels] == ["edge-1", "edge-2"]
    mine, theirs = edge.tunnels[1], gateway.tunnels[1]
    assert (mine.public_key, theirs.public_key) == ("key of gw-b", "key of edge-2")
    assert replace(mine, name="", public_key="") == replace(theirs, name="", public_key="")
    assert (mine.slot, mine.port, mine.edge_index) == (1, 51821, 1)
    assert edge.accept == gateway.accept == PREFIXES
    assert gateway.lan_peers == ("10.10.0.1", "10.10.0.3") and edge.lan_peers == ()


def test_no_tunnel_without_both_keys() -> None:
    known = agents()
    del known["node", "gw-b"]
    known["edge", "edge-2"] = replace(known["edge", "edge-2"], public_key="")
    bases = agent_bases(GROUP, [SPEC], known)
    assert [t.name for t in bases["edge", "edge-1"].tunnels] == ["gw-a", "gw-c"]
    assert bases["edge", "edge-2"].tunnels == () and bases["node", "gw-b"].tunnels == ()


@pytest.mark.parametrize(("profile", "bfd_ms", "probe_ms"), [("fast", 50, 50), ("lan", 10, 20), ("wan", 300, 300)])
def test_profile_sets_the_timing(profile: str, bfd_ms: int, probe_ms: int) -> None:
    base = agent_bases(replace(GROUP, profile=profile), [SPEC], agents())["edge", "edge-1"]
    assert (base.bfd_interval_ms, base.bfd_multiplier, base.probe_interval_ms) == (bfd_ms, 3, probe_ms)
