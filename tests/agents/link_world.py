"""Agents' links on one store, in virtual time."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fsm.records import AgentRecord, EdgeReport
from orchestrator.agents.link import AgentLink, NameTaken, Registration
from orchestrator.store.generation import Recollection
from orchestrator.store.heartbeat import Heartbeat
from orchestrator.store.lease import Session
from orchestrator.store.port import Change
from orchestrator.store.records import RecordError, decode
from tests.agents.fakes import KEYS
from tests.contract.store.clocks import VirtualClock
from tests.contract.store.fake import FakeEtcd, FakeStore

AGENT = KEYS.agent("edge", "edge-1")
OBSERVED = KEYS.observed_base("edge", "edge-1")
DESIRED = KEYS.desired_base("edge", "edge-1")


@dataclass
class Linked:
    """A link, what it was told and what it said."""

    store: FakeStore
    session: Session
    link: AgentLink
    task: asyncio.Task[None]
    told: list[Change] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def report(self, value: object | None) -> None:
        self.link.reports.set(OBSERVED, value)


class Net:
    """A store and its clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = FakeEtcd(self.clock)
        self.turns = 0
        self.links: list[Linked] = []

    def progress(self) -> int:
        self.turns += 1
        return self.turns

    def start(
        self, instance: str = "i-1", store: FakeStore | None = None, recollection: Recollection | None = None
    ) -> Linked:
        store = store or self.server.client()
        told: list[Change] = []
        said: list[str] = []
        session = Session(store, self.clock, 3000, 1000, self.progress)
        beat = Heartbeat(store, KEYS.heartbeat("edge", "edge-1"), self.clock, 250, session, self.progress)

        def log(event: str, **_fields: Any) -> None:
            said.append(event)

        registration = Registration(
            store=store, keys=KEYS, clock=self.clock, session=session, role="edge", name="edge-1",
            describe=lambda: AgentRecord("edge-1", "edge", instance, "1", "key"), log=log,
            recollection=recollection,
        )  # fmt: skip
        link = AgentLink(
            store=store, keys=KEYS, clock=self.clock, session=session, heartbeat=beat, registration=registration,
            role="edge", name="edge-1", on_desired=told.extend,
        )  # fmt: skip
        linked = Linked(store, session, link, asyncio.create_task(link.run()), told, said)
        self.links.append(linked)
        return linked

    async def stop(self, linked: Linked) -> None:
        linked.task.cancel()
        with suppress(asyncio.CancelledError, ExceptionGroup, NameTaken, RecordError):
            await linked.task

    def observed(self) -> EdgeReport | None:
        kv = self.server.items.get(OBSERVED)
        return None if kv is None else decode(kv.value, EdgeReport, OBSERVED)
