"""The mirror: same as the store, whatever happens to the watch."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.clock import BootClock
from orchestrator.store.mirror import Mirror
from orchestrator.store.port import Change, DeletePrefix, Put, Snapshot, StoreChanged
from tests.contract.store.clocks import VirtualClock
from tests.contract.store.conftest import Bench
from tests.contract.store.fake import FakeEtcd, FakeStore

P = "/m/"


class Scene:
    """A mirror of a fake store in virtual time, with a second client that writes."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = FakeEtcd(self.clock)
        self.watched: FakeStore = self.server.client()
        self.writer: FakeStore = self.server.client()
        self.told: list[Change] = []
        self.mirror = Mirror(self.watched, P, self.clock, repair_every_s=10, on_changes=self.told.extend)

    def replayed(self) -> dict[str, bytes]:
        """What a listener that applies every change has."""
        copy: dict[str, bytes] = {}
        for change in self.told:
            if change.value is None:
                del copy[change.key]  # a deletion of what is not there would be a fault of the mirror
            else:
                copy[change.key] = change.value
        return copy

    def stored(self) -> dict[str, bytes]:
        """What the store has."""
        return {key: kv.value for key, kv in self.server.items.items() if key.startswith(P)}

    def check(self) -> None:
        """Mirror, listener and store agree."""
        assert {kv.key: kv.value for kv in self.mirror.items()} == self.stored() == self.replayed()
        assert list(self.mirror.items()) == [kv for key, kv in sorted(self.server.items.items()) if key.startswith(P)]


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(scene.mirror.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await scene.server.close()


async def test_it_follows_and_tells_every_change_once() -> None:
    scene = Scene()
    await scene.writer.put(P + "old", b"1")
    async with running(scene):
        await scene.clock.settle()
        assert scene.mirror.ready.is_set()
        await scene.writer.put(P + "new", b"2")
        await scene.writer.put("/other", b"")
        await scene.writer.txn([], [Put(P + "new", b"3"), Put(P + "x/1", b""), Put(P + "x/2", b"")])
        await scene.writer.delete(P + "old")
        await scene.clock.advance(25)  # two full reads find nothing to repair
        scene.check()
        assert [(change.key, change.value) for change in scene.told] == [
            (P + "old", b"1"),
            (P + "new", b"2"),
            (P + "new", b"3"),
            (P + "x/1", b""),
            (P + "x/2", b""),
            (P + "old", None),
        ]
        assert (scene.mirror.repairs, scene.mirror.reloads) == (0, 1)
        assert [kv.key for kv in scene.mirror.items(P + "x/")] == [P + "x/1", P + "x/2"]
        assert scene.mirror.revision == scene.server.revision


async def test_compaction_is_bridged_by_a_full_read_with_deletions() -> None:
    scene = Scene()
    await scene.writer.put(P + "stays", b"1")
    await scene.writer.put(P + "goes", b"1")
    async with running(scene):
        await scene.clock.settle()
        scene.watched.reachable = False
        await scene.writer.delete(P + "goes")
        await scene.writer.put(P + "stays", b"2")
        await scene.writer.put(P + "comes", b"1")
        scene.server.compact(scene.server.revision)
        await scene.clock.advance(3)
        assert P + "goes" in {kv.key for kv in scene.mirror.items()}
        scene.watched.reachable = True
        await scene.clock.advance(1)
        scene.check()
        assert [(c.key, c.value) for c in scene.told[2:]] == [
            (P + "goes", None),
            (P + "stays", b"2"),
            (P + "comes", b"1"),
        ]
        assert scene.mirror.reloads == 2


async def test_a_deaf_watch_is_repaired() -> None:
    scene = Scene()
    await scene.writer.put(P + "a", b"1")
    await scene.writer.put(P + "b", b"1")
    async with running(scene):
        await scene.clock.settle()
        scene.watched.deaf = True
        await scene.writer.put(P + "a", b"2")
        await scene.writer.txn([], [DeletePrefix(P + "b"), Put(P + "c", b"1")])
        await scene.clock.advance(9)
        assert scene.mirror.get(P + "a") != scene.server.items[P + "a"]
        scene.watched.deaf = False
        await scene.writer.put(P + "d", b"1")  # later events arrive; the lost ones never will
        await scene.clock.advance(3)
        scene.check()
        assert scene.mirror.repairs == 1
        await scene.writer.put(P + "e", b"1")
        await scene.clock.advance(30)
        scene.check()
        assert scene.mirror.repairs == 1


@pytest.mark.parametrize("lost", ["creation", "deletion"])
async def test_a_single_lost_event_is_found_although_others_arrive(lost: str) -> None:
    scene = Scene()
    await scene.writer.put(P + "a", b"1")
    async with running(scene):
        await scene.clock.settle()
        scene.watched.deaf = True
        if lost == "creation":
            await scene.writer.put(P + "b", b"1")
        else:
            await scene.writer.delete(P + "a")
        await scene.clock.settle()
        scene.watched.deaf = False
        for _ in range(60):  # a busy prefix: something newer is always there
            await scene.writer.put(P + "busy", b"")
            await scene.clock.advance(0.2)
        scene.check()
        assert scene.mirror.repairs == 1


async def test_a_watch_that_is_only_late_needs_no_repair() -> None:
    scene = Scene()
    async with running(scene):
        await scene.clock.advance(9.9)
        scene.watched.late = True
        await scene.writer.put(P + "a", b"1")
        await scene.clock.advance(0.3)  # a full read at 10 s sees the key, the watch has not brought it
        assert scene.mirror.get(P + "a") is None
        await scene.writer.delete(P + "a")
        scene.watched.late = False
        await scene.clock.advance(5)
        scene.check()
        assert [change.value for change in scene.told] == [b"1", None]
        assert (scene.mirror.repairs, scene.mirror.reloads) == (0, 1)


async def test_age_tells_when_it_was_last_current() -> None:
    scene = Scene()
    assert scene.mirror.age(scene.clock.now()) == float("inf")
    async with running(scene):
        await scene.clock.advance(5)
        assert scene.mirror.age(scene.clock.now()) <= 0.5
        scene.watched.reachable = False
        await scene.clock.advance(4)
        assert 3.5 <= scene.mirror.age(scene.clock.now()) <= 4.5
        scene.watched.reachable = True
        await scene.clock.advance(2)
        assert scene.mirror.age(scene.clock.now()) <= 0.5


async def test_it_waits_for_a_store_that_is_not_there_yet() -> None:
    scene = Scene()
    scene.watched.reachable = False
    await scene.writer.put(P + "a", b"1")
    async with running(scene):
        await scene.clock.advance(5)
        assert not scene.mirror.ready.is_set()
        scene.watched.reachable = True
        await scene.clock.advance(1)
        scene.check()


@pytest.mark.parametrize("cluster_id", [None, 0xBEEF], ids=["went backwards", "another cluster"])
async def test_another_store_ends_it(cluster_id: int | None) -> None:
    scene = Scene()
    for _ in range(3):
        await scene.writer.put(P + "a", b"1")
    async with running(scene) as task:
        await scene.clock.settle()
        scene.watched.reachable = False
        scene.server.wipe(cluster_id)
        for _ in range(9 if cluster_id else 1):
            await scene.writer.put(P + "a", b"2")
        scene.watched.reachable = True
        await scene.clock.advance(11)
        with pytest.raises(StoreChanged):
            await asyncio.wait_for(task, 1)
        kv = scene.mirror.get(P + "a")
        assert kv is not None
        assert kv.value == b"1"


@pytest.mark.parametrize("cluster_id", [None, 0xBEEF], ids=["went backwards", "another cluster"])
async def test_a_full_read_alone_notices_another_store(cluster_id: int | None) -> None:
    scene = Scene()

    async def oblivious(prefix: str, start_revision: int) -> AsyncGenerator[tuple[Change, ...], None]:
        assert (prefix, start_revision) == (P, 5)
        while True:
            await scene.clock.sleep(0.5)
            yield ()

    scene.watched.watch = oblivious  # type: ignore[method-assign]
    for _ in range(3):
        await scene.writer.put(P + "a", b"1")
    async with running(scene) as task:
        await scene.clock.settle()
        if cluster_id is not None:
            scene.server.cluster_id = cluster_id
        else:
            scene.server.revision = 2
        await scene.clock.advance(11)
        with pytest.raises(StoreChanged):
            await asyncio.wait_for(task, 1)


async def test_an_answer_that_the_watch_has_overtaken_is_no_other_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full read is answered, and while its answer is on its way the watch brings what came after it."""
    scene = Scene()
    async with running(scene) as task:
        await scene.clock.settle()
        read = scene.watched.list

        async def slow(prefix: str) -> Snapshot:
            snapshot = await read(prefix)
            await scene.writer.put(f"{P}later", b"1")
            await scene.clock.sleep(0.5)
            return snapshot

        monkeypatch.setattr(scene.watched, "list", slow)
        await scene.clock.advance(11)
        assert not task.done()
        assert scene.mirror.get(f"{P}later") is not None


async def test_it_mirrors_a_real_store_too(bench: Bench) -> None:
    told = asyncio.Event()
    mirror = Mirror(bench.store, bench.prefix, BootClock(), repair_every_s=0.3, on_changes=lambda _: told.set())
    writer = bench.client()
    await writer.put(bench.prefix + "before", b"")
    task = asyncio.create_task(mirror.run())
    try:
        async with asyncio.timeout(20):
            await mirror.ready.wait()
            for number in range(100):
                last = await writer.put(f"{bench.prefix}{number % 10}", b"%d" % number)
                if number % 7 == 0:
                    last = await writer.delete(f"{bench.prefix}{number % 10}")
            while mirror.revision < last:
                told.clear()
                await told.wait()
        assert mirror.items() == (await writer.list(bench.prefix)).items
        assert mirror.repairs == 0
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
