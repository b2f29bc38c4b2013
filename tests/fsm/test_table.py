"""The pool's table: every row, every ignored pair, and a lint that refuses tables that must not run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fsm.core import handle, settle
from fsm.effects import AppendHistory, ForgetMachine, SaveMachine, TakeEpoch
from fsm.events import Event, PoolEvent
from fsm.pool import DEADLINES_MS, IGNORES, POOL, ROWS, STATES
from fsm.pool_acts import PoolDraft
from fsm.records import Plan, PoolRecord
from fsm.table import Ignore, Row, State, Table, TableError
from fsm.types import Instant, PoolState

S, E = PoolState, PoolEvent
NOW = Instant(1000.0, 1_700_000_000_000)
COUNTER = 7

BASE = PoolRecord(
    "web", S.ACTIVE_HEALTHY, owner="gw-a", epoch=5, base_epoch=3, leader="o-1", plan=(Plan("gw-b", 6, 5),)
)


def record_in(state: str) -> PoolRecord:
    """A record as it may stand in that state."""
    if state == S.PENDING:
        return replace(BASE, state=state, owner=None, epoch=0, base_epoch=0, plan=())
    if state in (S.FAILURE_DETECTED, S.WITHDRAWN, S.DRAINING):
        return replace(BASE, state=state, target="gw-b", plan=())
    if state == S.HELD:
        return replace(BASE, state=state, held_from=S.ACTIVE_HEALTHY)
    return replace(BASE, state=state)


PLAN = BASE.plan
CHAIN = (*PLAN, Plan("gw-d", 7, 6))


def event(name: PoolEvent, target: str | None = None, epoch: int | None = None, serves: bool = False) -> Event:
    return Event(name, "a cause", target=target, epoch=epoch, serves=serves)


NEW = {"epoch": 8, "base_epoch": 5, "target": "gw-c", "plan": ()}
STAYED = {"epoch": 8, "owner": "gw-a", "target": None, "switched": False}
SENT = {"owner": "gw-b", "target": None, "epoch": 5}
TAKEN_OVER = {"epoch": 6, "base_epoch": 5, "owner": "gw-a", "target": "gw-b", "plan": CHAIN[1:], "moves_s": (1000.0,)}
SECOND = {"epoch": 7, "base_epoch": 6, "owner": "gw-b", "target": "gw-d", "plan": (), "plans_told": (7,)}
OF_A_PLAN = (E.PLAN_EXECUTED, E.PLAN_SUPERSEDED)
AT_REST = (S.ACTIVE_HEALTHY, S.IDLE)
MOVING = (S.FAILURE_DETECTED, S.WITHDRAWN)
Fields = dict[str, Any]
Expectation = tuple[Event, tuple[str, ...], Fields, str | None, Fields]

# event, states, changes to the record before, state after (None: the same), fields after
EXPECTED: list[Expectation] = [
    (
        event(E.CANDIDATE_READY, "gw-c"),
        (S.PENDING,),
        {},
        S.WITHDRAWN,
        {"epoch": 8, "target": "gw-c", "owner": None, "plans_told": (8,)},
    ),
    (event(E.CANDIDATE_READY, "gw-c"), (S.STRANDED,), {}, S.FAILURE_DETECTED, NEW | {"owner": "gw-a"}),
    (event(E.OWNER_RECOVERED), (S.STRANDED,), {}, S.ACTIVE_HEALTHY, {"owner": "gw-a", "epoch": 5}),
    (
        event(E.OWNER_UNFIT, "gw-c"),
        (S.ACTIVE_HEALTHY, S.IDLE, S.PEER_UPDATED, S.STANDBY_ADVERTISING),
        {},
        S.FAILURE_DETECTED,
        NEW | {"owner": "gw-a", "moves_s": (1000.0,)},
    ),
    (
        event(E.OWNER_UNFIT, "gw-b"),
        (S.ACTIVE_HEALTHY, S.IDLE, S.PEER_UPDATED, S.STANDBY_ADVERTISING),
        {"plan": CHAIN},
        S.FAILURE_DETECTED,
        TAKEN_OVER,
    ),
    (event(E.CANDIDATE_READY, "gw-b"), (S.STRANDED,), {"plan": CHAIN}, S.FAILURE_DETECTED, TAKEN_OVER),
    (
        event(E.OWNER_UNFIT),
        (S.ACTIVE_HEALTHY, S.IDLE, S.PEER_UPDATED, S.STANDBY_ADVERTISING),
        {},
        S.STRANDED,
        {"owner": "gw-a", "epoch": 5, "plan": PLAN, "moves_s": ()},
    ),
    (event(E.OWNER_UNFIT, "gw-c"), (S.DRAINING,), {}, S.FAILURE_DETECTED, NEW | {"moves_s": ()}),
    (event(E.OWNER_UNFIT), (S.DRAINING,), {}, S.STRANDED, STAYED),
    (event(E.OWNER_UNFIT), (S.DRAINING,), {"switched": True}, S.STRANDED, SENT),
    (
        event(E.PLAN_EXECUTED, "gw-b", 6),
        (*AT_REST, S.STRANDED, S.PEER_UPDATED, S.STANDBY_ADVERTISING),
        {"plan": CHAIN},
        S.FAILURE_DETECTED,
        TAKEN_OVER,
    ),
    (
        event(E.PLAN_EXECUTED, "gw-d", 7),
        (*AT_REST, S.STRANDED),
        {"plan": CHAIN},
        S.FAILURE_DETECTED,
        {"epoch": 7, "base_epoch": 5, "target": "gw-d", "plan": ()},
    ),
    (
        event(E.PLAN_EXECUTED, "gw-z", 4),
        AT_REST,
        {"epoch": 3, "base_epoch": 0, "plan": (Plan("gw-b", 6, 3), Plan("gw-d", 7, 6))},
        S.FAILURE_DETECTED,
        {"epoch": 4, "base_epoch": 3, "target": "gw-z", "plan": ()},
    ),
    (
        event(E.PLAN_EXECUTED, "gw-d", 7),
        (S.FAILURE_DETECTED, S.WITHDRAWN),
        {"epoch": 6, "base_epoch": 5, "plan": CHAIN[1:]},
        S.FAILURE_DETECTED,
        {"epoch": 7, "base_epoch": 6, "owner": "gw-b", "target": "gw-d", "plan": (), "moves_s": (1000.0,)},
    ),
    (
        Event(E.PLAN_SUPERSEDED, "a cause", target="gw-z", epoch=4, evidence={"edge": "edge-1", "plan": "4"}),
        tuple(s.name for s in STATES if s.name != S.PENDING),
        {"plans_told": (2,), "evidence": {"session": "down"}, "cause": "why it moves"},
        None,
        {
            "epoch": 5,
            "plans_told": (2, 4),
            "superseded": {"epoch": 4, "target": "gw-z", "edge": "edge-1", "by_epoch": 5, "at_ms": NOW.wall_ms},
            "evidence": {"session": "down"},
            "cause": "why it moves",
            "moves_s": (),
        },
    ),
    (
        event(E.PLAN_EXECUTED, "gw-b", 6),
        (S.HELD,),
        {},
        S.FAILURE_DETECTED,
        {"epoch": 6, "target": "gw-b", "held_from": None, "moves_s": (1000.0,)},
    ),
    *(
        (
            Event(E.PLAN_OUTDATED, "a cause", targets=targets),
            AT_REST,
            {"plan": before},
            None,
            {"plan": plans, "epoch": 5, "base_epoch": 3, "owner": "gw-a", "target": None},
        )
        for targets, before, plans in (
            (("gw-c", "gw-d"), PLAN, (Plan("gw-c", 8, 5), Plan("gw-d", 9, 8))),
            (("gw-b",), (), (Plan("gw-b", 8, 5),)),
            ((), PLAN, ()),
        )
    ),
    (event(E.MOVE_WANTED, "gw-c"), (S.ACTIVE_HEALTHY, S.IDLE), {}, S.DRAINING, NEW | {"moves_s": (1000.0,)}),
    (event(E.OLD_PATH_REMOVED), (S.FAILURE_DETECTED,), {}, S.WITHDRAWN, {"owner": "gw-a", "target": "gw-b"}),
    (
        event(E.NEW_PATH_INSTALLED),
        (S.WITHDRAWN, S.DRAINING),
        {"switched": True},
        S.PEER_UPDATED,
        {"owner": "gw-b", "previous": "gw-a", "target": None, "epoch": 5},
    ),
    (event(E.TARGET_PREPARED), (S.DRAINING,), {}, S.DRAINING, {"switched": True, "target": "gw-b", "epoch": 5}),
    (event(E.TARGET_PREPARED), (S.PEER_UPDATED,), {}, S.STANDBY_ADVERTISING, {"owner": "gw-a"}),
    (event(E.ANNOUNCED), (S.STANDBY_ADVERTISING,), {}, S.ACTIVE_HEALTHY, {"owner": "gw-a", "epoch": 5}),
    (
        event(E.TARGET_LOST, "gw-c"),
        (S.FAILURE_DETECTED, S.WITHDRAWN),
        {},
        S.FAILURE_DETECTED,
        {"owner": "gw-b", "target": "gw-c", "epoch": 8},
    ),
    (event(E.TARGET_LOST, "gw-d"), MOVING, {"epoch": 6, "plan": CHAIN[1:]}, S.FAILURE_DETECTED, SECOND),
    (event(E.DEADLINE_PASSED, "gw-d"), MOVING, {"epoch": 6, "plan": CHAIN[1:]}, S.FAILURE_DETECTED, SECOND),
    (event(E.TARGET_LOST), MOVING, {"epoch": 6, "plan": CHAIN[1:]}, S.STRANDED, {"epoch": 6, "plan": CHAIN[1:]}),
    (event(E.TARGET_LOST), (S.FAILURE_DETECTED, S.WITHDRAWN), {}, S.STRANDED, SENT),
    (event(E.TARGET_LOST, "gw-c"), (S.DRAINING,), {}, S.ACTIVE_HEALTHY, STAYED),
    (
        event(E.TARGET_LOST, "gw-c"),
        (S.DRAINING,),
        {"switched": True},
        S.FAILURE_DETECTED,
        {"owner": "gw-b", "target": "gw-c", "epoch": 8, "switched": False},
    ),
    (event(E.TARGET_LOST), (S.DRAINING,), {"switched": True}, S.STRANDED, SENT),
    (
        event(E.DEADLINE_PASSED, "gw-c"),
        (S.FAILURE_DETECTED, S.WITHDRAWN),
        {},
        S.FAILURE_DETECTED,
        {"owner": "gw-b", "target": "gw-c", "epoch": 8, "retries": 1},
    ),
    (
        event(E.DEADLINE_PASSED, "gw-b"),
        (S.FAILURE_DETECTED, S.WITHDRAWN),
        {"retries": 2},
        None,
        {"owner": "gw-a", "target": "gw-b", "epoch": 5, "retries": 3},
    ),
    (
        Event(E.DEADLINE_PASSED, "a cause", target="gw-b", targets=("edge-1",)),
        (S.FAILURE_DETECTED, S.WITHDRAWN),
        {},
        S.FAILURE_DETECTED,
        {"owner": "gw-b", "target": "gw-b", "epoch": 8, "retries": 1},
    ),
    (event(E.DEADLINE_PASSED), (S.FAILURE_DETECTED, S.WITHDRAWN), {}, S.STRANDED, SENT),
    (event(E.DEADLINE_PASSED, "gw-c"), (S.DRAINING,), {}, S.ACTIVE_HEALTHY, STAYED),
    (
        event(E.DEADLINE_PASSED, "gw-c"),
        (S.DRAINING,),
        {"switched": True},
        S.FAILURE_DETECTED,
        {"owner": "gw-b", "target": "gw-c", "epoch": 8},
    ),
    (event(E.DEADLINE_PASSED), (S.DRAINING,), {"switched": True}, S.STRANDED, SENT),
    (event(E.DEADLINE_PASSED), (S.PEER_UPDATED,), {}, S.STANDBY_ADVERTISING, {"owner": "gw-a"}),
    (event(E.DEADLINE_PASSED, "gw-c", serves=True), (S.STANDBY_ADVERTISING,), {}, S.ACTIVE_HEALTHY, {"epoch": 5}),
    (
        event(E.DEADLINE_PASSED, "gw-c"),
        (S.STANDBY_ADVERTISING,),
        {},
        S.FAILURE_DETECTED,
        NEW | {"moves_s": (1000.0,)},
    ),
    (
        event(E.DEADLINE_PASSED, "gw-b"),
        (S.STANDBY_ADVERTISING,),
        {"plan": CHAIN},
        S.FAILURE_DETECTED,
        TAKEN_OVER | {"plans_told": (6,)},
    ),
    (event(E.DEADLINE_PASSED), (S.STANDBY_ADVERTISING,), {}, S.STRANDED, {"owner": "gw-a", "plan": PLAN, "epoch": 5}),
    (event(E.DEADLINE_PASSED), (S.TERMINATING,), {}, S.TERMINATING, {"deadline_s": 1060.0}),
    (event(E.HOLD_REQUESTED), (S.PENDING,), {}, S.HELD, {"plan": ()}),
    (event(E.HOLD_REQUESTED), (S.ACTIVE_HEALTHY, S.IDLE, S.STRANDED), {}, S.HELD, {"plan": PLAN, "epoch": 5}),
    (event(E.HOLD_RELEASED), (S.HELD,), {"held_from": S.PENDING}, S.PENDING, {"held_from": None}),
    (event(E.HOLD_RELEASED), (S.HELD,), {"held_from": S.STRANDED}, S.STRANDED, {"held_from": None}),
    (event(E.HOLD_RELEASED), (S.HELD,), {"held_from": S.IDLE}, S.IDLE, {"held_from": None}),
    (event(E.HOLD_RELEASED), (S.HELD,), {}, S.ACTIVE_HEALTHY, {"held_from": None}),
    (event(E.BECAME_EMPTY), (S.ACTIVE_HEALTHY,), {}, S.IDLE, {"announce": False, "owner": "gw-a"}),
    (event(E.BECAME_USED), (S.IDLE,), {"announce": False}, S.STANDBY_ADVERTISING, {"announce": True}),
    (event(E.BECAME_USED), (S.ACTIVE_HEALTHY,), {"announce": False}, S.STANDBY_ADVERTISING, {"announce": True}),
    *(
        (
            Event(E.ADDRESSES_CHANGED, "a cause", addresses=("198.51.100.0/26",)),
            (state,),
            {},
            state,
            {"addresses": ("198.51.100.0/26",), "epoch": 8, "owner": "gw-a", "target": None, "plan": ()},
        )
        for state in (S.ACTIVE_HEALTHY, S.IDLE, S.STRANDED, S.HELD)
    ),
    (
        event(E.EDGE_RENEWED),
        (S.ACTIVE_HEALTHY, S.IDLE, S.STRANDED, S.HELD, S.TERMINATING),
        {},
        None,
        {"epoch": 8, "base_epoch": 5, "owner": "gw-a", "plan": ()},
    ),
    (
        event(E.DELETE_REQUESTED),
        tuple(s for s in S if s not in (S.TERMINATING, S.PENDING)),
        {},
        S.TERMINATING,
        {"target": None, "plan": (), "held_from": None, "epoch": 8},
    ),
    (event(E.DELETE_REQUESTED), (S.ACTIVE_HEALTHY,), {"plan": ()}, S.TERMINATING, {"plan": (), "epoch": 8}),
    (event(E.DELETE_REQUESTED), (S.PENDING,), {}, S.TERMINATING, {"epoch": 0}),
    (event(E.PATHS_REMOVED), (S.TERMINATING,), {}, S.TERMINATING, {"epoch": 5}),
]
CASES = [(e, state, before, to or state, after) for e, states, before, to, after in EXPECTED for state in states]


@pytest.mark.parametrize(
    ("fired", "state", "before", "to", "after"), CASES, ids=[f"{c[0].name}-{c[1]}-{n}" for n, c in enumerate(CASES)]
)
def test_row_leads_where_it_shall(fired: Event, state: str, before: Fields, to: str, after: Fields) -> None:
    record = replace(record_in(state), **before)
    step = handle(record, fired, NOW, COUNTER)
    assert not step.ignored
    assert step.record.state == to
    assert {name: getattr(step.record, name) for name in after} == after
    limit_ms = DEADLINES_MS[PoolState(to)]
    patience = 2**step.record.retries
    assert step.record.deadline_s == (None if limit_ms is None else NOW.now_s + limit_ms * patience / 1000)
    (entry,) = step.entries
    assert (entry.seq, entry.from_state, entry.to_state, entry.event) == (1, state, to, fired.name)
    assert (entry.epoch, entry.owner, entry.target) == (step.record.epoch, step.record.owner, step.record.target)


def test_every_row_has_a_case() -> None:
    """A row that no case takes is untested: each (event, source, destination) of the table is expected somewhere."""
    rows = {(row.event, source, row.dest) for row in ROWS for source in row.sources}
    assert rows == {(fired.name, state, to) for fired, state, _, to, _ in CASES}


def test_effects_of_a_step() -> None:
    step = handle(record_in(S.ACTIVE_HEALTHY), event(E.OWNER_UNFIT, "gw-c"), NOW, COUNTER)
    taken, saved, appended = step.effects
    assert taken == TakeEpoch(8) and step.epoch_counter == 8
    assert saved == SaveMachine("pool", "web", step.record)
    assert appended == AppendHistory("pool", "web", step.entries[0])


def test_paths_removed_forgets_the_machine() -> None:
    step = handle(record_in(S.TERMINATING), event(E.PATHS_REMOVED), NOW, COUNTER)
    assert step.forgotten and step.effects == (ForgetMachine("pool", "web"),)


def test_settle_stops_at_an_event_that_nobody_wants() -> None:
    record = record_in(S.ACTIVE_HEALTHY)
    step = settle(record, lambda _: event(E.ANNOUNCED), NOW, COUNTER)
    assert step.record is record and step.effects == ()


def test_settle_refuses_to_go_round_for_ever() -> None:
    with pytest.raises(AssertionError, match="events without end"):
        settle(record_in(S.FAILURE_DETECTED), lambda _: event(E.TARGET_LOST, "gw-c"), NOW, COUNTER)


def test_settle_saves_once_and_records_every_transition() -> None:
    events = iter([event(E.OLD_PATH_REMOVED), event(E.NEW_PATH_INSTALLED)])
    step = settle(record_in(S.FAILURE_DETECTED), lambda _: next(events, None), NOW, COUNTER)
    saved, first, second = step.effects
    assert saved == SaveMachine("pool", "web", step.record) and step.record.state == S.PEER_UPDATED
    assert [first, second] == [AppendHistory("pool", "web", entry) for entry in step.entries]
    assert [entry.seq for entry in step.entries] == [1, 2]


def _ignored_pairs() -> list[tuple[str, str]]:
    return [(e, s) for ignore in IGNORES for e in ignore.events for s in ignore.states]


@pytest.mark.parametrize(("name", "state"), _ignored_pairs())
def test_ignored_event_changes_nothing_and_says_why(name: str, state: str) -> None:
    record = replace(record_in(state), switched=True)  # with a switched Draining, guarded rows do not hold either
    step = handle(record, Event(PoolEvent(name), "a cause"), NOW, COUNTER)
    assert step.record is record and step.epoch_counter == COUNTER
    assert step.effects == () and step.entries == ()
    assert step.ignored and step.ignored != "no guard of its rows holds"


def test_table_is_total() -> None:
    """Every event in every state has an outcome: a row taken or a reason."""
    for state in STATES:
        for name in PoolEvent:
            fired = Event(name, "a cause", target=None, epoch=6 if name in OF_A_PLAN else None)
            step = handle(record_in(state.name), fired, NOW, COUNTER)
            assert bool(step.entries) != bool(step.ignored), (state.name, name)


def test_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="no event"):
        POOL.fire(draft_of(), "Nonsense")


def draft_of() -> PoolDraft:
    return PoolDraft(S.ACTIVE_HEALTHY, record_in(S.ACTIVE_HEALTHY), event(E.ANNOUNCED), NOW, COUNTER)


def test_an_act_that_raises_leaves_the_state() -> None:
    """A plan executed without its epoch is a fault of the caller; the draft stays where it was."""
    draft = draft_of()
    draft.event = Event(E.PLAN_EXECUTED, "a cause", target="gw-b")
    with pytest.raises(ValueError, match="without its epoch"):
        POOL.fire(draft, E.PLAN_EXECUTED)
    assert draft.state == S.ACTIVE_HEALTHY and draft.record == record_in(S.ACTIVE_HEALTHY)


# ---- the lint ----------------------------------------------------------------------------------------------------


@dataclass
class Lamp:
    state: str


Parts = dict[str, Any]


def lamp() -> Parts:
    return {
        "name": "lamp",
        "initial": "off",
        "states": [State("off", "dark"), State("on", "bright")],
        "events": ["press", "burn"],
        "rows": [Row("press", ("off",), "on", "light"), Row("press", ("on",), "off", "dark")],
        "ignores": [Ignore(("burn",), ("off", "on"), "it never burns out")],
    }


def _initial_unknown(p: Parts) -> None:
    p["initial"] = "broken"


def _row(*args: Any) -> Callable[[Parts], None]:
    return lambda p: p["rows"].append(Row(*args))


def _ignore(*args: Any) -> Callable[[Parts], None]:
    return lambda p: p["ignores"].append(Ignore(*args))


def _never(_: Lamp) -> bool:
    return False


FAULTS: list[tuple[Callable[[Parts], None], str]] = [
    (_initial_unknown, "initial state broken is unknown"),
    (_row("burn", ("nowhere",), "off", "w"), "unknown source nowhere"),
    (_row("burn", ("on",), "nowhere", "w"), "unknown destination nowhere"),
    (_row("smash", ("on",), "off", "w"), "unknown event smash"),
    (_row("burn", ("on",), "off", ""), "has no reason"),
    (_row("press", ("on",), "off", "again"), "a row after an unguarded one never fires"),
    (_row("burn", ("on",), "off", "both"), r"\(on, burn\) is both a row and an ignore"),
    (_ignore(("smash",), ("on",), "r"), "ignore: unknown event smash"),
    (_ignore(("burn",), ("nowhere",), "r"), "ignore: unknown state nowhere"),
    (_ignore(("burn",), ("on",), "r"), r"\(on, burn\) is ignored twice"),
    (lambda p: p.update(ignores=[Ignore(("burn",), ("off", "on"), "")]), "ignore of burn has no reason"),
    (lambda p: p.update(ignores=[]), r"\(off, burn\) is neither a row nor a reasoned ignore"),
    (lambda p: p["states"].append(State("lost", "unreachable")), "state lost cannot be reached"),
    (lambda p: p["states"].append(State("mute", "")), "state mute has no meaning"),
    (
        lambda p: p.update(rows=[p["rows"][0], Row("press", ("on",), "off", "maybe", _never)]),
        r"\(on, press\) is neither a row nor a reasoned ignore",
    ),
]


def test_lamp_is_a_table() -> None:
    """The engine knows nothing of pools: another record type and other words work as well."""
    model = Lamp("off")
    table = Table[Lamp](**lamp())
    assert table.fire(model, "press") and model.state == "on"
    assert not table.fire(model, "burn") and table.reason("on", "burn") == "it never burns out"


@pytest.mark.parametrize(("plant", "complaint"), FAULTS, ids=[f[1] for f in FAULTS])
def test_lint_refuses(plant: Callable[[Parts], None], complaint: str) -> None:
    parts = lamp()
    plant(parts)
    with pytest.raises(TableError, match=complaint):
        Table[Lamp](**parts)
