"""Whole orchestrators, put together as the command does it, on a fake store: who leads, and what its loss changes."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fsm.records import AgentRecord
from orchestrator import view
from orchestrator.admin import ask
from orchestrator.config.orchestrator import OrchestratorConfig
from orchestrator.leader.loop import LeaderLoop
from orchestrator.store.generation import Meta
from orchestrator.store.port import KeyValue, Put, Refused, StoreError
from orchestrator.store.records import decode, encode
from orchestrator.wiring import decide
from orchestrator.wiring.process import UNREACHABLE, run
from tests.agents.fakes import RealClock, eventually
from tests.contract.store.fake import FakeStore
from tests.leader.model import KEYS, World, other

MANIFESTS = """
apiVersion: networking.example.net/v1alpha1
kind: EdgeGateway
metadata: {name: group}
spec:
  edges: [{name: edge-1, endpoint: 203.0.113.1, asn: 64512}]
  gateways: [gw-a, gw-b]
  gatewayASN: 64513
---
apiVersion: networking.example.net/v1alpha1
kind: EIPPool
metadata: {name: web}
spec:
  aggregate: 192.0.2.0/24
  addresses: [192.0.2.0/26]
  gatewayRef: group
"""


class Orchestrators:
    """Replicas by name, on one store with agents of paper."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.world = World(clock=RealClock())
        self.stores: dict[str, FakeStore] = {}
        self.asked: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[int]] = {}
        self.agents_beat = True
        self._starting = ""
        (folder / "manifests").mkdir()
        (folder / "manifests" / "all.yaml").write_text(MANIFESTS)
        patch.setattr(decide, "open_store", lambda etcd, clock: self.stores[self._starting])
        patch.setattr(decide, "until_signalled", lambda: self.asked[self._starting])
        patch.setattr(decide, "BootClock", RealClock)
        patch.setattr(decide, "settle_memory", lambda: None)
        self._agents = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            if self.agents_beat:
                self.world.obey()
            await asyncio.sleep(0.05)

    async def start(self, name: str) -> None:
        config = OrchestratorConfig.model_validate(
            {
                "name": name,
                "etcd": {"endpoints": ["http://127.0.0.1:1"]},
                "state_dir": str(self.folder / name),
                "run_dir": str(self.folder / name),
                "http": {"listen": None},
                "manifests": str(self.folder / "manifests"),
            }
        )
        self._starting = name
        self.stores[name], self.asked[name] = self.world.server.client(), asyncio.Event()
        self.tasks[name] = asyncio.create_task(decide.main(config))
        await eventually(lambda: KEYS.agent("orchestrator", name) in self.world.server.items, f"{name} registers")

    def leader(self) -> str | None:
        kv = self.world.server.items.get(KEYS.leader)
        return next((name for name in self.tasks if kv is not None and f'"{name}"'.encode() in kv.value), None)

    async def kill(self, name: str) -> None:
        """It is gone without a word: not even its last writes get through."""
        self.stores[name].reachable = False
        self.tasks[name].cancel()
        with suppress(asyncio.CancelledError):
            await self.tasks[name]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await eventually(condition, what, within_s=20.0)

    def state(self) -> tuple[str, str | None]:
        return self.world.state() if KEYS.machine("pool", "web") in self.world.server.items else ("", None)

    async def close(self) -> None:
        self._agents.cancel()
        for name, task in self.tasks.items():
            if not task.done():
                await self.kill(name)
        await self.world.server.close()


@pytest.fixture
async def orchestrators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Orchestrators]:
    made = Orchestrators(tmp_path, monkeypatch)
    yield made
    await made.close()


async def active(made: Orchestrators, *names: str) -> str:
    """These run, the pool is placed; who owns it."""
    for name in names:
        await made.start(name)
    await made.until(lambda: made.state()[0] == "ActiveHealthy", "the pool is placed")
    return made.state()[1] or ""


