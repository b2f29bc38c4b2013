"""The election: quick when the leader is dead, and never when it is not."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from orchestrator.store.election import BadLeaderRecord
from orchestrator.store.port import Guard, Op, Put, TxnResult, Unavailable
from tests.contract.store.clocks import VirtualClock
from tests.contract.store.fake import FakeEtcd, FakeStore
from tests.contract.store.replica import KEYS, Replica


class Scene:
    """Replicas a, b, c on one fake store, in virtual time; a leads."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = FakeEtcd(self.clock)
        self.replicas: dict[str, Replica] = {}
        self.clients: dict[str, FakeStore] = {}

    async def add(self, name: str, instance: str | None = None) -> Replica:
        """Start one more."""
        self.clients[name] = self.server.client()
        replica = Replica(self.clients[name], self.clock, name, instance=instance)
        self.replicas[name] = replica
        await replica.start()
        await self.clock.settle()
        return replica

    def leaders(self) -> list[str]:
        """Who believes to lead."""
        return [name for name, replica in self.replicas.items() if replica.leads and replica.running]

    async def until_other_leads(self, than: str, limit_s: float) -> float:
        """Seconds until somebody else leads."""
        return await self.clock.advance_until(lambda: any(name != than for name in self.leaders()), limit_s)

    async def may_write(self, name: str) -> bool:
        """Whether the store takes a guarded write from this replica."""
        replica = self.replicas[name]
        return (await replica.store.txn([replica.election.guard()], [Put("/written", name.encode())])).succeeded


@asynccontextmanager
async def scene_of(*names: str) -> AsyncIterator[Scene]:
    scene = Scene()
    try:
        for name in names:
            await scene.add(name)
        await scene.clock.advance(2)
        yield scene
    finally:
        for replica in scene.replicas.values():
            await replica.kill()
        await scene.server.close()


async def test_one_leads_and_the_others_know_it() -> None:
    async with scene_of("a", "b", "c") as scene:
        assert scene.leaders() == ["a"]
        for replica in scene.replicas.values():
            leader = replica.election.leader
            assert leader is not None
            assert (leader.name, leader.instance, leader.schema) == ("a", "instance-a", 1)
        kv = scene.server.items[KEYS.leader]
        assert scene.replicas["a"].election.leader_create_revision == kv.create_revision
        assert scene.replicas["a"].seen == [kv.create_revision]
        assert scene.replicas["b"].seen == []
        assert [await scene.may_write(name) for name in "abc"] == [True, False, False]


async def test_a_living_leader_stays() -> None:
    async with scene_of("a", "b", "c") as scene:
        create_revision = scene.server.items[KEYS.leader].create_revision
        await scene.clock.advance(120)
        assert scene.server.items[KEYS.leader].create_revision == create_revision
        assert [replica.election.takeovers for replica in scene.replicas.values()] == [0, 0, 0]


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.24])
async def test_a_killed_leader_is_replaced_within_a_second(after_s: float) -> None:
    async with scene_of("a", "b", "c") as scene:
        await scene.clock.advance(after_s)
        dead_lease = scene.replicas["a"].session.lease_id
        await scene.replicas["a"].kill()
        assert await scene.until_other_leads("a", limit_s=5) < 1.0
        await scene.clock.settle()
        assert len(scene.leaders()) == 1
        assert dead_lease not in scene.server.leases
        assert KEYS.heartbeat("orchestrator", "a") not in scene.server.items
        assert sum(replica.election.takeovers for replica in scene.replicas.values()) == 1
        assert await scene.may_write(scene.leaders()[0])


async def test_one_late_beat_kills_no_leader() -> None:
    async with scene_of("a", "b", "c") as scene:
        create_revision = scene.server.items[KEYS.leader].create_revision
        put = scene.clients["a"].put
        for _ in range(20):

            async def late(key: str, value: bytes, lease: int = 0) -> int:
                await scene.clock.sleep(0.25)
                return await put(key, value, lease)

            scene.clients["a"].put = late  # type: ignore[method-assign]
            await scene.clock.advance(0.3)
            scene.clients["a"].put = put  # type: ignore[method-assign]
            await scene.clock.advance(1)
        assert scene.server.items[KEYS.leader].create_revision == create_revision


