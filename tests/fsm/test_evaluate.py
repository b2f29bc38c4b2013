"""Confirmations: only a report of this epoch, this gateway and every edge that can be asked counts."""

from dataclasses import replace

import pytest

from fsm.evaluate import PoolView, next_event
from fsm.events import PoolEvent
from fsm.records import EdgePoolReport, NodePoolReport, PoolRecord
from fsm.types import Heartbeat, PoolState
from fsm.witness import Sight
from tests.fsm.world import ModelWorld

S, E = PoolState, PoolEvent
NOW_S = 1000.0
MOVED = EdgePoolReport(5, "gw-b", withdrawn=True, installed=True, announced_by=("gw-b",))
PREPARED = NodePoolReport(5, announcing=True, answers=True)
FRESH, STALE = Sight(Heartbeat.FRESH), Sight(Heartbeat.STALE, 2.0)


def record(state: str, **changes: object) -> PoolRecord:
    """A pool on its way from gw-a to gw-b under number 5."""
    before = PoolRecord("web", state, owner="gw-a", target="gw-b", epoch=5, base_epoch=3, deadline_s=NOW_S + 1)
    return replace(before, **changes)  # type: ignore[arg-type]


def view(*edges: EdgePoolReport | None, node: NodePoolReport | None = None, sights: tuple[Sight, ...] = ()) -> PoolView:
    """A world in which both gateways are ready; each edge with its report, each fresh unless `sights` says so."""
    names = tuple(f"edge-{n}" for n in range(1, len(edges) + 1))
    world = ModelWorld(edges=names or ("edge-1",))
    return replace(
        world.view(),
        now_s=NOW_S,
        edges=dict(zip(names, sights or (FRESH,) * len(names), strict=True)),
        edge_reports={name: report for name, report in zip(names, edges, strict=True) if report is not None},
        node_reports={"gw-b": node} if node is not None else {},
    )


def name_of(of: PoolRecord, seen: PoolView) -> str | None:
    event = next_event(of, seen)
    return event.name if event else None


EFFECTIVE = [
    (record(S.FAILURE_DETECTED), E.OLD_PATH_REMOVED),
    (record(S.WITHDRAWN), E.NEW_PATH_INSTALLED),
    (record(S.DRAINING, switched=True), E.NEW_PATH_INSTALLED),
]
every_step = pytest.mark.parametrize(("of", "expected"), EFFECTIVE, ids=["withdrawn", "installed", "drained"])


@every_step
def test_confirmed_by_every_edge(of: PoolRecord, expected: str) -> None:
    assert name_of(of, view(MOVED)) == name_of(of, view(MOVED, MOVED)) == expected


@every_step
@pytest.mark.parametrize(
    "report",
    [
        None,
        replace(MOVED, epoch=4),
        replace(MOVED, withdrawn=False, installed=False),
    ],
    ids=["no report", "an older epoch", "not done"],
)
def test_not_confirmed(of: PoolRecord, expected: str, report: EdgePoolReport | None) -> None:
    assert name_of(of, view(report)) is None
    assert name_of(of, view(MOVED, report)) is None, "one edge is not all edges"
    assert name_of(of, view(MOVED, report, sights=(FRESH, STALE))) == expected, "a silent edge is not waited for"
    assert name_of(of, view(MOVED, report, sights=(STALE, STALE))) is None, "but somebody has to confirm"


@pytest.mark.parametrize("of", [EFFECTIVE[1][0], EFFECTIVE[2][0]], ids=["installed", "drained"])
def test_installed_on_somebody_else_confirms_nothing(of: PoolRecord) -> None:
    assert name_of(of, view(replace(MOVED, owner="gw-a"))) is None


NOT_PREPARED = [
    None,
    replace(PREPARED, epoch=4),
    replace(PREPARED, answers=False),
    replace(PREPARED, announcing=False),
]


@pytest.mark.parametrize("report", NOT_PREPARED, ids=["no report", "another epoch", "no answers", "silent"])
@pytest.mark.parametrize("of", [record(S.DRAINING), record(S.PEER_UPDATED, owner="gw-b", target=None)])
def test_prepared_takes_the_targets_own_word(of: PoolRecord, report: NodePoolReport | None) -> None:
    assert name_of(of, view(MOVED, node=PREPARED)) == E.TARGET_PREPARED
    assert name_of(of, view(MOVED, node=report)) is None


def test_an_empty_pools_target_is_prepared_silently() -> None:
    of = record(S.DRAINING, announce=False)
    assert name_of(of, view(MOVED, node=replace(PREPARED, announcing=False))) == E.TARGET_PREPARED
    assert name_of(of, view(MOVED, node=PREPARED)) is None


ADVERTISING = record(S.STANDBY_ADVERTISING, owner="gw-b", target=None)


def test_announced_needs_the_announcement_and_a_passing_probe() -> None:
    assert name_of(ADVERTISING, view(MOVED)) == E.ANNOUNCED
    assert name_of(ADVERTISING, view(replace(MOVED, announced_by=("gw-a",)))) is None
    assert name_of(ADVERTISING, view(replace(MOVED, epoch=4))) is None
    seen = view(MOVED)
    deaf = {name: replace(gateway, serves=False) for name, gateway in seen.gateways.items()}
    assert name_of(ADVERTISING, replace(seen, gateways=deaf)) is None


STRANDED = record(S.STRANDED, target=None, deadline_s=None)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (replace(MOVED, owner="gw-a"), E.OWNER_RECOVERED),
        (replace(MOVED, owner="gw-b"), E.CANDIDATE_READY),
        (replace(MOVED, owner="gw-a", installed=False), E.CANDIDATE_READY),
        (replace(MOVED, owner="gw-a", epoch=4), E.CANDIDATE_READY),
        (None, E.CANDIDATE_READY),
    ],
)
def test_recovery_without_a_move_needs_the_mapping_in_place(report: EdgePoolReport | None, expected: str) -> None:
    """A healthy owner whom the edges do not point at is a candidate like any other: it gets a move and a number."""
    assert name_of(STRANDED, view(report)) == expected


def test_deletion_comes_first() -> None:
    for state in S:
        if state != S.TERMINATING:
            assert name_of(record(state), replace(view(MOVED), spec=None)) == E.DELETE_REQUESTED
