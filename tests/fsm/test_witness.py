"""From witnesses to judgements: the whole judgement table, several edges, the LAN, and what makes a gateway ready."""

from dataclasses import replace

import pytest

from fsm.records import AgentRecord, EdgeReport, GatewayDrain, GatewayWitness, NodeReport, Precondition
from fsm.types import PROBE_UNFIT_AFTER, Heartbeat, Judgement, Probe, Session
from fsm.witness import GatewayView, Sight, World, combine, judge, lan_is_lost, view_gateway
from tests.fsm.world import ModelWorld

J = Judgement
UP, DOWN, UNKNOWN = Session.UP, Session.DOWN, Session.UNKNOWN
ANY = tuple(Heartbeat)
OLD = (Heartbeat.STALE, Heartbeat.EXPIRED)
FRESH = (Heartbeat.FRESH,)
FIRST, LAST = 2, PROBE_UNFIT_AFTER

# session, heartbeats, probe, probes missed, judgement
TABLE = [
    (DOWN, ANY, Probe.FAILING, FIRST, J.DEAD),
    (DOWN, ANY, Probe.FAILING, LAST, J.DEAD),
    (DOWN, ANY, Probe.PASSING, 0, J.FLAP),
    (DOWN, ANY, Probe.DOUBTFUL, 1, J.NONE),
    (DOWN, ANY, Probe.UNKNOWN, 0, J.NONE),
    (UNKNOWN, ANY, Probe.PASSING, 0, J.NONE),
    (UNKNOWN, ANY, Probe.DOUBTFUL, 1, J.NONE),
    (UNKNOWN, ANY, Probe.FAILING, LAST - 1, J.NONE),
    (UNKNOWN, ANY, Probe.FAILING, LAST, J.UNFIT),
    (UNKNOWN, ANY, Probe.UNKNOWN, 0, J.NONE),
    (UP, FRESH, Probe.FAILING, LAST - 1, J.HEALTHY),
    (UP, ANY, Probe.FAILING, LAST, J.UNFIT),
    (UP, OLD, Probe.FAILING, LAST - 1, J.SUSPECT),
    (UP, OLD, Probe.PASSING, 0, J.SUSPECT),
    (UP, OLD, Probe.DOUBTFUL, 1, J.SUSPECT),
    (UP, FRESH, Probe.PASSING, 0, J.HEALTHY),
    (UP, FRESH, Probe.DOUBTFUL, 1, J.HEALTHY),
    (UP, ANY, Probe.UNKNOWN, 0, J.NONE),
]
CASES = [(s, h, p, m, j) for s, hs, p, m, j in TABLE for h in hs]


@pytest.mark.parametrize(("session", "heartbeat", "probe", "missed", "judgement"), CASES)
def test_judgement(session: str, heartbeat: str, probe: str, missed: int, judgement: Judgement) -> None:
    assert judge(session, heartbeat, probe, missed) is judgement


def test_judgement_table_is_whole() -> None:
    """Every session x heartbeat x probe has at least one case."""
    assert {(s, h, p) for s, h, p, _, _ in CASES} == {(s, h, p) for s in Session for h in Heartbeat for p in Probe}


@pytest.mark.parametrize(
    ("words", "judgement"),
    [
        ([], J.NONE),
        ([J.DEAD], J.DEAD),
        ([J.DEAD, J.DEAD], J.DEAD),
        ([J.DEAD, J.UNFIT], J.UNFIT),
        ([J.DEAD, J.FLAP], J.UNFIT),
        ([J.FLAP, J.FLAP], J.FLAP),
        ([J.DEAD, J.HEALTHY], J.NONE),
        ([J.FLAP, J.HEALTHY], J.NONE),
        ([J.UNFIT, J.NONE], J.NONE),
        ([J.HEALTHY, J.NONE], J.NONE),
        ([J.SUSPECT, J.SUSPECT], J.SUSPECT),
        ([J.HEALTHY, J.HEALTHY], J.HEALTHY),
    ],
)
def test_edges_combine(words: list[Judgement], judgement: Judgement) -> None:
    assert combine(words) is judgement
    assert combine(words[::-1]) is judgement


# ---- one gateway in a world --------------------------------------------------------------------------------------

GOOD = GatewayWitness("up", "passing", 0, True, "passing")
NODE = NodeReport("1", True, lan_targets=1, lan_reached=1, lan_answering=("10.10.0.13",))
FRESH_SIGHT = Sight(Heartbeat.FRESH, 0.1, 0.0, AgentRecord("x", "node", "1", "1"))
LOCATED = AgentRecord("gw-a", "node", "1", "1", lan_address="10.10.0.11")
GROUP = ModelWorld().group


