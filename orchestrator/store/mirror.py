"""A copy of all keys below a prefix, kept current by a watch and checked by a full read."""

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import aclosing

from fsm.ports import Clock
from orchestrator.store.port import Change, Compacted, KeyValue, Snapshot, Store, StoreChanged, Unavailable

_RETRY_S = 0.2
"""Pause after a read that nobody answered."""
_KEYS_A_PERIOD = 2000
"""A copy of more keys is checked less often, so that reading it whole costs the same share of the time."""
_CATCH_UP_S = 1.0
"""How long a watch may lag behind a full read before it counts as deaf."""


class Mirror:
    """Keeps ``{key: KeyValue}`` for a prefix and tells one listener of every change, in order.

    The first full read is told as changes too, so a listener needs no second way in. When history was compacted away,
    or when a watch went deaf (it lives but brings nothing), a full read repairs the copy: what differs is told as
    changes, deletions included. A deletion found that way carries the revision of the read that found it.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        clock: Clock,
        repair_every_s: float,
        on_changes: Callable[[tuple[Change, ...]], None] | None = None,
    ) -> None:
        """``repair_every_s`` is the period of the full read that checks the watch."""
        if repair_every_s <= 0:
            raise ValueError(f"repair period {repair_every_s} s must be positive")
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._repair_every_s = repair_every_s
        self._on_changes = on_changes
        self._items: dict[str, KeyValue] = {}
        self._deleted_at: dict[str, int] = {}
        self._cluster_id: int | None = None
        self._current_at = -math.inf
        self.revision = 0
        """Everything up to this revision is in the copy."""
        self.ready = asyncio.Event()
        """Set after the first full read."""
        self.repairs = 0
        """Times that a full read found the watch deaf."""
        self.reloads = 0
        """Full reads that replaced the copy: the first, and one after each compaction or repair."""

    def age(self, now: float) -> float:
        """Seconds since the store last confirmed that the copy was current; infinite before the first read.

        A quiet watch is confirmed by the server's sign of life, so some 0.5 s are normal. A member that has just lost
        its quorum may still give that sign until it notices (about 4 s with etcd's default timers).
        """
        return now - self._current_at

    def get(self, key: str) -> KeyValue | None:
        """The key as the copy has it."""
        return self._items.get(key)

    def items(self, prefix: str = "") -> tuple[KeyValue, ...]:
        """All keys of the copy that start with this prefix, in order of key."""
        return tuple(kv for key, kv in sorted(self._items.items()) if key.startswith(prefix))

    def snapshot(self) -> dict[str, KeyValue]:
        """The whole copy by key, as it is now: for somebody who takes his time."""
        return dict(self._items)

    async def run(self) -> None:
        """Mirror for ever; cancel it to stop. Raises `StoreChanged` or `Refused`; outlives everything else."""
        while True:
            await self._reload()
            try:
                await self._until_deaf()
            except Compacted:
                continue

    async def _read(self) -> Snapshot:
        """One full read, repeated until somebody answers; checks that the store is still the same."""
        while True:
            known = self.revision  # before asking: the watch may bring newer things while the answer is on its way
            try:
                snapshot = await self._store.list(self._prefix)
            except Unavailable:
                await self._clock.sleep(_RETRY_S)
                continue
            break
        if self._cluster_id is None:
            self._cluster_id = snapshot.cluster_id
        if snapshot.cluster_id != self._cluster_id:
            raise StoreChanged(
                f"{self._prefix}: cluster {snapshot.cluster_id:x} answers, it was {self._cluster_id:x}; "
                "if that is intended, run 'bgplb store accept'"
            )
        if snapshot.revision < known:
            raise StoreChanged(
                f"{self._prefix}: the store is at revision {snapshot.revision}, it was at {known} before; "
                "if it was restored from a backup, run 'bgplb store accept'"
            )
        return snapshot

    async def _reload(self) -> None:
        asked = self._clock.now()
        snapshot = await self._read()
        changes = _difference(self._items, snapshot)
        self.reloads += 1
        self.revision = snapshot.revision
        self._current_at = asked
        self._apply(changes)
        self.ready.set()

    async def _until_deaf(self) -> None:
        """Follow the watch; returns when a full read shows that it brings nothing any more."""
        watch = asyncio.create_task(self._follow(self.revision + 1), name=f"watch {self._prefix}")
        audit = asyncio.create_task(self._audit(), name=f"audit {self._prefix}")
        try:
            await asyncio.wait({watch, audit}, return_when=asyncio.FIRST_COMPLETED)
            for task in (watch, audit):
                if task.done():
                    task.result()
        finally:
            watch.cancel()
            audit.cancel()
            await asyncio.gather(watch, audit, return_exceptions=True)

    async def _follow(self, start_revision: int) -> None:
        async with aclosing(self._store.watch(self._prefix, start_revision)) as stream:
            async for changes in stream:
                self._current_at = self._clock.now()
                fresh = tuple(change for change in changes if change.mod_revision > self.revision)
                if fresh:
                    self.revision = max(change.mod_revision for change in fresh)
                    self._apply(fresh)
        raise AssertionError(f"the watch of {self._prefix} ended without an error")

    async def _audit(self) -> None:
        """Compare with a full read at each period; returns once the watch is found deaf."""
        while True:
            await self._clock.sleep(self._repair_every_s * max(1.0, len(self._items) / _KEYS_A_PERIOD))
            self._deleted_at.clear()
            snapshot = await self._read()
            if not self._lags(snapshot):
                continue
            await self._clock.sleep(_CATCH_UP_S)
            if self._lags(snapshot):
                self.repairs += 1
                return

    def _lags(self, snapshot: Snapshot) -> bool:
        """Whether the copy lacks something that this full read had, whatever newer things it has."""
        for kv in snapshot.items:
            mine = self._items.get(kv.key)
            known_revision = self._deleted_at.get(kv.key, 0) if mine is None else mine.mod_revision
            if known_revision < kv.mod_revision:
                return True
        present = {kv.key for kv in snapshot.items}
        return any(kv.mod_revision <= snapshot.revision and key not in present for key, kv in self._items.items())

    def _apply(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if change.value is None:
                self._items.pop(change.key, None)
                self._deleted_at[change.key] = change.mod_revision
            else:
                self._items[change.key] = KeyValue(
                    change.key, change.value, change.create_revision, change.mod_revision, change.lease
                )
        if changes and self._on_changes is not None:
            self._on_changes(changes)


def _difference(items: dict[str, KeyValue], snapshot: Snapshot) -> tuple[Change, ...]:
    """The changes that lead from the copy to the snapshot, in order of revision, deletions first."""
    present = {kv.key for kv in snapshot.items}
    gone: Iterable[Change] = (Change(key, None, 0, snapshot.revision, 0) for key in sorted(items) if key not in present)
    written = sorted((kv for kv in snapshot.items if items.get(kv.key) != kv), key=lambda kv: (kv.mod_revision, kv.key))
    puts = (Change(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease) for kv in written)
    return (*gone, *puts)
