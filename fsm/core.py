"""The core: (record, event, instant) -> (record, effects). Nothing here knows etcd, BIRD or a kernel.

Read `handle` for one event, `settle` for all that follow from one look at the world.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fsm.effects import AppendHistory, Effect, ForgetMachine, SaveMachine, TakeEpoch
from fsm.events import Event, PoolEvent
from fsm.pool import DEADLINES_MS, MOVING, POOL
from fsm.pool_acts import PoolDraft
from fsm.records import EdgeView, HistoryEntry, PoolRecord
from fsm.types import Instant, PoolState

MAX_EVENTS_PER_SETTLE = 16
"""More events than a pool has states can't follow from one look at the world: it would be a loop in the table."""

MAX_DOUBLINGS = 5
"""Deadlines grow to 32 times their length: half a minute for the first of a move."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one event, or one settling, led to.

    `epoch_counter` is the last number handed out after it; `ignored` says why an event changed nothing.
    """

    record: PoolRecord
    epoch_counter: int
    effects: tuple[Effect, ...] = ()
    entries: tuple[HistoryEntry, ...] = ()
    forgotten: bool = False
    ignored: str = ""


def new_pool(name: str, instant: Instant, leader: str, term: int) -> PoolRecord:
    """The record of a pool that was just accepted."""
    return PoolRecord(name=name, state=POOL.initial, since_ms=instant.wall_ms, leader=leader, term=term)


def handle(record: PoolRecord, event: Event, instant: Instant, epoch_counter: int) -> Step:
    """Put one event through the table. An event that the state has no use for changes nothing and says why."""
    draft = PoolDraft(record.state, record, event, instant, epoch_counter)
    if not POOL.fire(draft, event.name):
        return Step(record, epoch_counter, ignored=POOL.reason(record.state, event.name))
    changed = _enter(draft, record)
    entry = _entry(record, changed, event, instant)
    effects: list[Effect] = []
    if draft.epoch_counter > epoch_counter:
        effects.append(TakeEpoch(draft.epoch_counter))
    if draft.forgotten:
        effects.append(ForgetMachine("pool", record.name))
    else:
        effects += [SaveMachine("pool", record.name, changed), AppendHistory("pool", record.name, entry)]
    return Step(changed, draft.epoch_counter, tuple(effects), (entry,), draft.forgotten)


def settle(
    record: PoolRecord,
    next_event: Callable[[PoolRecord], Event | None],
    instant: Instant,
    epoch_counter: int,
) -> Step:
    """Put events through until the record says nothing new follows from the world.

    Several transitions come out as one step: one save, one history entry each, the last epoch taken. `next_event`
    derives the next event from a record and a world that does not change meanwhile. Raises AssertionError when the
    events do not come to an end.
    """
    entries: list[HistoryEntry] = []
    counter, current = epoch_counter, record
    for _ in range(MAX_EVENTS_PER_SETTLE):
        event = next_event(current)
        if event is None:
            break
        step = handle(current, event, instant, counter)
        if step.ignored:
            break
        counter, current = step.epoch_counter, step.record
        entries += step.entries
        if step.forgotten:
            return Step(current, counter, (ForgetMachine("pool", record.name),), tuple(entries), forgotten=True)
    else:
        raise AssertionError(f"pool {record.name}: events without end, last in state {current.state}")
    effects: list[Effect] = [TakeEpoch(counter)] if counter > epoch_counter else []
    if current != record:
        effects.append(SaveMachine("pool", record.name, current))
    effects += [AppendHistory("pool", record.name, entry) for entry in entries]
    return Step(current, counter, tuple(effects), tuple(entries))


def resume(record: PoolRecord, instant: Instant, leader: str, term: int) -> PoolRecord:
    """A new leader takes a record over: deadlines restart on its own clock, the other's stamps mean nothing to it.

    A leader of the same name is another one in another term: its machine may have started anew, and with it the clock;
    and while it did not lead nobody looked, so that time must not count.
    """
    if record.term == term:
        return record
    deadline_s = _deadline(record, instant)
    return replace(record, leader=leader, term=term, deadline_s=deadline_s, moves_s=(), backoff_ms=0)


def _deadline(record: PoolRecord, instant: Instant) -> float | None:
    """Each one that passes doubles the next of the same move: what an edge always refuses is not asked for faster."""
    limit_ms = DEADLINES_MS[PoolState(record.state)]
    patience = 2 ** min(record.retries, MAX_DOUBLINGS)
    return None if limit_ms is None else instant.now_s + limit_ms * patience / 1000


def _enter(draft: PoolDraft, before: PoolRecord) -> PoolRecord:
    """The record after the row: state, its deadline, and what led to it."""
    event = draft.event
    moved = draft.state != before.state
    goes_on = not moved or {draft.state, before.state} <= set(MOVING)
    record = replace(draft.record, state=draft.state, retries=draft.record.retries if goes_on else 0)
    moved_on = moved or record.epoch != before.epoch
    last_move = dict(record.last_move)
    if record.epoch != before.epoch and record.target is not None:
        last_move = {"from": before.owner or "", "to": record.target, "epoch": record.epoch, "cause": event.cause}
        last_move["started_ms"] = draft.instant.wall_ms
    for phase, value in event.phases_ms.items():
        last_move[f"{phase}_ms"] = value
    return replace(
        record,
        since_ms=draft.instant.wall_ms if moved else record.since_ms,
        deadline_s=_deadline(record, draft.instant),
        cause=event.cause if moved_on else record.cause,
        evidence=dict(event.evidence) if event.evidence and moved_on else record.evidence,
        last_move=last_move,
        edges=_edges(record, before, event),
        seq=before.seq + 1,
    )


def _edges(record: PoolRecord, before: PoolRecord, event: Event) -> Mapping[str, EdgeView]:
    """A number above all others is meant for every edge, whoever it is by now; one of a plan for those who have it."""
    of_a_plan = event.name == PoolEvent.PLAN_EXECUTED or record.epoch in {plan.epoch for plan in before.plan}
    if record.epoch == before.epoch or of_a_plan:
        return record.edges
    named = event.targets if event.name == PoolEvent.EDGE_RENEWED else ()
    views = {**{name: EdgeView() for name in named}, **record.edges}
    return {n: replace(view, incarnation=f"*{view.incarnation.removeprefix('*')}") for n, view in views.items()}


def _entry(before: PoolRecord, after: PoolRecord, event: Event, instant: Instant) -> HistoryEntry:
    return HistoryEntry(
        seq=after.seq,
        from_state=before.state,
        to_state=after.state,
        event=event.name,
        cause=event.cause,
        evidence=dict(event.evidence),
        epoch=after.epoch,
        owner=after.owner,
        target=after.target,
        at_ms=instant.wall_ms,
        phases_ms=dict(event.phases_ms),
    )
