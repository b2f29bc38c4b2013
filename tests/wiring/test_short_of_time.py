"""A leader with a fifth of a core: a thousand pools move, reports change all the time, and somebody asks for it all."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from orchestrator.admin import AdminError, ask
from orchestrator.store.etcd import EtcdStore
from orchestrator.store.port import Store
from tests.agents.fakes import RealClock
from tests.contract.store.cluster import EtcdCluster, running
from tests.wiring.box import BGPLB, REPOSITORY, Daemon
from tests.wiring.crowd import KEYS, Crowd
from tests.wiring.quota import quota, throttled

POOLS = 1000
PERCENT = 20
BABBLE_S = 15.0
MOVED_WITHIN_S = 120.0
API = "networking.example.net/v1alpha1"

pytestmark = pytest.mark.chaos


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    with running(1) as cluster:
        yield cluster


def manifests(folder: Path) -> Path:
    group = {
        "edges": [{"name": "edge-1", "endpoint": "203.0.113.1", "asn": 64512}],
        "gateways": ["gw-a", "gw-b"],
        "gatewayASN": 64513,
    }
    objects: list[dict[str, Any]] = [
        {"apiVersion": API, "kind": "EdgeGateway", "metadata": {"name": "group"}, "spec": group}
    ]
    for number in range(POOLS):
        spec = {
            "aggregate": "198.18.0.0/15",
            "addresses": [f"198.18.{number // 256}.{number % 256}/32"],
            "gatewayRef": "group",
        }
        name = f"many-{number:04d}"
        objects.append({"apiVersion": API, "kind": "EIPPool", "metadata": {"name": name}, "spec": spec})
    folder.mkdir()
    (folder / "all.yaml").write_text(yaml.safe_dump_all(objects))
    return folder


class Replicas:
    """Real orchestrators as processes."""

    def __init__(self, folder: Path, endpoints: list[str]) -> None:
        self._folder, self._endpoints = folder, endpoints
        self._intent = manifests(folder / "manifests")
        self.running: dict[str, Daemon] = {}

    def start(self, name: str) -> Daemon:
        settings = {
            "name": name,
            "etcd": {"endpoints": self._endpoints},
            "state_dir": str(self._folder / name),
            "run_dir": str(self._folder / "run"),
            "http": {"listen": None},
            "manifests": str(self._intent),
        }
        config, log = self._folder / f"{name}.yaml", self._folder / f"{name}.log"
        config.write_text(yaml.safe_dump(settings))
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*BGPLB, "orchestrator", "--config", str(config)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=REPOSITORY,
            )  # fmt: skip
        self.running[name] = Daemon(process, log)
        return self.running[name]

    def socket(self, name: str) -> Path:
        return self._folder / "run" / f"{name}.sock"

    def close(self) -> None:
        for daemon in self.running.values():
            if daemon.process.poll() is None:
                daemon.process.kill()
            daemon.process.wait(10)


async def owners(store: Store) -> dict[str, int]:
    """How many pools are at rest at each gateway."""
    found: dict[str, int] = {}
    for kv in (await store.list(f"{KEYS.machines_prefix}pool/")).items:
        record = msgspec.json.decode(kv.value)
        if record["state"] == "ActiveHealthy":
            found[record["owner"]] = found.get(record["owner"], 0) + 1
    return found


async def until(condition: Any, what: str, within_s: float) -> None:
    """Wait until that coroutine function says yes; raises when it does not in time."""
    try:
        async with asyncio.timeout(within_s):
            while not await condition():
                await asyncio.sleep(0.2)
    except TimeoutError as error:
        raise AssertionError(f"not within {within_s:g} s: {what}") from error


async def asking(path: Path) -> None:
    """Ask for everything, again and again, as somebody who is worried does."""
    while True:
        for request in ({"cmd": "status"}, {"cmd": "dump", "history": 20}):
            with suppress(AdminError):  # it may take longer than who asks has patience
                await ask(path, request)
        await asyncio.sleep(0.5)


@asynccontextmanager
async def beside(*work: Any) -> AsyncIterator[None]:
    """These run while the block lasts; one that ends in an error is told of."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Scene:
    """A leader, a rival, and agents of paper, with all pools at rest."""

    def __init__(self, store: Store, crowd: Crowd, replicas: Replicas) -> None:
        self.store, self.crowd, self.replicas = store, crowd, replicas

    @property
    def leader(self) -> Daemon:
        return self.replicas.running["orch-1"]

    async def begin(self) -> None:
        async def settled() -> bool:
            return sum((await owners(self.store)).values()) == POOLS

        async def is_there(key: str) -> bool:
            return await self.store.get(key) is not None

        await until(settled, "all pools are placed", 120.0)
        assert (await owners(self.store)).get("gw-a", 0) > POOLS / 4
        self.replicas.start("orch-2")
        await until(lambda: is_there(KEYS.agent("orchestrator", "orch-2")), "a rival", 20.0)

    async def everything_moves(self) -> None:
        """First every report changes once a second for some time, and then half of the pools have to move."""

        async def moved() -> bool:
            return await owners(self.store) == {"gw-b": POOLS}

        self.crowd.babble = POOLS // 4
        await asyncio.sleep(BABBLE_S)
        self.crowd.dead.add("gw-a")
        await until(moved, "all pools are at gw-b", MOVED_WITHIN_S)

    @asynccontextmanager
    async def unchallenged(self) -> AsyncIterator[None]:
        """Nobody else leads, and nobody leads anew, while the block lasts."""
        before = await self.store.get(KEYS.leader)
        yield
        after = await self.store.get(KEYS.leader)
        assert before is not None and after is not None
        assert before.create_revision == after.create_revision, after.value
        assert self.leader.events("leadership ended") == self.leader.events("lease lost") == []


@pytest.fixture
async def scene(etcd: EtcdCluster, tmp_path: Path) -> AsyncIterator[Scene]:
    store = EtcdStore(etcd.endpoints, RealClock())
    made = Scene(store, Crowd(store, ("gw-a", "gw-b")), Replicas(tmp_path, etcd.endpoints))
    try:
        made.replicas.start("orch-1")
        async with beside(made.crowd.run()):
            await made.begin()
            yield made
    finally:
        made.replicas.close()
        await store.close()


async def test_a_leader_with_a_fifth_of_a_core_keeps_its_post(scene: Scene) -> None:
    async with scene.unchallenged():
        with quota(scene.leader.process.pid, PERCENT) as group:
            await scene.everything_moves()
            assert throttled(group) > 20, "it was not short of time at all: this shows nothing"


async def test_a_leader_that_is_asked_for_everything_keeps_its_post(scene: Scene) -> None:
    async with scene.unchallenged(), beside(asking(scene.replicas.socket("orch-1"))):
        await scene.everything_moves()