async def test_a_follower_with_a_deaf_watch_overthrows_nobody() -> None:
    """It sees no heartbeat of the leader and its own get through: the guard in the transaction knows better."""
    async with scene_of("a", "b") as scene:
        create_revision = scene.server.items[KEYS.leader].create_revision
        scene.clients["b"].deaf = True
        attempts = 0
        txn = scene.clients["b"].txn

        async def counted(guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
            nonlocal attempts
            attempts += 1
            return await txn(guards, ops)

        scene.clients["b"].txn = counted  # type: ignore[method-assign]
        await scene.clock.advance(8)
        assert attempts > 0
        assert scene.server.items[KEYS.leader].create_revision == create_revision
        assert scene.replicas["b"].election.takeovers == 0
        assert scene.leaders() == ["a"]


async def test_a_follower_that_cannot_write_accuses_nobody() -> None:
    async with scene_of("a", "b") as scene:

        async def fails(key: str, value: bytes, lease: int = 0) -> int:
            raise Unavailable(f"no: {key} {value!r} {lease}")

        scene.clients["b"].put = fails  # type: ignore[method-assign]
        await scene.clock.advance(0.25)
        await scene.replicas["a"].kill()
        await scene.clock.advance(1.5)
        assert KEYS.leader in scene.server.items
        assert scene.leaders() == []
        # Only the end of the dead one's lease opens the way.
        await scene.until_other_leads("a", limit_s=3)
        assert scene.replicas["b"].election.takeovers == 0


async def test_two_beats_are_not_enough() -> None:
    async with scene_of("a", "b") as scene:
        await scene.replicas["a"].kill()
        last = scene.server.items[KEYS.heartbeat("orchestrator", "a")].mod_revision
        follower = scene.replicas["b"]
        await scene.clock.advance_until(lambda: follower.heartbeat.committed_since(last) == 2, 2, step_s=0.001)
        await scene.clock.settle()
        assert KEYS.leader in scene.server.items
        assert follower.election.takeovers == 0
        await scene.clock.advance_until(lambda: follower.heartbeat.committed_since(last) == 3, 2, step_s=0.001)
        await scene.clock.settle()
        assert scene.leaders() == ["b"]


async def test_a_leader_that_resigns_is_followed_at_once() -> None:
    async with scene_of("a", "b", "c") as scene:
        await scene.replicas["a"].election.resign()
        assert not scene.replicas["a"].leads
        assert await scene.until_other_leads("a", limit_s=1) <= 0.02
        await scene.clock.advance(5)
        assert len(scene.leaders()) == 1
        for name in ("b", "c"):
            await scene.replicas[name].kill()
        await scene.clock.advance_until(lambda: KEYS.leader not in scene.server.items, 5)
        gone = scene.server.revision
        await scene.clock.advance(10)
        assert scene.leaders() == []  # for good, and without a try
        assert KEYS.leader not in {c.key for revision, changes in scene.server.log if revision > gone for c in changes}
        assert scene.replicas["a"].seen[-1] == 0


async def test_a_resignation_without_an_answer_leaves_no_leader_behind() -> None:
    async with scene_of("a", "b") as scene:
        scene.clients["a"].lose_answer = "not applied"
        await scene.replicas["a"].election.resign()
        assert scene.leaders() == []
        await scene.replicas["a"].session.close()
        assert await scene.until_other_leads("a", limit_s=1) <= 0.02


async def test_a_resignation_without_an_answer_is_repeated() -> None:
    async with scene_of("a", "b") as scene:
        scene.clients["a"].lose_answer = "not applied"
        await scene.replicas["a"].election.resign()
        assert await scene.until_other_leads("a", limit_s=1) < 0.5
        assert scene.replicas["b"].election.takeovers == 0


async def test_a_resignation_during_a_claim_takes_the_claim_back() -> None:
    async with scene_of() as scene:
        replica = Replica(scene.server.client(), scene.clock, "a")
        txn = replica.store.txn

        async def slow(guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
            result = await txn(guards, ops)
            await scene.clock.sleep(0.1)
            return result

        replica.store.txn = slow  # type: ignore[method-assign]
        await replica.session.open()
        election = asyncio.create_task(replica.campaign())
        await scene.clock.advance(0.05)
        assert KEYS.leader in scene.server.items
        await replica.election.resign()
        await scene.clock.advance(1)
        assert KEYS.leader not in scene.server.items
        assert replica.seen == []
        election.cancel()
        await asyncio.gather(election, return_exceptions=True)


async def test_a_cut_off_leader_stops_and_comes_back_as_a_follower() -> None:
    async with scene_of("a", "b") as scene:
        scene.clients["a"].reachable = False
        await scene.until_other_leads("a", limit_s=1)
        # What it would still write is refused, and it stops believing when its lease's time is over.
        scene.clients["a"].reachable = True
        assert not await scene.may_write("a")
        scene.clients["a"].reachable = False
        await scene.clock.advance(3)
        assert scene.leaders() == ["b"]
        assert scene.replicas["a"].election.leader_create_revision == 0
        assert scene.replicas["a"].seen[-1] == 0
        scene.clients["a"].reachable = True
        await scene.clock.advance(1)
        assert scene.replicas["a"].session.lost.is_set()
        await scene.replicas["a"].session.open()
        await scene.clock.advance(5)
        assert scene.leaders() == ["b"]
        await scene.replicas["b"].kill()
        assert await scene.until_other_leads("b", limit_s=5) < 1.0


async def test_an_outage_for_all_leaves_the_leader_in_place() -> None:
    async with scene_of("a", "b") as scene:
        create_revision = scene.server.items[KEYS.leader].create_revision
        for lease_id, (ttl_s, _) in list(scene.server.leases.items()):
            scene.server.leases[lease_id] = (ttl_s, scene.clock.now() + 60)
        for store in scene.clients.values():
            store.reachable = False
        await scene.clock.advance(20)
        assert scene.leaders() == []
        for store in scene.clients.values():
            store.reachable = True
        await scene.clock.advance(1)
        assert scene.leaders() == ["a"]
        assert scene.replicas["a"].election.leader_create_revision == create_revision
        assert scene.replicas["a"].seen == [create_revision, 0, create_revision]


@pytest.mark.parametrize("fate", ["applied", "not applied"])
async def test_a_claim_without_an_answer_is_cleared_up(fate: str) -> None:
    async with scene_of() as scene:
        store = scene.server.client()
        replica = Replica(store, scene.clock, "a")
        scene.replicas["a"], scene.clients["a"] = replica, store
        await replica.session.open()
        store.lose_answer = fate  # type: ignore[assignment]
        election = asyncio.create_task(replica.campaign())
        await scene.clock.advance(1)
        assert replica.leads
        kv = scene.server.items[KEYS.leader]
        assert replica.election.leader_create_revision == kv.create_revision
        assert store.lose_answer == "no"
        election.cancel()
        await asyncio.gather(election, return_exceptions=True)


async def test_a_restarted_leader_replaces_its_former_life_at_once() -> None:
    async with scene_of("a", "b") as scene:
        old = scene.server.items[KEYS.leader]
        await scene.replicas["a"].kill()
        await scene.add("a")
        assert await scene.clock.advance_until(lambda: bool(scene.leaders()), limit_s=5) < 0.25
        assert scene.server.items[KEYS.leader].create_revision > old.create_revision


async def test_a_lost_lease_ends_leadership_and_a_new_one_starts_it_again() -> None:
    async with scene_of("a") as scene:
        replica = scene.replicas["a"]
        scene.server.end_lease(replica.session.lease_id)
        await scene.clock.advance(0.5)
        assert scene.leaders() == []
        assert replica.seen[-1] == 0
        await replica.session.open()
        await scene.clock.advance(0.5)
        assert scene.leaders() == ["a"]
        assert replica.seen[-1] == scene.server.items[KEYS.leader].create_revision


async def test_a_leader_that_never_beat_is_replaced() -> None:
    async with scene_of() as scene:
        stranger = Replica(scene.server.client(), scene.clock, "stranger")
        await stranger.session.open()
        alone = asyncio.create_task(stranger.campaign())
        await scene.clock.settle()
        alone.cancel()
        assert KEYS.leader in scene.server.items
        await scene.add("b")
        assert await scene.until_other_leads("stranger", limit_s=5) < 1.0


async def test_a_leader_key_that_nobody_understands_stops_the_election() -> None:
    scene = Scene()
    await scene.server.client().put(KEYS.leader, b"{")
    replica = Replica(scene.server.client(), scene.clock, "a")
    await replica.session.open()
    task = asyncio.create_task(replica.campaign())
    await scene.clock.advance(1)
    with pytest.raises(BadLeaderRecord, match="etcdctl"):
        await asyncio.wait_for(task, 1)
    await scene.server.close()
