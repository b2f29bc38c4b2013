"""Orchestrator, edge agent and node agents, all of them the real ones, on a fake store, kernels and BIRDs.

What the network does is played here: a gateway with power has its session, answers probes, and the edge's signal table
has what its BIRD announces.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from dataplane.events import RouteChange
from fsm.records import AgentRecord, HistoryEntry, PoolRecord, Request
from orchestrator.agents.edge import EdgeAgent
from orchestrator.agents.link import AgentLink, Registration
from orchestrator.agents.node import NodeAgent
from orchestrator.config.orchestrator import OrchestratorConfig
from orchestrator.store.heartbeat import Heartbeat
from orchestrator.store.lease import Session
from orchestrator.store.port import Put
from orchestrator.store.records import decode, encode
from orchestrator.wiring import decide
from orchestrator.wiring.metrics import agent_metrics
from orchestrator.wiring.registry import registry_of
from tests.agents.edge_world import EdgeWorld
from tests.agents.fakes import KEYS, WEB, RealClock, eventually
from tests.agents.node_world import NodeWorld
from tests.contract.store.fake import FakeEtcd, FakeStore
from tests.wiring.test_replicas import MANIFESTS

DEVICES = {"gw-a": "bgplb-g0", "gw-b": "bgplb-g1"}


class Network:
    """Everything, and the power of each gateway."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, RealClock()
        self.server = FakeEtcd(self.clock)
        for name in ("edge", *DEVICES):
            (folder / name).mkdir()
        self.edge = EdgeWorld(folder / "edge")
        self.edge.make_link = lambda agent: self._link(agent, "edge", "edge-1")
        self.nodes: dict[str, NodeWorld] = {}
        self._powered: dict[str, AsyncExitStack] = {}
        self._clients: list[FakeStore] = []

    def client(self) -> FakeStore:
        """A way to the store, that `store_reachable` shuts."""
        self._clients.append(self.server.client())
        return self._clients[-1]

    def store_reachable(self, reachable: bool) -> None:
        for client in self._clients:
            client.reachable = reachable

    def _link(self, agent: EdgeAgent | NodeAgent, role: str, name: str) -> AgentLink:
        store = self.client()
        session = Session(store, self.clock, 3000, 1000, lambda: agent.turns)
        beat = Heartbeat(store, KEYS.heartbeat(role, name), self.clock, 250, session, lambda: agent.turns)
        record = AgentRecord(name, role, f"i-{name}", "1", f"key-{name}", "10.10.0.11")
        registration = Registration(
            store=store, keys=KEYS, clock=self.clock, session=session, role=role, name=name,
            describe=lambda: record, log=lambda event, **fields: None,
        )  # fmt: skip
        return AgentLink(
            store=store, keys=KEYS, clock=self.clock, session=session, heartbeat=beat, registration=registration,
            role=role, name=name, on_desired=agent.on_desired,
        )  # fmt: skip

    async def power_on(self, name: str) -> None:
        """Kernel and tmpfs are empty, the disk is as it was."""
        node = self.nodes[name] = NodeWorld(self.folder / name, name=name)
        node.make_link = lambda agent: self._link(agent, "node", name)
        stack = self._powered[name] = AsyncExitStack()
        await stack.enter_async_context(node.running())

    async def power_cut(self, name: str) -> None:
        await self._powered.pop(name).aclose()

    async def play(self) -> None:
        """What wire and BIRDs do, for ever."""
        while True:
            known = {tunnel.name for tunnel in self.edge.agent._state.base.tunnels}
            for name in known & DEVICES.keys():
                self.edge.reply(name, name in self._powered)
                self.edge.session(name, name in self._powered)
            self._announce(WEB[0])
            await asyncio.sleep(0.01)

    def _announce(self, prefix: str) -> None:
        speakers = [name for name in self._powered if self._announces(name, prefix)]
        events, device = self.edge.agent._events, DEVICES[min(speakers)] if speakers else None
        before = events.routes.get(prefix)
        if (before.device if before else None) == device:
            return
        change = RouteChange(prefix, 10177, device is not None, device, None)
        events.routes.pop(prefix, None)
        if device is not None:
            events.routes[prefix] = change
        events._on_route(change)

    def _announces(self, name: str, prefix: str) -> bool:
        wanted = self.nodes[name].applier.announced
        return any(p.announced and ip_network(prefix) in p.prefixes for p in wanted.pools) if wanted else False

    def record(self) -> PoolRecord | None:
        kv = self.server.items.get(KEYS.machine("pool", "web"))
        return None if kv is None else decode(kv.value, PoolRecord, kv.key)

    def history(self) -> list[HistoryEntry]:
        prefix = KEYS.history_prefix("pool", "web")
        found = [kv for key, kv in sorted(self.server.items.items()) if key.startswith(prefix)]
        return [decode(kv.value, HistoryEntry, kv.key) for kv in found]

    def settled_on(self, *names: str) -> bool:
        """The pool is at rest on one of these, for the leader, the edge's kernel and the gateways alike."""
        record = self.record()
        if record is None or record.state != "ActiveHealthy" or record.owner not in names:
            return False
        speakers = {name for name in self._powered if self._announces(name, WEB[0])}
        there = self.edge.kernel.routes_to(WEB[0]) == [DEVICES[record.owner]]
        return there and self.edge.senders(WEB[0]) == {record.owner} and speakers == {record.owner}

    async def settle(self, *names: str) -> str:
        await eventually(lambda: self.settled_on(*names), f"settled on {names}", within_s=20.0)
        record = self.record()
        assert record is not None
        assert record.owner is not None
        return record.owner


