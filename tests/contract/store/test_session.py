"""Session and heartbeat: a lease that tells the truth about the process that holds it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.store.heartbeat import Heartbeat
from orchestrator.store.lease import Session
from orchestrator.store.port import Unavailable
from tests.contract.store.clocks import VirtualClock
from tests.contract.store.fake import FakeEtcd, FakeStore

KEY = "/h/beat"


class Scene:
    """A session of 3 s, renewed every second, in virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = FakeEtcd(self.clock)
        self.store: FakeStore = self.server.client()
        self.works = True
        self._progress = 0
        self.renewed: list[float] = []
        self.session = Session(self.store, self.clock, 3000, 1000, self.progress, self.renewed.append)
        self.committed: list[int] = []
        self.heartbeat = Heartbeat(
            self.store, KEY, self.clock, 250, self.session, lambda: self._progress, self.committed.append
        )

    def progress(self) -> int:
        """A loop counter, which stands still once the loop hangs."""
        self._progress += self.works
        return self._progress

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.session.deadline(self.clock.now())


@asynccontextmanager
async def running() -> AsyncIterator[Scene]:
    scene = Scene()
    assert scene.left_s == float("-inf")
    await scene.session.open()
    tasks = [asyncio.create_task(scene.session.run()), asyncio.create_task(scene.heartbeat.run())]
    try:
        yield scene
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await scene.server.close()


async def test_a_working_process_keeps_its_lease() -> None:
    async with running() as scene:
        lease_id = scene.session.lease_id
        for _ in range(200):
            await scene.clock.advance(0.1)
            assert 2.0 <= scene.left_s <= 3.0
            # Never later than the server's own idea.
            assert scene.clock.now() + scene.left_s <= scene.server.leases[lease_id][1]
        assert scene.session.renewals == 20
        assert scene.renewed == [3.0] * 21
        assert not scene.session.lost.is_set()


async def test_the_deadline_counts_from_the_sending() -> None:
    scene = Scene()
    await scene.session.open()
    answer = scene.store.keepalive

    async def slow(lease_id: int) -> int:
        ttl_s = await answer(lease_id)
        await scene.clock.sleep(0.8)
        return ttl_s

    scene.store.keepalive = slow  # type: ignore[method-assign]
    renewal = asyncio.create_task(scene.session.renew())
    await scene.clock.advance(0.8)
    assert await renewal
    assert scene.left_s == pytest.approx(2.2)
    await scene.server.close()


async def test_a_hanging_loop_loses_its_lease() -> None:
    async with running() as scene:
        await scene.clock.advance(5)
        scene.works = False
        took = await scene.clock.advance_until(lambda: scene.server.leases == {}, limit_s=5)
        assert took <= 3.0 + 1.0
        assert scene.left_s <= 0
        assert scene.session.withheld > 0
        scene.works = True
        await scene.clock.advance(1)
        assert scene.session.lost.is_set()
        assert scene.session.lease_id == 0
        await scene.session.open()
        assert not scene.session.lost.is_set()
        await scene.clock.advance(10)
        assert 2.0 <= scene.left_s <= 3.0


async def test_an_outage_is_doubt_and_not_loss() -> None:
    async with running() as scene:
        lease_id = scene.session.lease_id
        await scene.clock.advance(2)
        scene.store.reachable = False
        scene.server.leases[lease_id] = (3, scene.clock.now() + 60)  # as a new leader of etcd extends all leases
        await scene.clock.advance(10)
        assert scene.left_s < 0
        assert not scene.session.lost.is_set()
        scene.store.reachable = True
        await scene.clock.advance(0.5)
        assert scene.session.lease_id == lease_id
        assert scene.left_s > 2


async def test_closing_removes_the_keys_at_once() -> None:
    async with running() as scene:
        await scene.clock.advance(1)
        assert KEY in scene.server.items
        await scene.session.close()
        assert KEY not in scene.server.items
        assert scene.left_s == float("-inf")
        await scene.clock.advance(5)
        assert scene.server.items == {}


async def test_opening_without_a_store_says_so() -> None:
    scene = Scene()
    scene.store.reachable = False
    with pytest.raises(Unavailable):
        await scene.session.open()


@pytest.mark.parametrize(("ttl_ms", "renew_every_ms"), [(3000, 1001), (3000, 0), (0, 0)])
async def test_a_renewal_that_comes_too_rarely_is_refused(ttl_ms: int, renew_every_ms: int) -> None:
    scene = Scene()
    with pytest.raises(ValueError, match="third"):
        Session(scene.store, scene.clock, ttl_ms, renew_every_ms, scene.progress)


async def test_the_heart_beats_at_its_pace_with_the_lease() -> None:
    async with running() as scene:
        await scene.clock.advance(10)
        assert scene.heartbeat.seq == 41
        kv = scene.server.items[KEY]
        assert kv.lease == scene.session.lease_id
        assert json.loads(kv.value) == {"schema": 1, "seq": 41, "progress": scene._progress}
        assert scene.committed[-1] == kv.mod_revision
        assert scene.heartbeat.committed_since(scene.committed[-4]) == 3
        assert scene.heartbeat.committed_since(kv.mod_revision) == 0


async def test_a_beat_that_is_not_confirmed_does_not_count() -> None:
    async with running() as scene:
        await scene.clock.advance(1)
        before = scene.committed[-1]
        for fate in ("applied", "not applied"):
            scene.store.lose_answer = fate
            await scene.clock.advance(0.25)
        scene.store.reachable = False
        await scene.clock.advance(2)
        assert scene.heartbeat.committed_since(before) == 0
        assert scene.heartbeat.failures == 10
        scene.store.reachable = True
        await scene.clock.advance(0.25)
        assert scene.heartbeat.committed_since(before) == 1


async def test_a_slow_store_gets_no_burst_of_beats() -> None:
    async with running() as scene:
        put = scene.store.put
        under_way = 0

        async def slow(key: str, value: bytes, lease: int = 0) -> int:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            await scene.clock.sleep(0.6)
            revision = await put(key, value, lease)
            under_way -= 1
            return revision

        await scene.clock.advance(1)
        sent = scene.heartbeat.seq
        scene.store.put = slow  # type: ignore[method-assign]
        await scene.clock.advance(6)
        assert scene.heartbeat.seq - sent in (10, 11)
        scene.store.put = put  # type: ignore[method-assign]
        sent = scene.heartbeat.seq
        await scene.clock.advance(1.6)
        assert scene.heartbeat.seq - sent <= 1 + 1.6 / 0.25  # the beats that fell out are not made up for


async def test_a_beat_notices_the_loss_of_the_lease() -> None:
    async with running() as scene:
        await scene.clock.advance(1)
        scene.server.end_lease(scene.session.lease_id)
        await scene.clock.advance(0.25)
        assert scene.session.lost.is_set()
        sent = scene.heartbeat.seq
        await scene.clock.advance(2)
        assert scene.heartbeat.seq == sent
