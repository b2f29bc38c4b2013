"""The election on real etcd: the same rules, in real time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from orchestrator.clock import BootClock
from orchestrator.store.etcd import EtcdStore
from orchestrator.store.keys import Keys
from orchestrator.store.port import Put
from tests.contract.store.cluster import EtcdCluster
from tests.contract.store.replica import Replica


async def until(condition: Callable[[], bool], limit_s: float) -> float:
    """Seconds until the condition holds; TimeoutError after the limit."""
    clock = BootClock()
    start = clock.now()
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)
    return clock.now() - start


@asynccontextmanager
async def real_replicas(cluster: EtcdCluster, prefix: str, ttl_ms: int) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        replicas = []
        for name in ("a", "b", "c"):
            store = EtcdStore(cluster.endpoints, BootClock())
            stack.push_async_callback(store.close)
            replica = Replica(store, BootClock(), name, Keys(prefix), ttl_ms)
            stack.push_async_callback(replica.kill)
            await replica.start()
            replicas.append(replica)
        await until(lambda: sum(replica.leads for replica in replicas) == 1, 20)
        await asyncio.sleep(1)
        yield replicas


def part(replicas: list[Replica]) -> tuple[Replica, list[Replica]]:
    """Leader and followers."""
    (leader,) = (replica for replica in replicas if replica.leads)
    return leader, [replica for replica in replicas if replica is not leader]


async def test_takeover_on_real_etcd_does_not_wait_for_the_lease(one_member: EtcdCluster, prefix: str) -> None:
    async with real_replicas(one_member, prefix, ttl_ms=30_000) as replicas:
        leader, followers = part(replicas)
        lease_id = leader.session.lease_id
        await leader.kill()
        took_s = await until(lambda: any(follower.leads for follower in followers), 25)
        print(f"takeover after a kill: {took_s * 1000:.0f} ms, lease {leader.session.granted_ttl_s} s")
        await until(lambda: sum(follower.election.takeovers for follower in followers) == 1, 5)
        new, _ = part(followers)
        kv = await new.store.get(Keys(prefix).leader)
        assert kv is not None
        assert kv.lease == new.session.lease_id != lease_id
        assert kv.create_revision == new.election.leader_create_revision


async def test_resignation_on_real_etcd(one_member: EtcdCluster, prefix: str) -> None:
    async with real_replicas(one_member, prefix, ttl_ms=30_000) as replicas:
        leader, followers = part(replicas)
        await leader.election.resign()
        took_s = await until(lambda: any(follower.leads for follower in followers), 25)
        print(f"handover after a resignation: {took_s * 1000:.0f} ms")
        assert sum(follower.election.takeovers for follower in followers) == 0


async def test_the_leader_survives_the_loss_of_an_etcd_member(breakable: EtcdCluster, prefix: str) -> None:
    async with real_replicas(breakable, prefix, ttl_ms=10_000) as replicas:
        breakable.kill(breakable.leader())
        await asyncio.sleep(3)
        await until(lambda: sum(replica.leads for replica in replicas) == 1, 20)
        leader, _ = part(replicas)
        print(f"takeovers when etcd lost its leader: {sum(replica.election.takeovers for replica in replicas)}")
        guarded = await leader.store.txn([leader.election.guard()], [Put(prefix + "written", b"")])
        assert guarded.succeeded
        for replica in replicas:
            replica.check()