@pytest.fixture
async def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Network]:
    made, asked = Network(tmp_path), asyncio.Event()
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "all.yaml").write_text(MANIFESTS)
    monkeypatch.setattr(decide, "open_store", lambda etcd, clock: made.client())
    monkeypatch.setattr(decide, "until_signalled", lambda: asked)
    monkeypatch.setattr(decide, "BootClock", RealClock)
    monkeypatch.setattr(decide, "settle_memory", lambda: None)
    config = OrchestratorConfig.model_validate(
        {
            "name": "orch-1",
            "etcd": {"endpoints": ["http://127.0.0.1:1"]},
            "state_dir": str(tmp_path / "orch"),
            "run_dir": str(tmp_path / "orch"),
            "http": {"listen": None},
            "manifests": str(tmp_path / "manifests"),
        }
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(made.edge.running())
        for name in DEVICES:
            await made.power_on(name)
        playing, leading = asyncio.create_task(made.play()), asyncio.create_task(decide.main(config))
        yield made
        asked.set()
        await asyncio.wait_for(leading, 10)
        playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing
        for name in list(made._powered):
            await made.power_cut(name)
    await made.server.close()


async def test_a_pool_is_placed_fails_over_and_is_drained_back(network: Network) -> None:
    first = await network.settle(*DEVICES)
    second = next(name for name in DEVICES if name != first)
    await network.power_cut(first)
    await network.settle(second)
    await network.power_on(first)
    await eventually(lambda: (r := network.record()) is not None and r.standby == first, "a standby again", 10)
    await drained(network)
    await network.settle(first)
    entries = network.history()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert "drain: maintenance" in [entry.cause for entry in entries]


def answered(network: Network, key: str) -> bool:
    return bool(decode(network.server.items[key].value, Request).answer)


async def drained(network: Network) -> None:
    """Ask until it is granted: a gateway that has just come may be ready, and not yet, and ready again."""
    for attempt in range(20):
        key = KEYS.request(f"r{attempt}")
        request = Request(f"r{attempt}", "drain", "web", reason="maintenance", at_ms=1)
        network.server.commit([Put(key, encode(request))])
        await eventually(partial(answered, network, key), "an answer", 10)
        if decode(network.server.items[key].value, Request).accepted:
            return
        await asyncio.sleep(0.5)
    raise AssertionError("it was never granted")


async def test_a_gateway_that_leaves_hands_over_before_it_goes(network: Network) -> None:
    first = await network.settle(*DEVICES)
    await asyncio.wait_for(network.nodes[first].agent.leave(), 10)
    await network.settle(next(name for name in DEVICES if name != first))


async def test_with_the_store_away_the_edge_fails_over_by_its_plan_and_the_leader_adopts_it(network: Network) -> None:
    first = await network.settle(*DEVICES)
    second = next(name for name in DEVICES if name != first)
    await eventually(lambda: (r := network.record()) is not None and r.plan, "a plan", 10)
    await eventually(lambda: network.edge.agent._state.fence.pools["web"].command.plan, "the plan at the edge", 10)
    seq = network.history()[-1].seq
    network.store_reachable(False)
    await network.power_cut(first)
    await eventually(lambda: network.edge.kernel.routes_to(WEB[0]) == [DEVICES[second]], "the edge's own move")
    assert network.edge.senders(WEB[0]) == {second}
    assert network.history()[-1].seq == seq, "nobody could tell anybody"
    network.store_reachable(True)
    await network.settle(second)
    assert [entry.event for entry in network.history() if entry.seq > seq].count("PlanExecuted") == 1


async def test_metrics_say_what_edge_and_gateway_do(network: Network) -> None:
    owner = await network.settle(*DEVICES)
    other = next(name for name in DEVICES if name != owner)
    armed = 'bgplb_edge_pool_plan_armed{pool="web"} 1.0'
    await eventually(lambda: armed in scraped(network.edge.agent, "edge-1"), "a plan", 10)
    edge = scraped(network.edge.agent, "edge-1")
    assert f'bgplb_edge_pool_owner{{gateway="{owner}",pool="web"}} 1.0' in edge
    assert 'bgplb_edge_pool_installed{pool="web"} 1.0' in edge
    assert f'bgplb_session{{gateway="{other}",word="up"}} 1.0' in edge
    assert f'bgplb_probe{{gateway="{other}",word="failing"}} 0.0' in edge
    assert f'bgplb_probe_round_trip_seconds{{gateway="{owner}"}} 0.001' in edge
    assert "bgplb_fence_highest_epoch 1.0" in edge
    assert "bgplb_store_refused 0.0" in edge
    assert "bgplb_plans_executed_total 2.0" in edge
    gateway = scraped(network.nodes[owner].agent, owner)
    assert "bgplb_gateway_ready 1.0" in gateway
    assert 'bgplb_announcing{pool="web"} 1.0' in gateway
    assert 'bgplb_precondition{name="answer-rules"} 1.0' in gateway
    assert 'bgplb_announcing{pool="web"} 0.0' in scraped(network.nodes[other].agent, other)


def scraped(agent: EdgeAgent | NodeAgent, name: str) -> list[str]:
    make = agent_metrics(agent, KEYS, name, {"plan carried out": 2})
    return generate_latest(registry_of(make)).decode().splitlines()
