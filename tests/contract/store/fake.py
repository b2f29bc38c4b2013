"""A store in memory with etcd's semantics: revisions, leases by a clock, watches, compaction; and faults on demand."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from fsm.ports import Clock
from orchestrator.store.port import (
    Change,
    Compacted,
    CreatedAt,
    Delete,
    DeletePrefix,
    Grant,
    Guard,
    Indeterminate,
    KeyValue,
    LeaseLost,
    Op,
    Put,
    Snapshot,
    Status,
    StoreChanged,
    TxnResult,
    Unavailable,
    check_txn,
)

_HEARTBEAT_S = 0.5
_MIN_TTL_S = 2
"""What etcd raises shorter leases to, with its default election timeout."""


class FakeEtcd:
    """The server side, shared by any number of `FakeStore` clients."""

    def __init__(self, clock: Clock, cluster_id: int = 0xC1) -> None:
        self.clock = clock
        self.cluster_id = cluster_id
        self.revision = 1
        self.compacted = 0
        self.items: dict[str, KeyValue] = {}
        self.log: list[tuple[int, tuple[Change, ...]]] = []
        self.leases: dict[int, tuple[int, float]] = {}
        self.wakers: set[asyncio.Event] = set()
        self._next_lease = 0x1000
        self._expiries: set[asyncio.Task[None]] = set()

    def client(self) -> "FakeStore":
        """A client with faults of its own."""
        return FakeStore(self)

    def commit(self, ops: Sequence[Op]) -> int:
        """Do the operations in one new revision, if any has an effect; returns the revision."""
        for op in ops:
            if isinstance(op, Put) and op.lease != 0 and op.lease not in self.leases:
                raise LeaseLost(op.lease)
        revision = self.revision + 1
        changes: list[Change] = []
        for op in ops:
            if isinstance(op, Put):
                old = self.items.get(op.key)
                created = old.create_revision if old else revision
                self.items[op.key] = KeyValue(op.key, op.value, created, revision, op.lease)
                changes.append(Change(op.key, op.value, created, revision, op.lease))
            else:
                for key in self._doomed(op):
                    del self.items[key]
                    changes.append(Change(key, None, 0, revision, 0))
        if changes:
            self.revision = revision
            self.log.append((revision, tuple(changes)))
            for waker in self.wakers:
                waker.set()
        return self.revision

    def _doomed(self, op: Delete | DeletePrefix) -> list[str]:
        if isinstance(op, Delete):
            return [op.key] if op.key in self.items else []
        return sorted(key for key in self.items if key.startswith(op.prefix))

    def holds(self, guard: Guard) -> bool:
        """Whether a guard holds now."""
        kv = self.items.get(guard.key)
        if kv is None:
            return guard.revision == 0
        return guard.revision == (kv.create_revision if isinstance(guard, CreatedAt) else kv.mod_revision)

    def grant(self, ttl_s: int) -> Grant:
        """A new lease, and the task that ends it."""
        self._next_lease += 1
        lease_id, ttl_s = self._next_lease, max(ttl_s, _MIN_TTL_S)
        self.leases[lease_id] = (ttl_s, self.clock.now() + ttl_s)
        task = asyncio.create_task(self._expire(lease_id))
        self._expiries.add(task)
        task.add_done_callback(self._expiries.discard)
        return Grant(lease_id, ttl_s)

    async def _expire(self, lease_id: int) -> None:
        while lease_id in self.leases:
            left_s = self.leases[lease_id][1] - self.clock.now()
            if left_s <= 0:
                self.end_lease(lease_id)
            else:
                await self.clock.sleep(left_s)

    def end_lease(self, lease_id: int) -> None:
        """Remove a lease with its keys; unknown is fine."""
        self.leases.pop(lease_id, None)
        keys = sorted(key for key, kv in self.items.items() if lease_id and kv.lease == lease_id)
        if keys:
            self.commit([Delete(key) for key in keys])

    def compact(self, revision: int) -> None:
        """Forget history below that revision."""
        self.compacted = revision
        self.log = [(at, changes) for at, changes in self.log if at >= revision]

    def wipe(self, cluster_id: int | None = None) -> None:
        """Start again with nothing, as after the loss of the data folder."""
        self.cluster_id = self.cluster_id if cluster_id is None else cluster_id
        self.revision, self.compacted = 1, 0
        self.items, self.log, self.leases = {}, [], {}
        for waker in self.wakers:
            waker.set()

    async def close(self) -> None:
        """Stop the clocks of all leases."""
        for task in self._expiries:
            task.cancel()
        await asyncio.gather(*self._expiries, return_exceptions=True)


class FakeStore:
    """One client. Faults are switches: set them at any time."""

    def __init__(self, server: FakeEtcd) -> None:
        self.server = server
        self.reachable = True
        """False: calls raise Unavailable, watches are silent and go on later."""
        self.deaf = False
        """True: watches show signs of life but bring no change, and never will bring those they missed."""
        self.late = False
        """True: watches hold everything back; they bring it once this is False again."""
        self.lose_answer: Literal["no", "applied", "not applied"] = "no"
        """What became of the next write, which raises Indeterminate."""
        self.puts = 0

    async def _arrive(self) -> None:
        await asyncio.sleep(0)
        if not self.reachable:
            raise Unavailable("fake store: switched off")

    async def _write(self, ops: Sequence[Op]) -> int:
        await self._arrive()
        return self._commit(ops)

    def _commit(self, ops: Sequence[Op]) -> int:
        fate, self.lose_answer = self.lose_answer, "no"
        if fate == "not applied":
            raise Indeterminate("fake store: answer lost")
        revision = self.server.commit(ops)
        if fate == "applied":
            raise Indeterminate("fake store: answer lost")
        return revision

    async def get(self, key: str) -> KeyValue | None:
        """See `Store.get`."""
        await self._arrive()
        return self.server.items.get(key)

    async def list(self, prefix: str) -> Snapshot:
        """See `Store.list`."""
        await self._arrive()
        items = tuple(kv for key, kv in sorted(self.server.items.items()) if key.startswith(prefix))
        return Snapshot(self.server.revision, self.server.cluster_id, items)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """See `Store.put`."""
        self.puts += 1
        return await self._write([Put(key, value, lease)])

    async def delete(self, key: str) -> int:
        """See `Store.delete`."""
        return await self._write([Delete(key)])

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        """See `Store.txn`."""
        check_txn(guards, ops)
        await self._arrive()
        if not all(self.server.holds(guard) for guard in guards):
            return TxnResult(False, self.server.revision)
        return TxnResult(True, self._commit(ops))  # nothing may come between the guards and the operations

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[tuple[Change, ...], None]:
        """See `Store.watch`."""
        server = self.server
        due = start_revision or server.revision + 1
        cluster_id = server.cluster_id
        waker = asyncio.Event()
        server.wakers.add(waker)
        try:
            while True:
                waker.clear()
                if self.reachable and not self.late:
                    if server.cluster_id != cluster_id or server.revision < due - 1:
                        raise StoreChanged("fake store: wiped")
                    if due < server.compacted:
                        raise Compacted(server.compacted)
                    for revision, changes in [entry for entry in server.log if entry[0] >= due]:
                        due = revision + 1
                        mine = tuple(change for change in changes if change.key.startswith(prefix))
                        if mine and not self.deaf:
                            yield mine
                if not await self._woken(waker) and self.reachable and not self.late:
                    yield ()
        finally:
            server.wakers.discard(waker)

    async def _woken(self, waker: asyncio.Event) -> bool:
        """Wait for a change or for the time of the next sign of life."""
        wake = asyncio.ensure_future(waker.wait())
        sleep = asyncio.ensure_future(self.server.clock.sleep(_HEARTBEAT_S))
        try:
            await asyncio.wait({wake, sleep}, return_when=asyncio.FIRST_COMPLETED)
            return wake.done()
        finally:
            wake.cancel()
            sleep.cancel()

    async def grant(self, ttl_s: int) -> Grant:
        """See `Store.grant`."""
        await self._arrive()
        return self.server.grant(ttl_s)

    async def keepalive(self, lease_id: int) -> int:
        """See `Store.keepalive`."""
        await self._arrive()
        if lease_id not in self.server.leases:
            raise LeaseLost(lease_id)
        ttl_s = self.server.leases[lease_id][0]
        self.server.leases[lease_id] = (ttl_s, self.server.clock.now() + ttl_s)
        return ttl_s

    async def revoke(self, lease_id: int) -> None:
        """See `Store.revoke`."""
        await self._arrive()
        self.server.end_lease(lease_id)

    async def time_to_live(self, lease_id: int) -> int:
        """See `Store.time_to_live`."""
        await self._arrive()
        if lease_id not in self.server.leases:
            raise LeaseLost(lease_id)
        return int(self.server.leases[lease_id][1] - self.server.clock.now())

    async def status(self) -> Status:
        """See `Store.status`."""
        await self._arrive()
        return Status("fake", "0", self.server.cluster_id, 1, 1, self.server.revision, 0)

    async def close(self) -> None:
        """See `Store.close`."""
