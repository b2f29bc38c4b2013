"""Who leads: one key, one lease, and a takeover that does not wait for the lease to end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from fsm.ports import Clock
from orchestrator.store.heartbeat import Heartbeat
from orchestrator.store.keys import Keys
from orchestrator.store.lease import Session
from orchestrator.store.mirror import Mirror
from orchestrator.store.port import (
    Change,
    CreatedAt,
    Delete,
    Guard,
    Indeterminate,
    KeyValue,
    LeaseLost,
    ModifiedAt,
    Put,
    Refused,
    Store,
    StoreError,
    Unavailable,
)

ROLE = "orchestrator"
SCHEMA = 1


class BadLeaderRecord(StoreError):
    """The leader key holds something that no version of this program wrote."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The value of the leader key."""

    schema: int
    name: str
    instance: str
    """UUID of the installation (its state directory), which survives restarts."""
    since: str
    """RFC 3339 time by the leader's own clock, for people only."""


def decode_leader(kv: KeyValue) -> Leader:
    """The leader that this key names. Raises `BadLeaderRecord`."""
    try:
        return msgspec.json.decode(kv.value, type=Leader)
    except msgspec.DecodeError as error:
        raise BadLeaderRecord(
            f"{kv.key}: not a leader record ({error}); look at it with etcdctl and delete it if it is not ours"
        ) from error


