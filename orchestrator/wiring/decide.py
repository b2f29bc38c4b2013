"""An orchestrator's parts, put together."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from fsm.ports import Clock
from fsm.records import AgentRecord
from orchestrator import view
from orchestrator.admin import AdminServer, history_asked
from orchestrator.agents.instance import Instance
from orchestrator.agents.link import Registration, until_obeyed
from orchestrator.clock import BootClock, wall_ms
from orchestrator.config.folder import IntentFolder
from orchestrator.config.orchestrator import OrchestratorConfig
from orchestrator.http import HttpServer
from orchestrator.leader.interpret import Interpreter
from orchestrator.leader.knowledge import Knowledge
from orchestrator.leader.loop import LeaderLoop
from orchestrator.leader.metrics import MeasuredInterpreter, ReplicaSource, replica_metrics
from orchestrator.store.election import ROLE, Election
from orchestrator.store.founding import Founder
from orchestrator.store.generation import Meta, Recollection
from orchestrator.store.heartbeat import Heartbeat
from orchestrator.store.keys import Keys
from orchestrator.store.lease import Session
from orchestrator.store.mirror import Mirror
from orchestrator.store.opening import open_store
from orchestrator.store.port import Refused, Store, StoreChanged
from orchestrator.store.records import decode
from orchestrator.wiring.hardening import make_folder
from orchestrator.wiring.memory import recollection
from orchestrator.wiring.process import DONE, VERSION, first_end, new_id, settle_memory, stamp, until_signalled
from orchestrator.wiring.registry import Collected

REPAIR_EVERY_S = 10.0
REFUSED_PAUSE_S = 2.0


class Replica:
    """One orchestrator: it follows, and leads when it is elected."""

    def __init__(
        self,
        config: OrchestratorConfig,
        store: Store,
        clock: Clock,
        instance: str,
        interpreter: Interpreter,
        remembered: Recollection,
    ) -> None:
        self.config, self.store, self.clock = config, store, clock
        self.log = structlog.get_logger()
        self.keys = Keys(config.etcd.prefix)
        self.recollection = remembered
        self.knowledge = Knowledge(self.keys, config.lease.stale_after_ms / 1000)
        lease, own_beat = config.lease, self.keys.heartbeat(ROLE, config.name)
        self.session = Session(store, clock, lease.ttl_ms, lease.renew_every_ms, self._progress)
        self.heartbeat = Heartbeat(store, own_beat, clock, lease.heartbeat_every_ms, self.session, self._progress)
        self.mirror = Mirror(store, self.keys.prefix, clock, REPAIR_EVERY_S, self._changed)
        self.election = Election(
            store, self.keys, clock, config.name, instance, self.session, self.heartbeat, self.mirror, stamp, self._led
        )
        self.loop = LeaderLoop(
            name=config.name,
            keys=self.keys,
            clock=clock,
            wall_ms=wall_ms,
            knowledge=self.knowledge,
            interpreter=interpreter,
            leads=lambda: self.founder.founded and self._elected(),
            term=lambda: self.election.leader_create_revision,
            guard=self.election.guard,
            mirror_age_s=self.mirror.age,
            log=self.log.info,
            reconcile_every_s=config.reconcile_every_ms / 1000,
        )
        self.registration = Registration(
            store=store,
            keys=self.keys,
            clock=clock,
            session=self.session,
            role=ROLE,
            name=config.name,
            describe=lambda: AgentRecord(config.name, ROLE, instance, VERSION),
            log=self.log.info,
            recollection=self.recollection,
        )
        self.founder = Founder(
            store,
            self.keys,
            clock,
            self.recollection,
            self._elected,
            self.election.guard,
            self._used_by,
            lambda: Meta(new_id(), stamp()),
            self.log.info,
        )

    def _progress(self) -> int:
        """Turns of the loop; while a store is not obeyed there are none, and to look at it is all there is to do."""
        return self.loop.turns + self.recollection.looks

    def _elected(self) -> bool:
        return self.mirror.ready.is_set() and self.election.leads(self.clock.now())

    def _used_by(self) -> tuple[str, ...]:
        """Agents that obey another store than this one, which has no generation yet."""
        agents = [decode(kv.value, AgentRecord, kv.key) for kv in self.mirror.items(self.keys.agents_prefix)]
        return tuple(f"{agent.role} {agent.name}" for agent in agents if agent.generation)

    def _changed(self, changes: Any) -> None:
        self.recollection.saw(self.mirror.revision)
        self.loop.on_changes(changes)

    def _led(self, _create_revision: int) -> None:
        self.loop.wake()

    async def run(self) -> None:
        """Until cancelled, once it is registered. Raises StoreChanged and Refused: with that store it is over."""
        settle_memory()
        await first_end(
            asyncio.create_task(self.registration.keep(self.registered_again), name="registration"),
            asyncio.create_task(self.registration.verify(), name="registration looked for"),
            asyncio.create_task(self.session.run(), name="lease"),
            asyncio.create_task(self.heartbeat.run(), name="heartbeat"),
            asyncio.create_task(self.heartbeat.notice(self.log.warning), name="silence"),
            asyncio.create_task(self.mirror.run(), name="mirror"),
            asyncio.create_task(self.election.run(), name="election"),
            asyncio.create_task(self.loop.run(), name="leader loop"),
            asyncio.create_task(self.follow_intent(), name="intent"),
            asyncio.create_task(self.know_the_store(), name="store memory"),
        )

    async def register(self) -> None:
        """Register, and with a store that is not the one that it was, wait there until it is accepted."""
        await self.registration.register()
        if self.recollection.refusal:
            await until_obeyed(self.registration, self.session, self.store, self.clock, self.log.info)
            await self.registration.register()

    async def leave(self) -> None:
        """Hand leadership over and be gone."""
        await self.recollection.write()
        with suppress(Refused):
            await self.election.resign()
        await self.session.close()

    def registered_again(self) -> None:
        """After a lost lease: raises StoreChanged if it was the store that changed."""
        if self.recollection.refusal:
            raise StoreChanged(self.recollection.refusal)

    async def know_the_store(self) -> None:
        """Give it a generation if it has none and we lead, and remember how far it has come; for ever."""
        await self.founder.run()
        await self.recollection.keep(self.store, self.clock)

    async def follow_intent(self) -> None:
        """Read the folder of manifests and every change of it; without one there is nothing to do, for ever."""
        if self.config.manifests is None:
            await asyncio.Event().wait()
            return
        async for intent in IntentFolder(self.config.manifests, self.clock, self.config.lease.ttl_ms).changes():
            for problem in intent.problems:
                self.log.warning("manifests refused", problem=str(problem))
            self.loop.intent.offer(intent)
            self.loop.wake()

    # ---- what is shown -----------------------------------------------------------------------------------------------

    def _age_ms(self) -> int:
        age_s = self.mirror.age(self.clock.now())
        return -1 if age_s == float("inf") else round(age_s * 1000)

    async def dump(self, request: Mapping[str, Any]) -> object:
        """The answer to `{"cmd": "dump", "history": N}`.

        Made in a thread, as that to `status`: with a thousand pools it takes long enough to hold up a failover.
        """
        build = partial(
            view.dump,
            self.mirror.snapshot(),
            self.keys,
            revision=self.mirror.revision,
            age_ms=self._age_ms(),
            history=history_asked(request),
        )
        return await asyncio.to_thread(build)

    async def status(self, trouble: str) -> object:
        """The answer to `{"cmd": "status"}`. `trouble` is what else is wrong."""
        self.loop.catch_up()
        now = self.clock.now() - max(0.0, min(self.mirror.age(self.clock.now()), 1e9))
        alive = {who: self.knowledge.sight(*who, now).heartbeat for who in self.knowledge.agents}
        build = partial(
            view.status,
            self.mirror.snapshot(),
            self.keys,
            alive,
            revision=self.mirror.revision,
            age_ms=self._age_ms(),
            problems=(
                *dict.fromkeys(filter(None, (self.recollection.refusal, trouble, self.recollection.unsaved))),
                *self.loop.problems(),
            ),
        )
        return await asyncio.to_thread(build)

    def ready(self) -> str:
        """What is missing for /readyz; empty when it follows the store."""
        waiting = "" if self.mirror.ready.is_set() else "the store was not read yet"
        return self.recollection.refusal or waiting

    def metrics(self) -> Iterable[Metric]:
        """Metrics, made when they are asked for."""
        self.loop.catch_up()
        age_s = self.mirror.age(self.clock.now())
        known = self.knowledge
        return replica_metrics(
            ReplicaSource(
                leads=self.election.leads(self.clock.now()),
                takeovers=self.election.takeovers,
                store_age_s=None if age_s == float("inf") else age_s,
                refused=bool(self.recollection.refusal),
                repairs=self.mirror.repairs,
                reloads=self.mirror.reloads,
                epoch=known.epoch_counter,
                requests_waiting=sum(not request.answer for request in known.requests.values()),
                problems=len(self.loop.problems()),
                wall_ms=wall_ms,
                pools=known.machines,
            )
        )


class Lives:
    """The replicas of one process, one after the other: what one knew of a store holds for no other store.

    A store that refuses, or that has become another one, ends a replica and not the process. The next one begins with
    nothing but what is remembered on disk; until it is registered, what the last one knew is shown, and why.
    """

    def __init__(self, make: Callable[[], Replica]) -> None:
        self._make = make
        self.living = self.shown = make()
        self.trouble = ""
        """Why nobody lives at present; empty when somebody does."""

    async def run(self) -> None:
        """Until cancelled. Raises what the very first registration raises: such a daemon was never of use."""
        await self.living.register()
        while True:
            try:
                self.shown, self.trouble = self.living, ""
                await self.living.run()
            except (Refused, StoreChanged) as error:
                await self._next(str(error))

    async def _next(self, reason: str) -> None:
        """Another replica, registered, however long that takes."""
        self.living.log.warning("the store refuses", reason=reason)
        while True:
            self.trouble = reason
            self.living = self._make()
            await self.living.clock.sleep(REFUSED_PAUSE_S)
            try:
                await self.living.register()
            except Refused as error:
                reason = str(error)
            else:
                return

    def ready(self) -> str:
        """What is missing for /readyz; empty when it follows the store."""
        return self.trouble or self.shown.ready()

    async def dump(self, request: Mapping[str, Any]) -> object:
        """See `Replica.dump`."""
        return await self.shown.dump(request)

    async def status(self, request: Mapping[str, Any]) -> object:
        """See `Replica.status`."""
        return await self.shown.status(self.trouble)

    async def version(self, _request: Mapping[str, Any]) -> object:
        """The answer to `{"cmd": "version"}`."""
        return {"schema": view.SCHEMA, "version": VERSION, "role": ROLE, "name": self.shown.config.name}

    def metrics(self) -> Iterable[Metric]:
        """See `Replica.metrics`."""
        return self.shown.metrics()


async def main(config: OrchestratorConfig) -> int:
    """Run until a signal; then hand leadership over and leave."""
    asked, clock = until_signalled(), BootClock()
    instance = Instance(config.state_dir, new_id)
    store, keys, registry = open_store(config.etcd, clock), Keys(config.etcd.prefix), CollectorRegistry()
    interpreter = MeasuredInterpreter(store, keys, clock, registry)
    remembered = recollection(config.state_dir, keys, keys.meta)
    lives = Lives(lambda: Replica(config, store, clock, instance.id, interpreter, remembered))
    admin = AdminServer(config.admin_socket, {"dump": lives.dump, "status": lives.status, "version": lives.version})
    registry.register(Collected(lives.metrics))
    http = HttpServer(config.http.listen, registry, lives.ready) if config.http.listen else None
    try:
        with suppress(OSError):  # where it can't be made, the socket says so
            make_folder(config.run_dir)
        await admin.start()
        if http is not None:
            await http.start()
        structlog.get_logger().info("started", version=VERSION, instance=instance.id)
        await first_end(
            asyncio.create_task(asked.wait(), name="signal"), asyncio.create_task(lives.run(), name="replica")
        )
    finally:
        await lives.living.leave()
        await admin.close()
        if http is not None:
            await http.close()
        await store.close()
        instance.close()
    return DONE
