"""What an agent observes, written to the store: levels, many keys in one transaction, the urgent one by itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice

from fsm.ports import Clock
from orchestrator.store.lease import Session
from orchestrator.store.port import (
    MAX_TXN_OPS,
    Delete,
    Guard,
    Indeterminate,
    LeaseLost,
    Op,
    Put,
    Store,
    Unavailable,
)
from orchestrator.store.records import encode

RETRY_S = 0.2


class _Queue:
    """Keys that are to be written, the longest waiting first."""

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self.wake = asyncio.Event()

    def add(self, key: str) -> None:
        self.keys[key] = None
        self.wake.set()


class Reports:
    """What is observed, as levels: the last value of each key is written, until the store has it.

    Values that are equal to what the store has are not written again. All hang on the session's lease. `urgent` is a
    key that never waits for the others: what an edge says of its gateways, while a thousand pools report their moves.

    A write without an answer may still be on its way, and would put an old level over a newer one. So every write is
    guarded by the registration as it stands (`guard`), and after such a write the agent registers anew (`renew`):
    whatever arrives later finds its guard gone.
    """

    def __init__(
        self,
        store: Store,
        session: Session,
        clock: Clock,
        urgent: str = "",
        guard: Callable[[], tuple[Guard, ...]] = tuple,
        renew: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._store, self._session, self._clock, self._urgent = store, session, clock, urgent
        self._guard, self._renew = guard, renew
        self._wanted: dict[str, bytes | None] = {}
        self._written: dict[str, bytes | None] = {}
        self._written_at: dict[str, int] = {}
        """The revisions of these: two writes of one key may be under way, and which came last the store alone knows."""
        self._hot, self._rest = _Queue(), _Queue()

    def set(self, key: str, value: object | None) -> None:
        """Report this; None takes the report back."""
        data = None if value is None else encode(value)
        if self._wanted.get(key, b"") != data:
            self._wanted[key] = data
            self._queue(key)

    def last(self, key: str) -> bytes | None:
        """What is to be said there, whether the store has it already or not."""
        return self._wanted.get(key)

    def below(self, prefix: str) -> dict[str, bytes]:
        """All that is to be said below a prefix, by the rest of the key."""
        found = {key: data for key, data in self._wanted.items() if data is not None and key.startswith(prefix)}
        return {key.removeprefix(prefix): data for key, data in found.items()}

    def forget_written(self) -> None:
        """The lease is gone, and with it all that was written under it."""
        self._written.clear()
        self._written_at.clear()
        for key in self._wanted:
            self._queue(key)

    async def verify(self, prefix: str) -> int:
        """Write again what the store has otherwise than it was written below this prefix; how many keys that are.

        Raises what reads of the store raise.
        """
        before = dict(self._written)
        there = {kv.key: kv.value for kv in (await self._store.list(prefix)).items}
        changed = [
            key
            for key, data in before.items()
            if key.startswith(prefix) and there.get(key) != data and self._written.get(key, b"") == data
        ]
        for key in changed:
            del self._written[key]
            self._queue(key)
        return len(changed)

    def _queue(self, key: str) -> None:
        (self._hot if key == self._urgent else self._rest).add(key)

    async def run(self) -> None:
        """Write what is wanted and not written yet, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_all(self._hot), name="urgent reports")
            group.create_task(self._write_all(self._rest), name="other reports")

    async def _write_all(self, queue: _Queue) -> None:
        while True:
            await queue.wake.wait()
            queue.wake.clear()
            while queue.keys:
                keys = self._next(queue)
                batch = {key: self._wanted[key] for key in keys if key in self._wanted}
                due = {key: data for key, data in batch.items() if self._written.get(key, b"") != data}
                if due and not await self._write(due):
                    await self._clock.sleep(RETRY_S)
                    continue
                for key in keys:
                    if key not in batch or self._wanted.get(key, b"") == self._written.get(key, b""):
                        self._hot.keys.pop(key, None)
                        self._rest.keys.pop(key, None)
                    else:
                        self._queue(key)  # it may have been written beside this, and taken for done
                self._forget_gone(batch)

    def _next(self, queue: _Queue) -> list[str]:
        """The keys of the next transaction. The urgent one takes others along that wait, and waits for none itself.

        So after an outage of the store the leader sees that the owner is dead, and what the edge did about it, at once.
        """
        keys = list(islice(queue.keys, MAX_TXN_OPS))
        if queue is self._hot:
            keys += islice(self._rest.keys, MAX_TXN_OPS - len(keys))
        return keys

    async def _write(self, due: Mapping[str, bytes | None]) -> bool:
        """One transaction. One without an answer is written again under a new guard: twice is as good as once."""
        lease_id, guards = self._session.lease_id, self._guard()
        if lease_id == 0:
            return False
        ops: list[Op] = [Delete(key) if data is None else Put(key, data, lease_id) for key, data in due.items()]
        try:
            result = await self._store.txn(guards, ops)
        except LeaseLost:
            self._session.report_lost(lease_id)
            return False
        except Unavailable:
            return False
        except Indeterminate:
            await self._fence(guards)
            return False
        if not result.succeeded:
            await self._fence(guards)
            return False
        if self._session.lease_id == lease_id:
            for key, data in due.items():
                if self._written_at.get(key, 0) <= result.revision:
                    self._written[key], self._written_at[key] = data, result.revision
        return True

    async def _fence(self, guards: tuple[Guard, ...]) -> None:
        """Void these guards, unless that was done already."""
        if self._renew is not None and guards == self._guard():
            await self._renew()

    def _forget_gone(self, batch: Mapping[str, bytes | None]) -> None:
        for key, data in batch.items():
            if data is None and self._wanted.get(key, b"") is None and self._written.get(key, b"") is None:
                self._wanted.pop(key, None)
                self._written.pop(key, None)
                self._written_at.pop(key, None)