class Election:
    """Campaigns for ever, and tells when leadership begins and ends.

    - Leadership is the key ``leader``, created with our lease when it was absent. Its create revision,
      `leader_create_revision`, guards every write of the leader: after any change of leader they all fail.
    - A follower takes over without waiting for the lease if at least ``takeover_beats`` of *its own* heartbeats were
      committed since the leader's last one. The transaction that removes the leader key is guarded by that key and by
      the leader's heartbeat being what they were, so a leader that has beaten meanwhile stays, however late our watch
      is; and a follower whose own writes do not get through can't accuse anybody. Then the old lease is revoked.
    - A leader key of our own instance under another lease is a former life of ours: it is removed at once.

    Run `Session.run` and `Heartbeat.run` beside it; after `Session.lost` somebody has to call `Session.open`.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        clock: Clock,
        name: str,
        instance: str,
        session: Session,
        heartbeat: Heartbeat,
        beats: Mirror,
        stamp: Callable[[], str],
        on_change: Callable[[int], None] | None = None,
        takeover_beats: int = 3,
        tick_ms: int = 250,
        repair_every_s: float = 10.0,
    ) -> None:
        """``beats`` has the heartbeats of all orchestrators, and is run by whoever gives it: it may be late.

        ``stamp`` gives the time of day for the record; ``on_change`` gets the create revision, 0 when it ends.
        """
        self._store = store
        self._keys = keys
        self._clock = clock
        self._name = name
        self._instance = instance
        self._session = session
        self._heartbeat = heartbeat
        self._stamp = stamp
        self._on_change = on_change
        self._takeover_beats = takeover_beats
        self._tick_s = tick_ms / 1000
        self._create_revision = 0
        self._announced = 0
        self._acted_at = 0
        self._resigned = False
        self._wake = asyncio.Event()
        self._leaders = Mirror(store, keys.leader, clock, repair_every_s, self._on_leader)
        self._beats = beats
        heartbeat.on_commit = self._on_own_beat
        self.takeovers = 0
        """Leaders that this follower declared dead."""

    @property
    def leader_create_revision(self) -> int:
        """Create revision of our leader key, to guard writes with; 0 while we do not lead."""
        return self._create_revision if self.leads(self._clock.now()) else 0

    def leads(self, now: float) -> bool:
        """Whether we hold the key and the lease is certainly alive at that time."""
        return self._create_revision != 0 and self._session.deadline(now) > 0

    @property
    def leader(self) -> Leader | None:
        """Who leads, as the watch has it. Raises `BadLeaderRecord`."""
        kv = self._leaders.get(self._keys.leader)
        return None if kv is None else decode_leader(kv)

    def guard(self) -> Guard:
        """The guard for a write of the leader; it can't hold while we do not lead."""
        return CreatedAt(self._keys.leader, self.leader_create_revision or -1)

    async def run(self) -> None:
        """Campaign for ever; cancel it to stop. Raises `StoreChanged`, `Refused` or `BadLeaderRecord`."""
        tasks = {
            asyncio.create_task(self._leaders.run(), name="leader key"),
            asyncio.create_task(self._ticks(), name="election tick"),
            asyncio.create_task(self._campaign(), name="campaign"),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def resign(self) -> None:
        """Give leadership up for good, so that a follower, which watches the key, can lead within milliseconds.

        If the deletion gets no answer, `run` repeats it; `Session.close` ends the lease and the key with it, too.
        """
        self._resigned = True
        revision = self._create_revision
        self._set(0)
        if revision == 0:
            return
        with suppress(Unavailable, Indeterminate):
            await self._store.txn([CreatedAt(self._keys.leader, revision)], [Delete(self._keys.leader)])

    def _on_leader(self, _changes: tuple[Change, ...]) -> None:
        self._wake.set()

    def _on_own_beat(self, _revision: int) -> None:
        self._wake.set()

    async def _ticks(self) -> None:
        while True:
            await self._clock.sleep(self._tick_s)
            self._wake.set()

    async def _campaign(self) -> None:
        await self._leaders.ready.wait()
        await self._beats.ready.wait()
        while True:
            # Without an answer nothing is known: the next tick looks again, and what we claim ends with the lease.
            with suppress(Unavailable, Indeterminate):
                await self._step()
            self._announce()
            await self._wake.wait()
            self._wake.clear()

    async def _step(self) -> None:
        """Compare the leader key with what we are, and do the one thing that follows."""
        if self._session.lease_id == 0:
            self._set(0)
            return
        if self._leaders.revision < self._acted_at:
            return  # the watch has not yet brought what we ourselves did
        kv = self._leaders.get(self._keys.leader)
        if kv is None:
            self._set(0)
            if not self._resigned:
                await self._claim()
            return
        record = decode_leader(kv)
        ours = record.instance == self._instance
        if ours and kv.lease == self._session.lease_id and not self._resigned:
            self._set(kv.create_revision)
            return
        self._set(0)
        if ours:  # left by a former life, or by a claim or a resignation whose answer got lost
            await self._remove(kv, [CreatedAt(kv.key, kv.create_revision)])
        elif not self._resigned:
            await self._judge(kv, record)

    async def _claim(self) -> None:
        lease_id = self._session.lease_id
        record = Leader(SCHEMA, self._name, self._instance, self._stamp())
        put = Put(self._keys.leader, msgspec.json.encode(record), lease_id)
        try:
            result = await self._store.txn([CreatedAt(self._keys.leader, 0)], [put])
        except LeaseLost:
            self._session.report_lost(lease_id)
            return
        # Without success, or without an answer, the watch tells who leads; a claim repeated meanwhile just fails.
        if not result.succeeded:
            return
        self._acted_at = result.revision
        if self._resigned:
            await self._store.txn([CreatedAt(self._keys.leader, result.revision)], [Delete(self._keys.leader)])
        else:
            self._set(result.revision)

    async def _judge(self, kv: KeyValue, record: Leader) -> None:
        """Take over if our own heartbeats got through and the leader's did not."""
        beat_key = self._keys.heartbeat(ROLE, record.name)
        beat = self._beats.get(beat_key)
        beat_revision = 0 if beat is None else beat.mod_revision
        last_sign = max(kv.create_revision, beat_revision)
        if self._heartbeat.committed_since(last_sign) < self._takeover_beats:
            return
        guards: list[Guard] = [CreatedAt(kv.key, kv.create_revision), ModifiedAt(beat_key, beat_revision)]
        if not await self._remove(kv, guards):
            return
        self.takeovers += 1
        await self._claim()
        self._announce()
        # The dead one's other keys go too, and should it be only frozen, it learns that its lease is gone. Refused it
        # is where a stranger's key hangs on that lease, which etcd 3.4 lets him do: then it expires by itself.
        if kv.lease != 0:
            with suppress(Refused):
                await self._store.revoke(kv.lease)

    async def _remove(self, kv: KeyValue, guards: list[Guard]) -> bool:
        """Delete the leader key if the guards hold; the watch will bring the deletion."""
        result = await self._store.txn(guards, [Delete(kv.key)])
        if result.succeeded:
            self._acted_at = max(self._acted_at, result.revision)
        return result.succeeded

    def _set(self, create_revision: int) -> None:
        self._create_revision = create_revision
        if create_revision == 0:
            self._announce()

    def _announce(self) -> None:
        revision = self.leader_create_revision
        if revision != self._announced:
            self._announced = revision
            if self._on_change is not None:
                self._on_change(revision)
