"""An agent's link with the store: its lease, registration and heartbeat, what it is told and what it reports.

Everything here may be gone for hours without the agent doing anything else than go on as it was last told.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from fsm.ports import Clock
from fsm.records import AgentRecord
from orchestrator.agents.gate import Gate
from orchestrator.agents.reports import Reports
from orchestrator.store.generation import Recollection
from orchestrator.store.heartbeat import Heartbeat
from orchestrator.store.keys import Keys
from orchestrator.store.lease import Session
from orchestrator.store.mirror import Mirror
from orchestrator.store.port import (
    Change,
    CreatedAt,
    Guard,
    Indeterminate,
    KeyValue,
    LeaseLost,
    ModifiedAt,
    Put,
    Refused,
    Store,
    StoreChanged,
    Unavailable,
)
from orchestrator.store.records import decode, encode

RETRY_S = 0.2
REPAIR_EVERY_S = 10.0
REFUSED_PAUSE_S = 2.0
VERIFY_EVERY_S = 10.0
"""How often an agent looks whether what it has in the store is still there, in seconds."""
RECOGNISE_EVERY_S = 1.0
"""How often a store that is not obeyed is looked at again."""

Log = Callable[..., None]


class NameTaken(Exception):
    """A live agent of another installation has this name."""


class Registration:
    """agents/ROLE/NAME: this process is alive, under its lease. `describe` gives what is registered.

    Also with a store that is not obeyed: there it says so, and what must be known to make the store usable.
    """

    def __init__(
        self,
        *,
        store: Store,
        keys: Keys,
        clock: Clock,
        session: Session,
        role: str,
        name: str,
        describe: Callable[[], AgentRecord],
        log: Log,
        recollection: Recollection | None = None,
    ) -> None:
        self._store, self._keys, self._clock, self._session = store, keys, clock, session
        self._role, self._name, self._describe, self.log = role, name, describe, log
        self.recollection = recollection or Recollection(keys, keys.agent(role, name))
        self._revision = self._lease = 0
        """What was put in place last, and under which lease."""

    async def keep(self, on_return: Callable[[], None]) -> None:
        """After the lease is lost: a new one and the registration again, then `on_return`. For ever."""
        while True:
            await self._session.lost.wait()
            self.log("lease lost")
            await self.register()
            on_return()

    async def verify(self) -> None:
        """Look again and again whether our registration is still there, and put it back where it is not; for ever.

        A lease that is renewed says nothing of its keys: somebody may have deleted this one. Raises NameTaken.
        """
        while True:
            await self._clock.sleep(VERIFY_EVERY_S)
            lease_id = self._session.lease_id
            if lease_id == 0:
                continue  # `keep` is at it
            try:
                kv = await self._store.get(self._keys.agent(self._role, self._name))
                if kv is None or kv.mod_revision != self._revision:
                    self.log("the registration was not as it was left; it is put back")
                    await self._claim()
            except LeaseLost:
                self._session.report_lost(lease_id)
            except (Unavailable, Indeterminate):
                pass  # the next look tells

    async def register(self) -> None:
        """Get a lease and register, however long the store is away. Raises NameTaken.

        What the store is, is looked at before: afterwards `recollection.refusal` says whether it is to be obeyed.
        """
        silent = False
        while True:
            try:
                await self.recollection.recognise(self._store)
                if self._session.lease_id == 0:
                    await self._session.open()
                if await self._claim():
                    self.log("registered", lease_ttl_s=self._session.granted_ttl_s)
                    return
            except LeaseLost:
                self._session.report_lost(self._session.lease_id)
            except (Unavailable, Indeterminate) as error:
                if not silent:
                    self.log("the store does not answer", reason=str(error))
                silent = True
            await self._clock.sleep(RETRY_S)

    async def _claim(self) -> bool:
        """Put our registration in place; our own of a former life is replaced at once, a living stranger's is not."""
        key, record = self._keys.agent(self._role, self._name), self._describe()
        memory, refusal = self.recollection.memory, self.recollection.refusal
        record = replace(record, generation=memory.generation, refuses=refusal)
        if self._role == "edge":
            record = replace(record, incarnation=f"{record.instance}@{memory.born_revision}")
        kv = await self._store.get(key)
        if kv is not None:
            other = decode(kv.value, AgentRecord, key)
            if other.instance != record.instance and await self._lives(kv):
                await self._session.close()
                raise NameTaken(
                    f"{self._role} {self._name}: another installation ({other.instance}) of this name is alive; "
                    "give this one another name, or stop the other and wait until its lease ends"
                )
            if self._lease not in (0, kv.lease) and self._lease == self._session.lease_id and await self._lives(kv):
                await self._session.close()
                raise NameTaken(
                    f"{self._role} {self._name}: another process of this very installation ({record.instance}) has "
                    "registered: where its state directory was copied to, remove the file 'instance' and the key"
                )
        guard = CreatedAt(key, 0) if kv is None else ModifiedAt(key, kv.mod_revision)
        lease_id = self._session.lease_id
        result = await self._store.txn([guard], [Put(key, encode(record), lease_id)])
        if result.succeeded:
            self._revision, self._lease = result.revision, lease_id
        return result.succeeded

    async def _lives(self, kv: KeyValue) -> bool:
        """Whether a registration hangs on a lease that lives: one that nothing renews says nothing of anybody."""
        if kv.lease == 0:
            return False
        try:
            await self._store.time_to_live(kv.lease)
        except LeaseLost:
            return False
        return True

    def guard(self) -> tuple[Guard, ...]:
        """Holds while the registration is the one that was last put in place."""
        return (ModifiedAt(self._keys.agent(self._role, self._name), self._revision),)


