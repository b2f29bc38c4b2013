"""The leader's loop: look, judge, commit. One writer, one turn at a time.

A turn takes what is known now, lets every pool that may be concerned settle, and commits what follows; what the store
refuses is looked at again. Followers run the same loop with nothing to do, so that they are warm when they lead.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from fsm.effects import AppendHistory, Failed, ForgetMachine
from fsm.evaluate import PoolView
from fsm.ports import Clock
from orchestrator.leader.docket import Docket
from orchestrator.leader.intent import IntentKeeper
from orchestrator.leader.interpret import GUARD_FAILED, Interpreter, chunks
from orchestrator.leader.knowledge import Knowledge
from orchestrator.leader.ledger import record_commit
from orchestrator.leader.lookout import Lookout
from orchestrator.leader.numbers import last_number
from orchestrator.leader.settler import Settler
from orchestrator.leader.writes import Batch
from orchestrator.log import transition
from orchestrator.store.keys import Keys
from orchestrator.store.port import Change, Guard
from orchestrator.store.records import POOL_KIND

TICK_S = 0.2
"""How often ages and deadlines are looked at when nothing else happens, in seconds."""

RETRY_S = 0.05
"""Pause after a commit that failed, in seconds; a change that arrives ends it."""

SETTLED_AT_ONCE = 50
"""Pools that are decided between two commits: some milliseconds of work."""

SETTLED_IN_A_ROW = 10
"""Pools that are decided before everything else gets its turn: a heartbeat takes several turns to get through."""

TAKEN_IN_AT_ONCE = 200
"""Records that are read between two turns of everything else, heartbeats above all: some milliseconds of work."""

Log = Callable[..., None]


class LeaderLoop:
    """Runs in every replica; acts while `leads` says so."""

    def __init__(
        self,
        *,
        name: str,
        keys: Keys,
        clock: Clock,
        wall_ms: Callable[[], int],
        knowledge: Knowledge,
        interpreter: Interpreter,
        leads: Callable[[], bool],
        term: Callable[[], int],
        guard: Callable[[], Guard],
        mirror_age_s: Callable[[float], float],
        log: Log,
        reconcile_every_s: float = 10.0,
    ) -> None:
        self._name, self._keys, self._clock = name, keys, clock
        self._known, self._interpreter = knowledge, interpreter
        self._leads, self._guard = leads, guard
        self._log, self._reconcile_every_s = log, reconcile_every_s
        self.intent = IntentKeeper()
        self._wake = asyncio.Event()
        self._dirty: set[str] = set()
        self._lookout = Lookout(knowledge, mirror_age_s)
        self._settler = Settler(name, keys, knowledge, wall_ms, term)
        self._docket = Docket(knowledge, self.intent, self._settler)
        self._leading = False
        self._changed_s = self._turned_s = 0.0
        self._write_failed = False
        self.turns = 0
        """Turns taken, and pieces of long ones: what the zombie rule takes for progress. A thousand pools on little of
        a processor may take a single turn longer than a lease.
        """

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def on_changes(self, changes: tuple[Change, ...]) -> None:
        """The mirror's listener: synchronous, so that knowledge is never half-way between two revisions."""
        if not self._leads():
            self._known.defer(changes, self._clock.now())
            return
        touched = self._known.apply(changes, self._clock.now())
        if touched:
            if not self._dirty:
                self._changed_s = self._clock.now()
            self._dirty |= touched
            self._wake.set()

    def wake(self) -> None:
        """Something outside the store changed: leadership, intent."""
        self._dirty.add("base")
        self._wake.set()

    def catch_up(self) -> None:
        """Know all that the mirror brought: a follower reads it only when it is asked, or begins to lead."""
        self._dirty |= self._known.catch_up(self._clock.now())

    def problems(self) -> tuple[str, ...]:
        """What is wrong with the intent that this replica reads, what that lacks, and records that can't be read."""
        self.catch_up()
        lacking = self.intent.missing(self._known)
        text = "accepted, but not in this replica's folder: " + ", ".join(f"{kind}/{name}" for kind, name in lacking)
        refused = self.intent.conflicts(self._known)
        return (*self.intent.problems, *refused, *((text,) if lacking else ()), *self._known.problems.values())

    # ---- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Turn for ever; cancel it to stop."""
        reconcile_s = self._clock.now()
        while True:
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self.turns += 1
            if self._clock.now() >= reconcile_s:
                self._dirty |= {"base", *self._known.machines}
                reconcile_s = self._clock.now() + self._reconcile_every_s
            if not self._leads():
                self._step_down()
            elif not await self.turn():
                await self._pause()

    def _step_down(self) -> None:
        if self._leading:
            self._leading = False
            self.intent.forget()
            self._log("leadership ended", leader=self._name)
        self._dirty.clear()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RETRY_S):
                await self._wake.wait()
        except TimeoutError:
            self._wake.set()

    async def _breathe(self) -> None:
        """A piece of a long turn is done: that is progress, and everything else gets its turn."""
        self.turns += 1
        await self._clock.sleep(0)

    async def turn(self) -> bool:
        """Look once and commit what follows; False if something has to be tried again."""
        while self._known.behind:  # a follower that begins to lead
            self._dirty |= self._known.catch_up(self._clock.now(), TAKEN_IN_AT_ONCE)
            await self._breathe()
        if not self._leading:
            self._leading = True
            self.intent.forget()
            self._dirty |= {"base", *self._known.machines}
            self._log("leadership began", leader=self._name)
        now = self._clock.now()
        dirty, self._dirty = self._dirty, set()
        lacking = self.intent.missing(self._known)
        moved = self._lookout.look(now)
        batches = self._docket.bases() if "base" in dirty else []
        views = self._lookout.views(now, self._write_failed, {name for kind, name in lacking if kind == POOL_KIND})
        requested, waiting = self._docket.requests(views, now) if "base" in dirty else ([], False)
        if waiting:
            self._dirty.add("base")
        asked = {batch.machine for batch in requested}
        every = self._lookout.names() if "base" in dirty else set()
        names = (dirty | moved | self._due(now) | every) - asked
        names &= self._lookout.names() if names else set()
        more = bool(batches)
        ok, settled = await self._settle(sorted(names), views, now, [*requested, *batches], dirty | moved)
        if ok and (more or settled) and "base" in dirty:
            self._dirty.add("base")  # what was accepted may call for more: pools of a new spec, bases of a new agent
            self._wake.set()
        return ok

    async def _settle(
        self, names: list[str], views: Mapping[str, PoolView], now: float, batches: list[Batch], dirty: set[str]
    ) -> tuple[bool, bool]:
        """Let these pools settle and commit what follows, some at a time: (all is committed, some of it is pools').

        `batches` go before them. A thousand pools at once would keep everything else waiting, heartbeats included, and
        the first of them until the last was decided.
        """
        counter, settled = max((batch.last_number for batch in batches), default=0), False
        for start in range(0, max(len(names), 1), SETTLED_AT_ONCE):
            counter = max(counter, last_number(self._known))
            for number, name in enumerate(names[start : start + SETTLED_AT_ONCE], 1):
                if number % SETTLED_IN_A_ROW == 0:
                    await self._breathe()
                self._dirty.discard(name)
                view = views.get(name)  # none, if its spec was finished meanwhile
                batch, counter = self._settler.settle(name, view, now, counter) if view else (None, counter)
                if batch is not None:
                    batches.append(batch)
                    settled = True
            ok = await self._commit(batches, dirty)
            unfinished = {batch.machine for batch in batches if batch.more}
            if any(isinstance(write, ForgetMachine) for batch in batches for write in batch.writes):
                unfinished.add("base")  # somebody may wait for its prefixes, and nothing is to be left of its spec
            batches = []
            if unfinished:
                self._dirty |= unfinished
                self._wake.set()
            if not ok or not self._leads():
                self._dirty |= {*names[start:]}
                return False, settled
        return True, settled

    def _due(self, now: float) -> set[str]:
        """Pools whose deadline is over, or whose back-off ended since the last turn."""
        before, self._turned_s = self._turned_s, now
        damped = (record for record in self._known.timed.values() if record.backoff_ms and record.moves_s)
        ends = {r.name: r.moves_s[-1] + r.backoff_ms / 1000 for r in damped}
        late = {r.name for r in self._known.timed.values() if r.deadline_s is not None and r.deadline_s <= now}
        return late | {name for name, end in ends.items() if before < end <= now}

    # ---- committing ------------------------------------------------------------------------------------------------

    async def _commit(self, batches: list[Batch], dirty: set[str]) -> bool:
        """Commit all batches, in as many transactions as they need; what failed is dirty again.

        Where a guard does not hold, it is one pool's: the others of its transaction must not wait for it.
        """
        ok = True
        groups = deque(chunks(batches))
        while groups:
            group = groups.popleft()
            failed = await self._commit_together(group)
            if failed is None:
                continue
            if failed.reason == GUARD_FAILED and len(group) > 1 and self._leads():
                groups.extendleft([batch] for batch in reversed(group))
                continue
            ok = False
            self._refused(group, failed, dirty)
            if failed.reason != GUARD_FAILED:
                break
        return ok

    async def _commit_together(self, group: list[Batch]) -> Failed | None:
        """One transaction; None if it is in etcd."""
        known = self._known
        counter_revision = known.revisions.get(self._keys.epoch_counter, 0) if known.epoch_counter else 0
        outcomes = await self._interpreter.commit(group, self._guard(), counter_revision)
        for batch, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Failed):
                return outcome
            record_commit(self._known, self._keys, batch, outcome.revision)
            self._log_transitions(batch, outcome.revision)
        if self._write_failed:
            self._log("writes are done again")
        self._write_failed = False
        return None

    def _refused(self, group: list[Batch], failed: Failed, dirty: set[str]) -> None:
        if not self._write_failed:
            self._log("a write was not done", machine=failed.machine, kind=failed.kind, reason=failed.reason)
        self._write_failed = True
        self._dirty |= {"base", *(batch.machine for batch in group), *dirty} - {""}

    def _log_transitions(self, batch: Batch, revision: int) -> None:
        decide_ms = round((self._clock.now() - self._changed_s) * 1000, 1)
        for write in batch.writes:
            if isinstance(write, AppendHistory):
                fields = transition(write.type, write.name, write.entry)
                self._log("transition", **fields, revision=revision, decide_ms=decide_ms)