def world(**changes: object) -> World:
    """Both gateways good, as one edge sees them."""
    whole = World(
        edges={"edge-1": FRESH_SIGHT},
        nodes={"gw-a": FRESH_SIGHT, "gw-b": FRESH_SIGHT},
        edge_reports={"edge-1": EdgeReport("1", {"gw-a": GOOD, "gw-b": GOOD}, "up")},
        node_reports={"gw-a": NODE, "gw-b": NODE},
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def seen(**changes: object) -> dict[str, EdgeReport]:
    """The edge's report with gw-a seen differently."""
    witness = replace(GOOD, **changes)  # type: ignore[arg-type]
    return {"edge-1": EdgeReport("1", {"gw-a": witness, "gw-b": GOOD}, "up")}


def node(**changes: object) -> dict[str, NodeReport]:
    return {"gw-a": replace(NODE, **changes), "gw-b": NODE}  # type: ignore[arg-type]


def gw_a(of: World) -> GatewayView:
    return view_gateway("gw-a", GROUP, of)


def test_good_gateway_is_ready() -> None:
    view = gw_a(world())
    assert view.ready and view.judgement is J.HEALTHY and view.serves and view.heard and view.not_ready == ()
    assert view.evidence == {"session": "up", "probe": "passing", "heartbeat": "fresh"}


def test_a_family_that_is_worse_than_the_other_is_evidence() -> None:
    view = gw_a(world(edge_reports=seen(probe="failing", missed=5, family="IPv6")))
    assert view.judgement is J.UNFIT
    assert view.evidence["probe_family"] == "IPv6"


NOT_READY = [
    (world(nodes={"gw-a": Sight(Heartbeat.STALE, 1.5), "gw-b": FRESH_SIGHT}), "heartbeat stale"),
    (world(nodes={"gw-b": FRESH_SIGHT}), "heartbeat expired"),
    (world(node_reports={"gw-b": NODE}), "no report from its agent"),
    (
        world(node_reports=node(ready=False, preconditions=(Precondition("rp_filter", False),))),
        "preconditions: rp_filter",
    ),
    (world(node_reports=node(ready=False)), "preconditions: not all checked"),
    (world(edge_reports=seen(session="unknown")), "session not up (unknown)"),
    (world(edge_reports=seen(session="down")), "session not up (down)"),
    (world(edge_reports=seen(settled=False)), "probes not settled"),
    (world(edge_reports=seen(full_size="failing")), "full-size probe failing"),
    (world(edges={"edge-1": Sight(Heartbeat.STALE, 2.0)}), "no edge with a fresh agent"),
    (world(node_reports=node(lan_reached=0)), "cluster LAN lost"),
    (world(drains={"gw-a": GatewayDrain("gw-a", "r", "b")}), "drained"),
    (world(node_reports=node(leaving=True)), "shutting down"),
]


@pytest.mark.parametrize(("of", "reason"), NOT_READY, ids=[n[1] for n in NOT_READY])
def test_not_ready(of: World, reason: str) -> None:
    view = gw_a(of)
    assert not view.ready and reason in view.not_ready
    assert view_gateway("gw-b", GROUP, of).ready or "edge" in reason


PASSES = ("heartbeat stale", "probes not settled")


@pytest.mark.parametrize(("of", "reason"), NOT_READY, ids=[n[1] for n in NOT_READY])
def test_usable_is_what_will_be_ready_in_a_moment(of: World, reason: str) -> None:
    assert gw_a(of).usable is (reason in PASSES)
    assert gw_a(world()).usable


def test_no_fresh_edge_is_no_judgement() -> None:
    """An edge that nobody hears from proves nothing, whatever its last report says."""
    dead = EdgeReport("1", {"gw-a": GatewayWitness("down", "failing", 5)}, "up")
    view = gw_a(world(edges={"edge-1": Sight(Heartbeat.EXPIRED, 9.0)}, edge_reports={"edge-1": dead}))
    assert view.judgement is J.NONE and not view.serves


def test_edge_without_a_report_is_no_judgement() -> None:
    assert gw_a(world(edge_reports={})).judgement is J.NONE


def test_suspect_counts_its_age() -> None:
    view = gw_a(world(nodes={"gw-a": Sight(Heartbeat.STALE, 1.5), "gw-b": FRESH_SIGHT}))
    assert view.judgement is J.SUSPECT and view.suspect_s == 1.5 and view.serves


# ---- several edges -----------------------------------------------------------------------------------------------

TWO = ModelWorld(edges=("edge-1", "edge-2")).group
DEAD = GatewayWitness("down", "failing", PROBE_UNFIT_AFTER)


def at_two(*reports: EdgeReport | None, **changes: object) -> World:
    """Each of two edges reports that, or has not reported yet."""
    told = {f"edge-{number}": report for number, report in enumerate(reports, 1) if report is not None}
    return world(edges=dict.fromkeys(("edge-1", "edge-2"), FRESH_SIGHT), edge_reports=told, **changes)


def report(gw_a: GatewayWitness, gw_b: GatewayWitness = GOOD) -> EdgeReport:
    return EdgeReport("1", {"gw-a": gw_a, "gw-b": gw_b}, "up")


def test_an_edge_that_has_not_reported_yet_is_not_cut_off() -> None:
    """It may see the gateway well in a moment: the other edge alone decides nothing."""
    assert view_gateway("gw-a", TWO, at_two(report(DEAD), None)).judgement is J.NONE
    assert view_gateway("gw-a", TWO, at_two(report(DEAD), report(DEAD, DEAD))).judgement is J.DEAD, "this one is"


def test_where_it_is_down_is_told_only_if_it_is_not_so_everywhere() -> None:
    assert view_gateway("gw-a", TWO, at_two(report(DEAD), report(GOOD))).down_at == ("edge-1",)
    assert view_gateway("gw-a", TWO, at_two(report(DEAD), report(DEAD))).down_at == ()


def test_evidence_of_several_edges_names_those_that_say_something() -> None:
    held_back = replace(DEAD, reason="Hold timer expired")
    evidence = view_gateway("gw-a", TWO, at_two(report(GOOD), report(held_back))).evidence
    assert evidence["session"] == "edge-1 up, edge-2 down"
    assert evidence["session_reason"] == "edge-2 Hold timer expired"


def test_an_edge_that_is_cut_off_makes_nobodys_word_on_the_lan_worthless() -> None:
    reports = node(lan_reached=0)
    assert lan_is_lost("gw-a", TWO, at_two(report(GOOD), report(DEAD, DEAD), node_reports=reports))
    assert not lan_is_lost("gw-a", TWO, at_two(report(GOOD), report(GOOD, DEAD), node_reports=reports))


# ---- the cluster LAN ---------------------------------------------------------------------------------------------


def test_lan_lost_alone_is_unfit() -> None:
    view = gw_a(world(node_reports=node(lan_reached=0)))
    assert view.judgement is J.UNFIT and view.evidence["lan"] == "lost"


def test_lan_lost_by_all_is_nobodys_fault() -> None:
    reports = dict.fromkeys(("gw-a", "gw-b"), replace(NODE, lan_reached=0, lan_answering=()))
    assert gw_a(world(node_reports=reports)).judgement is J.HEALTHY


@pytest.mark.parametrize(
    "of",
    [
        world(node_reports=node(lan_targets=0, lan_reached=0)),
        world(node_reports=node(lan_reached=0), nodes={"gw-a": FRESH_SIGHT, "gw-b": Sight(Heartbeat.STALE, 2.0)}),
        world(
            node_reports=node(lan_reached=0),
            edge_reports={"edge-1": EdgeReport("1", {"gw-a": GOOD, "gw-b": GatewayWitness("down", "failing", 2)})},
        ),
        world(
            node_reports={**node(lan_reached=0), "gw-b": replace(NODE, lan_answering=("10.10.0.11",))},
            nodes={"gw-a": replace(FRESH_SIGHT, record=LOCATED), "gw-b": FRESH_SIGHT},
        ),
    ],
    ids=["nobody to reach", "the other is silent", "the other was just lost", "the other may be lost, not told yet"],
)
def test_a_dead_neighbour_is_no_witness_of_the_lan(of: World) -> None:
    """The last report of a standby that was cut from power says that it reaches others: it proves nothing now."""
    assert gw_a(of).judgement is J.HEALTHY


def test_lan_of_a_silent_gateway_is_not_judged() -> None:
    sights = {"gw-a": Sight(Heartbeat.STALE, 1.5), "gw-b": FRESH_SIGHT}
    assert gw_a(world(node_reports=node(lan_reached=0), nodes=sights)).judgement is J.SUSPECT
