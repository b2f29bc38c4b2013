"""An edge agent with everything around it in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dataplane.events import RouteChange
from dataplane.probe import ProbeState
from dataplane.probe_window import Judgement
from fsm.records import AgentBase, EdgePool, EdgePoolReport, EdgeReport
from orchestrator.agents import edge as edge_module
from orchestrator.agents import watch as watch_module
from orchestrator.agents.edge import EdgeAgent
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.journal import EdgeJournal
from orchestrator.agents.link import AgentLink
from orchestrator.agents.sessions import Sessions
from orchestrator.config.edge_agent import EdgeAgentConfig
from tests.agents.fakes import (
    KEYS,
    MAIL,
    PARKING,
    WEB,
    Event,
    FakeApplier,
    FakeLink,
    FakeMonitor,
    RealClock,
    RecordingWireGuard,
    base,
    change,
    eventually,
    key_file,
    linux,
    order,
)

BASE_KEY = KEYS.desired_base("edge", "edge-1")


class FakeEvents:
    """The signal table, filled by a test."""

    def __init__(self, table: int, on_route: Any, on_resync: Any) -> None:
        self._on_route, self.on_resync = on_route, on_resync
        self.routes: dict[str, Any] = {}
        self.overruns = 0
        self.broken: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self.on_resync()

    def device(self, prefix: str) -> str:
        return self.routes[prefix].device if prefix in self.routes else ""

    async def until_broken(self) -> None:
        self.broken = asyncio.get_running_loop().create_future()
        await self.broken

    def close(self) -> None:
        pass


class FakeProber:
    """A probe that passes, unless its destination is among the `silent`."""

    silent: ClassVar[set[str]] = set()

    def __init__(self, *, destination: str, on_change: Any, **_settings: Any) -> None:
        self.destination, self.on_change = destination, on_change

    def evaluate(self) -> ProbeState:
        if self.destination in self.silent:
            return ProbeState(Judgement("failing", 6, 0, False, 0.0, 0.001), "failing", 0)
        return ProbeState(Judgement("passing", 0, 60, True, 0.0, 0.001), "passing", 0)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


class EdgeWorld:
    """The machine, its disk, and the agents that run on it one after the other."""

    def __init__(self, tmp_path: Path, taken_ports: tuple[int, ...] = ()) -> None:
        self.path = tmp_path
        self.done: list[Event] = []
        self.kernel = linux(self.done)
        self.wireguard = RecordingWireGuard(self.kernel.kernel, self.done, taken_ports)
        self.applier, self.monitor, self.link = FakeApplier(self.done), FakeMonitor(), FakeLink()
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.config = EdgeAgentConfig.model_validate(
            {
                "name": "edge-1",
                "etcd": {"endpoints": ["http://127.0.0.1:1"]},
                "state_dir": str(tmp_path),
                "run_dir": str(tmp_path),
                "wireguard": {"private_key_file": str(key_file(tmp_path))},
            }
        )
        self.revision = 100
        FakeProber.silent = set()
        self.make_link: Callable[[EdgeAgent], AgentLink] | None = None
        """Gives a link with a store of its own, in place of one that only records."""
        self.agent: EdgeAgent

    def _load(self) -> EdgeState:
        self.journal = EdgeJournal(self.path / "edge.json")
        return self.journal.load(EdgeState(PARKING))

    def _save(self, state: EdgeState) -> None:
        self.journal.save(state)
        self.done.append(("save", state))

    @asynccontextmanager
    async def running(self, link: bool = True) -> AsyncIterator[EdgeAgent]:
        """An agent from its disk, until the block ends: then it is killed."""
        patch = pytest.MonkeyPatch()
        patch.setattr(edge_module, "RouteEvents", FakeEvents)
        patch.setattr(watch_module, "Prober", FakeProber)
        clock = RealClock()
        sessions = Sessions(self.monitor, clock, lambda gateway: self.agent.on_session(gateway))  # type: ignore[arg-type]
        self.agent = EdgeAgent(
            config=self.config,
            instance="i-1",
            keys=KEYS,
            clock=clock,
            kernel=self.kernel,  # type: ignore[arg-type]
            wireguard=self.wireguard,
            sessions=sessions,
            applier=self.applier,  # type: ignore[arg-type]
            state=self._load(),
            save=self._save,
            log=lambda event, **fields: self.said.append((event, fields)),
        )
        if link:
            self.agent.link = self.make_link(self.agent) if self.make_link else self.link  # type: ignore[assignment]
        task = asyncio.create_task(self.agent.run())
        try:
            yield self.agent
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            patch.undo()

    def session(self, gateway: str, up: bool) -> None:
        """Its BGP session comes up, or falls."""
        tunnel = next(t for t in self.agent._state.base.tunnels if t.name == gateway)
        self.monitor.up |= {tunnel.gateway_ipv4}
        events = self.agent._events
        events._on_route(RouteChange(f"{tunnel.probe_ipv4}/32", 10177, up, f"bgplb-g{tunnel.slot}", None))

    def reply(self, gateway: str, passes: bool) -> None:
        """Its probes are answered, or not."""
        tunnel = next(t for t in self.agent._state.base.tunnels if t.name == gateway)
        (FakeProber.silent.discard if passes else FakeProber.silent.add)(tunnel.probe_ipv4)

    def tell(self, *commands: tuple[str, EdgePool | None], base: AgentBase | None = None) -> None:
        """What the mirror brings in one go."""
        self.revision += 1
        changes = [change(BASE_KEY, base, self.revision)] if base is not None else []
        changes += [order(pool, command, self.revision) for pool, command in commands]
        for pool, command in commands:
            key = KEYS.desired("edge", "edge-1", "pool", pool)
            (self.link.keys.discard if command is None else self.link.keys.add)(key)
        self.link.ready.set()
        self.agent.on_desired(tuple(changes))

    def report(self, pool: str = "web") -> EdgePoolReport | None:
        found = self.link.told.get(KEYS.observed("edge", "edge-1", "pool", pool))
        assert found is None or isinstance(found, EdgePoolReport)
        return found

    def seen(self) -> EdgeReport:
        found = self.link.told[KEYS.observed_base("edge", "edge-1")]
        assert isinstance(found, EdgeReport)
        return found

    async def confirmed(self, command: EdgePool, pool: str = "web") -> EdgePoolReport:
        """Wait until the agent has reported that it is so."""

        def is_so() -> bool:
            report = self.report(pool)
            done = report is not None and (report.removed if command.deleted else report.installed)
            return report is not None and done and report.epoch == command.epoch and report.owner == command.owner

        await eventually(is_so, f"{command} confirmed; the report is {self.report(pool)}")
        found = self.report(pool)
        assert found is not None
        return found

    def senders(self, prefix: str) -> set[str]:
        """Gateways that may send from it."""
        lanes = {"gw-a": "bgplb-g0", "gw-b": "bgplb-g1"}
        return {name for name, device in lanes.items() if prefix in self.wireguard.allowed(device, f"key-{name}")}

    def since(self, mark: int, *kinds: str) -> list[Event]:
        return [event for event in self.done[mark:] if not kinds or event[0] in kinds]


def command(owner: str | None, epoch: int, prefixes: tuple[str, ...] = WEB, **fields: Any) -> EdgePool:
    return EdgePool(prefixes, owner, epoch, **fields)


@asynccontextmanager
async def serving(world: EdgeWorld, owner: str = "gw-a", epoch: int = 1) -> AsyncIterator[EdgeAgent]:
    """An agent that has been told of its tunnels and of one pool, and is at rest."""
    async with world.running() as agent:
        world.tell(("web", command(owner, epoch)), base=base("edge", "edge-1", WEB, MAIL))
        await world.confirmed(command(owner, epoch))
        await eventually(lambda: "rp_filter" in repr(world.done) or world.kernel.ruleset, "the first reconcile")
        await asyncio.sleep(0.02)
        yield agent