async def until_obeyed(registration: Registration, session: Session, store: Store, clock: Clock, log: Log) -> None:
    """Until the store is one to obey: nothing is read of it, and nothing said there but that we refuse, and why."""
    recollection = registration.recollection
    log("the store is not obeyed", reason=recollection.refusal)
    await session.close()  # whatever was said under it before
    await registration.register()
    tasks = {
        asyncio.create_task(session.run(), name="lease"),
        asyncio.create_task(registration.keep(lambda: None), name="registration"),
        asyncio.create_task(_until_recognised(recollection, store, clock), name="recognition"),
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
    log("the store is obeyed again", generation=recollection.memory.generation)


async def _until_recognised(recollection: Recollection, store: Store, clock: Clock) -> None:
    while recollection.refusal:
        await clock.sleep(RECOGNISE_EVERY_S)
        try:
            await recollection.recognise(store)
        except Unavailable:
            continue  # while it is away it is no other one either


class AgentLink:
    """Runs beside an agent's own work; `on_desired` gets what the agent is told."""

    def __init__(
        self,
        *,
        store: Store,
        keys: Keys,
        clock: Clock,
        session: Session,
        heartbeat: Heartbeat,
        registration: Registration,
        role: str,
        name: str,
        on_desired: Callable[[tuple[Change, ...]], None],
    ) -> None:
        self._store, self._keys, self._role, self._name = store, keys, role, name
        self._session, self._heartbeat, self._registration = session, heartbeat, registration
        self._clock, self._log, self._on_desired = clock, registration.log, on_desired
        self._recollection = registration.recollection
        self._heard_s = clock.now()
        self._refused = ""
        self._beat_revision = 0
        heartbeat.on_commit = self._heard
        self.reports = Reports(
            store,
            session,
            clock,
            urgent=keys.observed_base(role, name),
            guard=registration.guard,
            renew=self._register_anew,
        )
        self._listen()

    def _listen(self) -> None:
        """A mirror that knows nothing yet, and the gate behind it."""
        prefix = self._keys.desired_prefix(self._role, self._name)
        self.gate = Gate(self._store, self._keys, prefix, self._clock, self._on_desired, self._log)
        self.mirror = Mirror(self._store, prefix, self._clock, REPAIR_EVERY_S, self.gate.on_changes)
        self._adoptions = self._recollection.adoptions

    @property
    def refusal(self) -> str:
        """Why the store at hand is not obeyed; empty when it is, or is not there."""
        return self._recollection.refusal

    @property
    def unsaved(self) -> str:
        """Why what is remembered of the store is not on disk; empty when it is."""
        return self._recollection.unsaved

    async def run(self) -> None:
        """Until cancelled. Raises NameTaken at the start and after a lost lease.

        A store that refuses (no space, no permission) is an outage like any other: the agent goes on as it was last
        told, and tries again. What was registered and reported stays in the store until the lease ends. So it is with
        a store that is not the one that it was: there the agent says only that it does not obey.
        """
        while True:
            try:
                await self._registration.register()
                if self.refusal:
                    await until_obeyed(self._registration, self._session, self._store, self._clock, self._log)
                else:
                    await self._linked()
            except (Refused, StoreChanged, ExceptionGroup) as error:
                reason = _refusal(error)
                if reason is None:
                    raise
                self._recollection.saw(self.mirror.revision)
                if reason != self._refused:
                    self._log("the store refuses", reason=reason)
                self._refused = reason
            await self._clock.sleep(REFUSED_PAUSE_S)

    async def _linked(self) -> None:
        if self._adoptions != self._recollection.adoptions:
            self._listen()
        self._beat_revision = 0
        self.gate.born_revision = self._recollection.memory.born_revision
        self.reports.forget_written()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.gate.run(), name="gaps")
            group.create_task(self._session.run(), name="lease")
            group.create_task(self._heartbeat.run(), name="heartbeat")
            group.create_task(self.mirror.run(), name="desired")
            group.create_task(self.reports.run(), name="reports")
            group.create_task(self._registration.keep(self._registered_again), name="registration")
            group.create_task(self._registration.verify(), name="registration looked for")
            group.create_task(self._verify_reports(), name="reports looked for")
            group.create_task(self._recollection.keep(self._store, self._clock), name="store memory")
            group.create_task(self._heartbeat.notice(self._log), name="silence")

    def _registered_again(self) -> None:
        self._must_be_obeyed()
        self.reports.forget_written()

    async def _register_anew(self) -> None:
        await self._registration.register()
        self._must_be_obeyed()

    def _must_be_obeyed(self) -> None:
        """Raises StoreChanged if the last registration found that the store is another one."""
        if self.refusal:
            raise StoreChanged(self.refusal)

    async def _verify_reports(self) -> None:
        """What another hand changed of our reports is written again: to us it would be written already, for ever."""
        prefix = self._keys.observed_prefix(self._role, self._name)
        while True:
            await self._clock.sleep(VERIFY_EVERY_S)
            try:
                found = await self.reports.verify(prefix)
            except Unavailable:
                continue
            except Refused as error:
                self._log("reports can't be looked for; 'bgplb etcd bootstrap-auth' allows it", reason=str(error))
                await asyncio.Event().wait()
                continue
            if found:
                self._log("reports were not as they were left; they are written again", keys=found)

    def lease_left_s(self) -> float:
        """Seconds for which the lease is certainly alive; 0 or less once that can't be said any more."""
        return self._session.deadline(self._clock.now())

    def silent_s(self) -> float | None:
        """Seconds since the store last took a heartbeat; None if it never did."""
        return self._clock.now() - self._heard_s if self._beat_revision else None

    def _heard(self, revision: int) -> None:
        """A heartbeat is in the store. Raises StoreChanged if it is older there than the one before it.

        What is watched may be quiet for days, and says little about the store; this says it four times a second.
        """
        before, self._beat_revision = self._beat_revision, revision
        if revision <= before:
            raise StoreChanged(f"the store went back: a heartbeat at revision {revision}, the last was at {before}")
        self._heard_s = self._clock.now()
        self._recollection.saw(revision)
        if self._refused:
            self._refused = ""
            self._log("the store answers again")


def _refusal(error: Refused | StoreChanged | ExceptionGroup[Exception]) -> str | None:
    """The store's refusal, or its being another one, if the error is nothing else."""
    if not isinstance(error, ExceptionGroup):
        return str(error)
    refused, rest = error.split((Refused, StoreChanged))
    leaf: BaseException | None = refused if rest is None else None
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    return None if leaf is None else str(leaf)