async def test_a_follower_takes_over_from_a_dead_leader_and_fails_the_pool_over(orchestrators: Orchestrators) -> None:
    owner = await active(orchestrators, "orch-1", "orch-2")
    first = orchestrators.leader()
    assert first is not None
    await orchestrators.kill(first)
    orchestrators.world.power_cut(owner)
    await orchestrators.until(lambda: orchestrators.state() == ("ActiveHealthy", other(owner)), "the failover")
    assert orchestrators.leader() not in (None, first)
    given = orchestrators.world.epochs_given()
    assert given == sorted(set(given))


async def test_a_leader_whose_loop_hangs_loses_its_lease_although_its_timers_run(
    orchestrators: Orchestrators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It beats and would renew for ever; but who decides nothing must not keep others from deciding."""
    owner = await active(orchestrators, "orch-1", "orch-2")
    first = orchestrators.leader()
    assert first is not None
    whole = LeaderLoop.turn

    async def hangs(loop: LeaderLoop) -> bool:
        return await (asyncio.Event().wait() if loop._name == first else whole(loop))

    monkeypatch.setattr(LeaderLoop, "turn", hangs)
    await orchestrators.until(lambda: orchestrators.leader() not in (None, first), "the other leads")
    assert not orchestrators.tasks[first].done()
    orchestrators.world.power_cut(owner)
    await orchestrators.until(lambda: orchestrators.state() == ("ActiveHealthy", other(owner)), "the failover")


async def test_a_store_that_refuses_ends_no_orchestrator(
    orchestrators: Orchestrators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No space, no permission: it says so, shows what it knew, and goes on by itself once it may."""
    owner = await active(orchestrators, "orch-1")
    refusing = True
    whole = FakeStore.put

    async def put(store: FakeStore, key: str, value: bytes, lease: int = 0) -> int:
        if refusing and store is orchestrators.stores["orch-1"]:
            raise Refused("write: etcdserver: mvcc: database space exceeded")
        return await whole(store, key, value, lease)

    monkeypatch.setattr(FakeStore, "put", put)
    socket = orchestrators.folder / "orch-1" / "orch-1.sock"

    async def told() -> bool:
        status = await ask(socket, {"cmd": "status"})
        assert [pool["name"] for pool in status["pools"]] == ["web"]
        return any("space exceeded" in problem for problem in status.get("problems", []))

    async with asyncio.timeout(20):
        while not await told():
            await asyncio.sleep(0.1)
    assert not orchestrators.tasks["orch-1"].done()
    refusing = False
    await orchestrators.until(lambda: orchestrators.leader() == "orch-1", "it leads again")
    orchestrators.world.power_cut(owner)
    await orchestrators.until(lambda: orchestrators.state() == ("ActiveHealthy", other(owner)), "the failover")
    assert not any("space exceeded" in p for p in (await ask(socket, {"cmd": "status"})).get("problems", []))


async def test_an_orchestrator_that_refuses_the_store_goes_on_saying_so(orchestrators: Orchestrators) -> None:
    """Not only for the time of a lease: who accepts the store has to see what it obeyed."""
    await active(orchestrators, "orch-1")
    server, key = orchestrators.world.server, KEYS.agent("orchestrator", "orch-1")
    server.commit([Put(KEYS.meta, encode(Meta("another")))])
    server.end_lease(server.items[key].lease)

    def refuses() -> bool:
        kv = server.items.get(key)
        return kv is not None and bool(decode(kv.value, AgentRecord, key).refuses)

    await orchestrators.until(refuses, "the refusal")
    await asyncio.sleep(8.0)
    assert refuses()


async def test_a_leader_that_is_told_to_end_leaves_the_post_free(orchestrators: Orchestrators) -> None:
    await active(orchestrators, "orch-1", "orch-2")
    first = orchestrators.leader()
    assert first is not None
    orchestrators.asked[first].set()
    assert await asyncio.wait_for(orchestrators.tasks[first], 10) == 0
    assert KEYS.agent("orchestrator", first) not in orchestrators.world.server.items
    await orchestrators.until(lambda: orchestrators.leader() not in (None, first), "the other leads")


async def test_a_store_that_is_away_for_longer_than_a_lease_changes_nothing(orchestrators: Orchestrators) -> None:
    owner = await active(orchestrators, "orch-1", "orch-2")
    history = orchestrators.world.history()
    orchestrators.agents_beat = False
    for store in orchestrators.stores.values():
        store.reachable = False
    await asyncio.sleep(4.0)
    orchestrators.agents_beat = True
    for store in orchestrators.stores.values():
        store.reachable = True
    await orchestrators.until(lambda: orchestrators.leader() is not None, "somebody leads again")
    await asyncio.sleep(1.0)
    assert orchestrators.state() == ("ActiveHealthy", owner)
    assert orchestrators.world.history() == history
    orchestrators.world.power_cut(owner)
    await orchestrators.until(lambda: orchestrators.state() == ("ActiveHealthy", other(owner)), "it works again")


async def test_a_leader_that_was_cut_off_alone_comes_back_as_a_follower(orchestrators: Orchestrators) -> None:
    owner = await active(orchestrators, "orch-1", "orch-2")
    first = orchestrators.leader()
    assert first is not None
    orchestrators.stores[first].reachable = False
    await orchestrators.until(lambda: orchestrators.leader() not in (None, first), "the other leads")
    second = orchestrators.leader()
    orchestrators.stores[first].reachable = True
    await orchestrators.until(
        lambda: KEYS.agent("orchestrator", first) in orchestrators.world.server.items, "it is back"
    )
    orchestrators.world.power_cut(owner)
    await orchestrators.until(lambda: orchestrators.state() == ("ActiveHealthy", other(owner)), "the failover")
    assert orchestrators.leader() == second
    assert not orchestrators.tasks[first].done()


async def test_a_file_that_goes_while_they_lead_deletes_its_pool(orchestrators: Orchestrators) -> None:
    await active(orchestrators, "orch-1")
    folder = orchestrators.folder / "manifests"
    group, _, _pool = MANIFESTS.partition("---")
    (folder / "all.yaml").write_text("half a fi: [")
    await asyncio.sleep(0.6)
    assert orchestrators.state()[0] == "ActiveHealthy", "half a file deletes nothing"
    (folder / "all.yaml").write_text(group)
    await orchestrators.until(lambda: orchestrators.state() == ("", None), "the pool is gone")
    await orchestrators.until(
        lambda: not [key for key in orchestrators.world.present() if key.endswith("/web")], "the last key"
    )


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "from a task group"])
def test_what_a_daemon_can_not_go_on_with_is_a_code(wrapped: bool) -> None:
    async def fails() -> int:
        error = StoreError("etcd: wrong password")
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [error])]) if wrapped else error

    assert run(fails()) == UNREACHABLE


def test_what_nobody_foresaw_is_raised_whole() -> None:
    async def fails() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(fails())


async def test_what_is_shown_is_made_beside_the_loop_from_one_instant(
    orchestrators: Orchestrators, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a thousand pools it takes long enough to hold up a failover."""
    await active(orchestrators, "orch-1")
    made: list[bool] = []

    def beside(name: str) -> None:
        real = getattr(view, name)

        def build(items: dict[str, KeyValue], *arguments: object, **named: object) -> object:
            made.append(threading.current_thread() is not threading.main_thread())
            before = dict(items)
            time.sleep(0.6)  # agents and replicas beat meanwhile
            assert items == before
            return real(items, *arguments, **named)

        monkeypatch.setattr(view, name, build)

    beside("status")
    beside("dump")
    socket = tmp_path / "orch-1" / "orch-1.sock"
    status = await ask(socket, {"cmd": "status"})
    dump = await ask(socket, {"cmd": "dump", "history": 1})
    assert made == [True, True]
    assert [pool["name"] for pool in status["pools"]] == [machine["name"] for machine in dump["machines"]] == ["web"]
