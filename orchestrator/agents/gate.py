"""What the watch brings, and when it must not be obeyed: after the process stood still, and before an edge was born.

A process that was frozen finds in its buffers what was ordered in the meantime, perhaps long outdated. It asks the
store first, and obeys what that says now; older things that the watch still brings are dropped, newer ones follow.
"""

import asyncio
from collections.abc import Callable, Iterable

from fsm.ports import Clock
from orchestrator.store.keys import DesiredKey, Keys
from orchestrator.store.port import Change, Store, Unavailable

BEAT_S = 0.25
GAP_S = 1.0
"""Standing still for so long is a gap, in seconds: four heartbeats, when others call us stale."""
RETRY_S = 0.2

Log = Callable[..., None]
Deliver = Callable[[tuple[Change, ...]], None]


class Gate:
    """Between a mirror and the agent; `run` beside the mirror."""

    def __init__(self, store: Store, keys: Keys, prefix: str, clock: Clock, deliver: Deliver, log: Log) -> None:
        self._store, self._keys, self._prefix, self._clock = store, keys, prefix, clock
        self._deliver, self._log = deliver, log
        self.born_revision = 0
        """Orders for pools that were written up to there are withheld."""
        self._beat_s = clock.now()
        self._floor = 0
        self._known: set[str] = set()
        self._doubt = asyncio.Event()
        self._withheld: dict[str, Change] = {}
        """What the watch brought in the time of doubt, the last of each key: the read may be older than that."""
        self.gaps = 0
        """Times that the process was found to have stood still."""

    def on_changes(self, changes: tuple[Change, ...]) -> None:
        """The mirror's listener."""
        self._look()
        if self._doubt.is_set():
            self._withheld |= {change.key: change for change in changes}
        else:
            self._pass(self._newer(changes))

    async def run(self) -> None:
        """Notice gaps, and after each one ask the store what is wanted now; for ever."""
        self._beat_s = self._clock.now()
        while True:
            await self._clock.sleep(BEAT_S)
            self._look()
            if self._doubt.is_set():
                await self._verify()

    def _look(self) -> None:
        """Called before anything is passed on: whoever wakes up may find the watch's word before the clock's."""
        now = self._clock.now()
        if now - self._beat_s > BEAT_S + GAP_S and not self._doubt.is_set():
            self.gaps += 1
            self._log("stood still; what is wanted is read anew", gap_s=round(now - self._beat_s, 2))
            self._doubt.set()
        self._beat_s = now

    async def _verify(self) -> None:
        """One linearizable read of all that is wanted. Without an answer nothing is obeyed, and what stands, stands."""
        while True:
            began_s = self._clock.now()
            try:
                snapshot = await self._store.list(self._prefix)
            except Unavailable:
                await self._clock.sleep(RETRY_S)
                self._beat_s = self._clock.now()
                continue
            if self._clock.now() - began_s <= GAP_S:  # else we stood still again, and the answer is as old as that
                break
        self._floor = max(self._floor, snapshot.revision)
        self._doubt.clear()
        self._beat_s = self._clock.now()
        present = {kv.key for kv in snapshot.items}
        gone = [Change(key, None, 0, snapshot.revision, 0) for key in sorted(self._known - present)]
        now = [Change(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease) for kv in snapshot.items]
        withheld, self._withheld = self._withheld, {}
        self._pass((*gone, *now))
        if later := self._newer(withheld.values()):
            self._pass(later)

    def _newer(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Those that the last read did not know yet."""
        return tuple(change for change in changes if change.mod_revision > self._floor)

    def _pass(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            (self._known.discard if change.value is None else self._known.add)(change.key)
        meant = tuple(change for change in changes if not self._before_birth(change))
        if meant or not changes:
            self._deliver(meant)

    def _before_birth(self, change: Change) -> bool:
        """An order for a pool that was written before this edge came to the store without a past."""
        if change.value is None or change.mod_revision > self.born_revision:
            return False
        try:
            return isinstance(self._keys.parse(change.key), DesiredKey)
        except ValueError:
            return False  # the agent says what is wrong with it
