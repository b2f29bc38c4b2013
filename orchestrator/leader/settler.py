"""Letting one pool settle: the core's step, what is derived from it for the agents, and all of it as one batch."""

from collections.abc import Callable
from dataclasses import replace

from fsm import core
from fsm.conditions import observe
from fsm.desired import pool_desired
from fsm.effects import DropDesired, Effect, SaveMachine, SetDesired
from fsm.evaluate import PoolView, next_event
from fsm.events import Event
from fsm.records import EdgePool, NodePool, PoolRecord
from fsm.types import Instant, PoolState
from orchestrator.leader.knowledge import Knowledge
from orchestrator.leader.writes import Batch
from orchestrator.store.keys import Keys

TOLD_AT_ONCE = 80
"""Agents that are told of a pool in one transaction, which holds 128 operations; the others follow in the next."""


class Settler:
    """Puts pools through the core as the replica `name`; `term` gives the create revision of its leader key."""

    def __init__(
        self, name: str, keys: Keys, knowledge: Knowledge, wall_ms: Callable[[], int], term: Callable[[], int]
    ) -> None:
        self._name, self._keys, self._known, self._wall_ms, self._term = name, keys, knowledge, wall_ms, term

    def settle(
        self,
        name: str,
        view: PoolView,
        now: float,
        counter: int,
        first: Event | None = None,
        changed: PoolRecord | None = None,
    ) -> tuple[Batch | None, int]:
        """The batch that a pool's settling leads to, None if nothing follows, and the epoch counter after it.

        `first` is an event that an operator asked for, `changed` a record that he changed.
        """
        if self._keys.machine("pool", name) in self._known.problems:
            return None, counter  # its record is of another version, or damaged: not ours to overwrite
        instant = Instant(now, self._wall_ms())
        before = self._known.machines.get(name)
        if before is None and (view.spec is None or view.spec.deleted):
            return None, counter
        record = changed or before or core.new_pool(name, instant, self._name, self._term())
        record = core.resume(record, instant, self._name, self._term())
        if record.state == PoolState.PENDING and self._taken(name, view):
            # An edge that hears of the new pool first would refuse to let the old one go: its number is lower.
            view = replace(view, gateways={})
        asked = iter([first] if first is not None else [])

        def following(current: PoolRecord) -> Event | None:
            return next(asked, None) or next_event(current, view)

        step = core.settle(record, following, instant, counter)
        after = observe(step.record, view)
        effects: list[Effect] = [e for e in step.effects if not isinstance(e, SaveMachine)]
        if not step.forgotten and after != before:
            effects.append(SaveMachine("pool", name, after))
        told = self._desired(name, None if step.forgotten else after, view)
        base = self._known.revisions.get(self._keys.machine("pool", name), 0) if before is not None else 0
        if len(told) > TOLD_AT_ONCE and step.forgotten:
            # The record goes last: without it nobody would know who is still to be told.
            return Batch(tuple(told[:TOLD_AT_ONCE]), name, base, more=True), counter
        effects += told[:TOLD_AT_ONCE]
        if not effects:
            return None, counter
        batch = Batch(tuple(effects), name, base, after.epoch, after.seq, more=len(told) > TOLD_AT_ONCE)
        return batch, step.epoch_counter

    def _taken(self, name: str, view: PoolView) -> bool:
        """Whether an edge is still told of another pool, one that is being deleted, with one of these prefixes."""
        if view.spec is None:
            return False
        index = self._known.told_prefixes()
        return any(index.pools(prefix) - {name} for prefix in view.spec.addresses)

    def _desired(self, name: str, record: PoolRecord | None, view: PoolView) -> list[Effect]:
        """How what the agents are told of a pool differs from what they should be told, most urgent first."""
        told = self._known.pool_desired(name)
        wanted = pool_desired(record, view.spec, view.group) if record and view.spec and view.group else {}
        effects: list[Effect] = [
            SetDesired(role, agent, "pool", name, value)
            for (role, agent), value in wanted.items()
            if told.get((role, agent)) != value
        ]
        effects += [DropDesired(role, agent, "pool", name) for role, agent in told if (role, agent) not in wanted]
        return effects if len(effects) <= TOLD_AT_ONCE else sorted(effects, key=_urgency)


def _urgency(effect: Effect) -> int:
    """Edges and those who announce before those who only prepare; what is taken back last, from the edges last of all.

    An edge that is told of nothing takes its confirmation back, on which the end of a deletion rests.
    """
    match effect:
        case SetDesired(value=EdgePool()):
            return 0
        case SetDesired(value=NodePool(announce=True)):
            return 1
        case SetDesired():
            return 2
        case DropDesired(role="node"):
            return 3
    return 4
