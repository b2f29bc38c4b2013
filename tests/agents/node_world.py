"""A node agent with everything around it in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dataplane.model import Address, Link
from dataplane.probe_namespace import ProbeNamespace
from fsm.records import AgentBase, NodePool, NodePoolReport, NodeReport, Precondition
from orchestrator.agents.link import AgentLink
from orchestrator.agents.node import NodeAgent
from orchestrator.agents.node_state import NodeState
from orchestrator.agents.statefile import load, save
from orchestrator.config.node_agent import NodeAgentConfig
from tests.agents.fakes import (
    KEYS,
    Event,
    FakeApplier,
    FakeLink,
    Netlink,
    RealClock,
    RecordingWireGuard,
    base,
    change,
    eventually,
    key_file,
    linux,
)

BASE_KEY = KEYS.desired_base("node", "gw-a")


@dataclass
class FakeReach:
    """Who is reached on the LAN."""

    answering: set[str] = field(default_factory=set)
    watched: list[str] = field(default_factory=list)
    every_ms: int = 0
    asked_enough: bool = True
    on_change: Callable[[], None] = lambda: None
    asking: bool = False

    def watch(self, targets: Iterable[str], interval_ms: int) -> None:
        self.watched, self.every_ms = list(targets), interval_ms

    def reached(self) -> set[str]:
        return self.answering & set(self.watched)

    def judged(self) -> bool:
        return self.asked_enough

    def now(self, *answering: str) -> None:
        """These answer from now on, and nobody else."""
        self.answering = set(answering)
        self.on_change()

    def start(self) -> None:
        self.asking = True

    def close(self) -> None:
        self.asking = False


class FakeResponder(ProbeNamespace):
    """The responder without a namespace: its end on the host alone."""

    async def ensure(self, host: Netlink) -> None:  # type: ignore[override]
        if self.host_link not in host.state.links:
            host.add(links=[self.host_link], addresses=self.host_addresses)

    async def remove(self, host: Netlink) -> None:  # type: ignore[override]
        pass


class NodeWorld:
    """The machine, its disk, its BIRD, and the agents that run on it one after the other."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.path = tmp_path
        self.done: list[Event] = []
        self.kernel = linux(self.done)
        self.kernel.add(links=[Link("lan0", "veth", 1500)], addresses=[Address("lan0", "10.10.0.11/24")])
        for name in ("all", "lan0"):
            for what in ("rp_filter", "src_valid_mark"):
                self.sysctl(f"net.ipv4.conf.{name}.{what}", "0")
        self.wireguard = RecordingWireGuard(self.kernel.kernel, self.done)
        self.applier, self.reach, self.link = FakeApplier(self.done), FakeReach(), FakeLink()
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.config = NodeAgentConfig.model_validate(
            {
                "name": "gw-a",
                "etcd": {"endpoints": ["http://127.0.0.1:1"]},
                "state_dir": str(tmp_path),
                "run_dir": str(tmp_path),
                "wireguard": {"private_key_file": str(key_file(tmp_path))},
                "lan": {"address": "10.10.0.11"},
                **settings,
            }
        )
        self.revision = 100
        self.make_link: Callable[[NodeAgent], AgentLink] | None = None
        """Gives a link with a store of its own, in place of one that only records."""
        self.agent: NodeAgent

    def sysctl(self, name: str, value: str) -> None:
        state = self.kernel.state
        self.kernel.kernel.state = replace(state, sysctls={**state.sysctls, name: value})

    def _save(self, state: NodeState) -> None:
        save(self.path / "node.json", state)
        self.done.append(("save", state))

    @asynccontextmanager
    async def running(self, link: bool = True) -> AsyncIterator[NodeAgent]:
        """An agent from its disk, until the block ends: then it is killed."""
        self.agent = NodeAgent(
            config=self.config,
            instance="i-1",
            keys=KEYS,
            clock=RealClock(),
            kernel=self.kernel,  # type: ignore[arg-type]
            wireguard=self.wireguard,
            applier=self.applier,  # type: ignore[arg-type]
            reach=self.reach,  # type: ignore[arg-type]
            responder=FakeResponder(),
            state=load(self.path / "node.json", NodeState, NodeState()),
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

    def tell(self, *pools: tuple[str, NodePool | None], base: AgentBase | None = None) -> None:
        """What the mirror brings in one go."""
        self.revision += 1
        changes = [change(BASE_KEY, base, self.revision)] if base is not None else []
        changes += [change(KEYS.desired("node", "gw-a", "pool", n), v, self.revision) for n, v in pools]
        self.agent.on_desired(tuple(changes))

    def report(self, pool: str = "web") -> NodePoolReport | None:
        found = self.link.told.get(KEYS.observed("node", "gw-a", "pool", pool))
        assert found is None or isinstance(found, NodePoolReport)
        return found

    def seen(self) -> NodeReport | None:
        found = self.link.told.get(KEYS.observed_base("node", "gw-a"))
        assert found is None or isinstance(found, NodeReport)
        return found

    def failed(self) -> dict[str, str]:
        """Preconditions that do not hold."""
        report = self.seen()
        return {p.name: p.detail for p in report.preconditions if not p.ok} if report else {}

    def precondition(self, name: str) -> Precondition | None:
        report = self.seen()
        return next((p for p in report.preconditions if p.name == name), None) if report else None

    def announced(self) -> set[str]:
        wanted = self.applier.announced
        return {p.pool for p in wanted.pools if p.announced} if wanted else set()

    def since(self, mark: int, *kinds: str) -> list[Event]:
        return [event for event in self.done[mark:] if not kinds or event[0] in kinds]


def node_pool(announce: bool, epoch: int, prefixes: tuple[str, ...] = ("192.0.2.0/26",)) -> NodePool:
    return NodePool(prefixes, announce, epoch)


@asynccontextmanager
async def gateway(world: NodeWorld, announce: bool = True) -> AsyncIterator[NodeAgent]:
    """An agent that has been told of its tunnel and of one pool, and is ready."""
    async with world.running() as agent:
        world.tell(("web", node_pool(announce, 1)), base=base("node", "gw-a", ("192.0.2.0/26",)))
        await eventually(lambda: (r := world.seen()) is not None and r.ready, f"ready; lacking {world.failed()}")
        await eventually(lambda: world.announced() == ({"web"} if announce else set()), "the announcement")
        await eventually(lambda: (r := world.report()) is not None and r.answers, "the report")
        yield agent
