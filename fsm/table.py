"""Tables of transitions: what a table is, how it is checked, how one event is put through it.

The engine knows nothing of pools or egress policies; a machine type is a `Table` value and a record type.
`transitions` runs synchronously on one shared machine and touches only the draft it is given.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from transitions import EventData, Machine


class Draft(Protocol):
    """What acts and guards see: the record being changed; `state` plus whatever the table's own acts use."""

    state: str


D = TypeVar("D", bound=Draft)


@dataclass(frozen=True, slots=True)
class State:
    """A state, what it means, and how long it may last (`deadline_ms`; None: as long as it likes)."""

    name: str
    meaning: str
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Row(Generic[D]):
    """In any of `sources`, `event` leads to `dest` if `guard` holds; then `acts` run in order on the draft."""

    event: str
    sources: tuple[str, ...]
    dest: str
    why: str
    guard: Callable[[D], bool] | None = None
    acts: tuple[Callable[[D], None], ...] = ()


@dataclass(frozen=True, slots=True)
class Ignore:
    """In any of `states`, any of `events` that no row takes changes nothing, for this reason."""

    events: tuple[str, ...]
    states: tuple[str, ...]
    reason: str


class TableError(Exception):
    """A table that must not be used; the text lists every fault found."""


class Table(Generic[D]):
    """A checked table. Raises `TableError` when it is built from rows that do not make one."""

    def __init__(
        self,
        name: str,
        initial: str,
        states: Iterable[State],
        events: Iterable[str],
        rows: Iterable[Row[D]],
        ignores: Iterable[Ignore],
    ) -> None:
        self.name, self.initial = name, initial
        self.states = {state.name: state for state in states}
        self.events, self.rows, self.ignores = tuple(events), tuple(rows), tuple(ignores)
        faults = lint(self)
        if faults:
            raise TableError(f"table {name}: " + "; ".join(faults))
        self._reasons = {(e, s): i.reason for i in self.ignores for e in i.events for s in i.states}
        self._machine = Machine(
            model=None,
            states=[str(name) for name in self.states],
            initial=str(initial),
            transitions=[_as_transition(row) for row in self.rows],
            auto_transitions=False,
            send_event=True,
        )

    def fire(self, draft: D, event: str) -> bool:
        """Put one event through; True if a row took it. An event that nobody wants leaves the draft as it is."""
        if event not in self.events:
            raise ValueError(f"table {self.name} has no event {event!r}")
        if not any(event == row.event and draft.state in row.sources for row in self.rows):
            return False
        draft.state = str(draft.state)
        return bool(self._machine.events[event].trigger(draft))

    def reason(self, state: str, event: str) -> str:
        """Why that event changes nothing in that state, where it does not."""
        return self._reasons.get((event, state), "no guard of its rows holds")


def _as_transition(row: Row[Any]) -> dict[str, Any]:
    guard, acts = row.guard, row.acts

    def holds(data: EventData) -> bool:
        return guard is None or guard(data.model)

    def act(data: EventData) -> None:
        for one in acts:
            one(data.model)

    # Acts run before the state changes: an act that raises then leaves the old state in place. Names are plain text
    # here and in the draft, since `transitions` would know an enum's member by its Python name, and a record that was
    # read back from the store holds its value.
    return {
        "trigger": str(row.event),
        "source": [str(source) for source in row.sources],
        "dest": str(row.dest),
        "conditions": [holds],
        "before": [act],
    }


def lint(table: Table[Any]) -> list[str]:
    """Every fault of a table: unknown names, unreachable states, pairs neither row nor reasoned ignore, dead rows."""
    faults: list[str] = []
    states, events = set(table.states), set(table.events)
    if table.initial not in states:
        faults.append(f"initial state {table.initial} is unknown")
    for row in table.rows:
        faults += [f"{row.event}: unknown source {s}" for s in row.sources if s not in states]
        if row.dest not in states:
            faults.append(f"{row.event}: unknown destination {row.dest}")
        if row.event not in events:
            faults.append(f"unknown event {row.event}")
        if not row.why:
            faults.append(f"{row.event} -> {row.dest} has no reason")
    for ignore in table.ignores:
        faults += [f"ignore: unknown event {e}" for e in ignore.events if e not in events]
        faults += [f"ignore: unknown state {s}" for s in ignore.states if s not in states]
        if not ignore.reason:
            faults.append(f"ignore of {', '.join(ignore.events)} has no reason")
    faults += [f"state {name} has no meaning" for name, state in table.states.items() if not state.meaning]
    return faults + _unreachable(table) + _partial(table)


def _unreachable(table: Table[Any]) -> list[str]:
    seen, front = {table.initial}, [table.initial]
    while front:
        state = front.pop()
        for row in table.rows:
            if state in row.sources and row.dest not in seen:
                seen.add(row.dest)
                front.append(row.dest)
    return [f"state {s} cannot be reached" for s in table.states if s not in seen]


def _partial(table: Table[Any]) -> list[str]:
    """A pair must end in an unguarded row or an ignore; a row behind an unguarded one never fires."""
    faults: list[str] = []
    ignored = [(e, s) for i in table.ignores for e in i.events for s in i.states]
    faults += [f"({s}, {e}) is ignored twice" for e, s in sorted(set(ignored)) if ignored.count((e, s)) > 1]
    for state in table.states:
        for event in table.events:
            rows = [r for r in table.rows if r.event == event and state in r.sources]
            closed = [i for i, r in enumerate(rows) if r.guard is None]
            if closed and closed[0] != len(rows) - 1:
                faults.append(f"({state}, {event}): a row after an unguarded one never fires")
            if not closed and (event, state) not in ignored:
                faults.append(f"({state}, {event}) is neither a row nor a reasoned ignore")
            if closed and (event, state) in ignored:
                faults.append(f"({state}, {event}) is both a row and an ignore")
    return faults
