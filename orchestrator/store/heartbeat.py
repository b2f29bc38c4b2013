"""The sign of life: a numbered record, written at a steady pace with the session's lease."""

import json
from collections import deque
from collections.abc import Callable

from fsm.ports import Clock
from orchestrator.store.lease import Session
from orchestrator.store.port import Indeterminate, LeaseLost, Store, Unavailable

SCHEMA = 1
_REMEMBERED = 64
_LOOK_EVERY_S = 0.5
_SILENT_AFTER_S = 3.0
"""So long after the last beat that it took, a store is said to be silent, in seconds."""


class Heartbeat:
    """Writes ``{"schema": 1, "seq": n, "progress": p}`` every interval.

    Its revision is what others judge by: the lease alone lives on for seconds after its owner died. The writer's own
    commits are remembered too, since only someone whose own writes get through may call another one dead.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        clock: Clock,
        interval_ms: int,
        session: Session,
        progress: Callable[[], int],
        on_commit: Callable[[int], None] | None = None,
    ) -> None:
        """``on_commit`` is called with the revision of each beat that the store confirmed."""
        if interval_ms <= 0:
            raise ValueError(f"heartbeat interval {interval_ms} ms must be positive")
        self._store = store
        self._key = key
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._session = session
        self._progress = progress
        self._commits: deque[int] = deque(maxlen=_REMEMBERED)
        self.on_commit = on_commit
        self.seq = 0
        """Number of the last beat sent."""
        self.failures = 0
        """Beats that the store did not confirm."""
        self._heard_s = clock.now()
        self.failure = ""
        """What the last of them met with."""

    @property
    def key(self) -> str:
        """The key written."""
        return self._key

    def committed_since(self, revision: int) -> int:
        """How many of the last 64 beats the store confirmed at a revision above this one."""
        return sum(1 for committed in self._commits if committed > revision)

    async def run(self) -> None:
        """Beat for ever; cancel it to stop. A slow write delays the next beat, two are never under way at once."""
        due = self._clock.now()
        while True:
            await self.beat()
            due = max(due + self._interval_s, self._clock.now())
            await self._clock.sleep(due - self._clock.now())

    async def notice(self, log: Callable[..., object]) -> None:
        """Say when the store falls silent, and why, and when it is back; nothing else follows from it. For ever."""
        self._heard_s = self._clock.now()
        silent = False
        while True:
            await self._clock.sleep(_LOOK_EVERY_S)
            silent_s = self._clock.now() - self._heard_s
            if not silent and silent_s > _SILENT_AFTER_S:
                log("the store does not answer", silent_s=round(silent_s, 1), reason=self.failure)
            elif silent and silent_s <= _SILENT_AFTER_S:
                log("the store answers again")
            silent = silent_s > _SILENT_AFTER_S

    async def beat(self) -> bool:
        """Write one beat; returns whether the store confirmed it. Without a lease nothing is written."""
        lease_id = self._session.lease_id
        if lease_id == 0:
            return False
        self.seq += 1
        record = {"schema": SCHEMA, "seq": self.seq, "progress": self._progress()}
        value = json.dumps(record, separators=(",", ":")).encode()
        try:
            revision = await self._store.put(self._key, value, lease_id)
        except LeaseLost:
            self._session.report_lost(lease_id)
            self.failures += 1
            return False
        except (Unavailable, Indeterminate) as error:
            self.failures += 1
            self.failure = str(error)
            return False
        self._commits.append(revision)
        self._heard_s = self._clock.now()
        if self.on_commit is not None:
            self.on_commit(revision)
        return True
