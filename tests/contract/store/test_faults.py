"""What the client does when members of a real etcd are killed, frozen, wiped, or refuse."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager

import pytest

from orchestrator.clock import BootClock
from orchestrator.store.etcd import EtcdStore
from orchestrator.store.etcd_keepalive import EtcdKeepalive
from orchestrator.store.etcd_login import Login
from orchestrator.store.etcd_members import Members
from orchestrator.store.port import Change, CreatedAt, Indeterminate, Put, Refused, StoreChanged, Unavailable
from tests.contract.store.cluster import EtcdCluster, free_ports, running

LIMIT_S = 30.0


@asynccontextmanager
async def client(endpoints: list[str], user: tuple[str, str] | None = None) -> AsyncIterator[EtcdStore]:
    """A client that is closed at the end."""
    username, password = user or (None, None)
    store = EtcdStore(endpoints, BootClock(), username=username, password=password)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def lone() -> Iterator[EtcdCluster]:
    """A member of its own for a test that breaks it."""
    with running(1) as cluster:
        yield cluster


def breakers(cluster: EtcdCluster) -> dict[str, Callable[[int], None]]:
    return {"killed": cluster.kill, "frozen": cluster.freeze}


def from_member(cluster: EtcdCluster, index: int) -> list[str]:
    """All endpoints, that member first, so that a new client uses it."""
    return [*cluster.endpoints[index:], *cluster.endpoints[:index]]


async def eventually_put(store: EtcdStore, key: str, value: bytes) -> None:
    """Write until the store says yes; a value written twice is the same value."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await store.put(key, value)
                return
            except (Unavailable, Indeterminate):
                continue


async def test_without_any_member_a_write_is_known_not_to_have_happened(prefix: str) -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with client([endpoint]) as store:
        with pytest.raises(Unavailable, match="is etcd up"):
            await store.put(prefix + "a", b"")
        with pytest.raises(Unavailable):
            await store.keepalive(1)


async def test_a_member_that_accepts_and_says_nothing_was_sent_nothing(one_member: EtcdCluster, prefix: str) -> None:
    """Its connection never gets ready, so that a write is known not to have been sent and goes elsewhere."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with client([endpoint]) as store:
            with pytest.raises(Unavailable):
                await store.put(prefix + "a", b"")
        async with client([endpoint, *one_member.endpoints]) as store:
            await store.put(prefix + "a", b"")


async def test_a_dead_endpoint_is_passed_over(one_member: EtcdCluster, prefix: str) -> None:
    dead = [f"http://127.0.0.1:{port}" for port in free_ports(2)]
    async with client([*dead, *one_member.endpoints]) as store:
        assert (await store.txn([CreatedAt(prefix + "a", 0)], [Put(prefix + "a", b"x")])).succeeded
        kv = await store.get(prefix + "a")
        assert kv is not None
        lease_id = (await store.grant(10)).lease_id
        assert await store.keepalive(lease_id) == 10


async def test_a_write_to_a_frozen_member_is_indeterminate(breakable: EtcdCluster, prefix: str) -> None:
    follower = next(index for index in range(3) if index != breakable.leader())
    async with client(from_member(breakable, follower)) as store:
        await store.put(prefix + "warm", b"")
        breakable.freeze(follower)
        with pytest.raises(Indeterminate, match="read the key"):
            await store.put(prefix + "a", b"x")
        # The next call goes to another member, at once.
        await store.put(prefix + "b", b"y")
        assert (await store.status()).endpoint != breakable.endpoints[follower].split("://")[1]


async def test_a_read_from_a_frozen_member_is_repeated_elsewhere(breakable: EtcdCluster, prefix: str) -> None:
    follower = next(index for index in range(3) if index != breakable.leader())
    async with client(from_member(breakable, follower)) as store:
        await store.put(prefix + "a", b"x")
        breakable.freeze(follower)
        kv = await store.get(prefix + "a")
        assert kv is not None
        assert kv.value == b"x"


async def test_a_lone_frozen_member(lone: EtcdCluster, prefix: str) -> None:
    async with client(lone.endpoints) as store:
        lease_id = (await store.grant(60)).lease_id
        await store.put(prefix + "a", b"")
        await store.keepalive(lease_id)
        lone.freeze(0)
        with pytest.raises(Indeterminate):
            await store.put(prefix + "a", b"x")
        with pytest.raises(Unavailable):
            await store.get(prefix + "a")
        with pytest.raises(Unavailable):
            await store.keepalive(lease_id)
        lone.thaw(0)
        assert await store.keepalive(lease_id) == 60
        kv = await store.get(prefix + "a")
        assert kv is not None


async def test_without_quorum_nothing_is_answered_from_old_knowledge(breakable: EtcdCluster, prefix: str) -> None:
    async with client(breakable.endpoints) as store:
        await store.put(prefix + "a", b"x")
        for index in (0, 1):
            breakable.kill(index)
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(Unavailable):
                while True:  # the member left may still be in touch with a dead leader for an instant
                    await store.get(prefix + "a")
        breakable.heal()
        kv = await store.get(prefix + "a")
        assert kv is not None


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_a_watch_outlives_its_member(breakable: EtcdCluster, prefix: str, how: str, leads: bool) -> None:
    leader = breakable.leader()
    victim = leader if leads else (leader + 1) % 3
    interrupted: list[Change] = []
    undisturbed: list[Change] = []

    async def collect(store: EtcdStore, start: int, into: list[Change]) -> None:
        async with aclosing(store.watch(prefix, start)) as stream:
            async for changes in stream:
                into.extend(changes)
                if any(change.key == prefix + "end" for change in changes):
                    return

    others = from_member(breakable, (victim + 1) % 3)[:2]
    async with client(from_member(breakable, victim)) as watching, client(others) as writing:
        start = await watching.put(prefix + "start", b"")
        assert (await watching.status()).endpoint == breakable.endpoints[victim].split("://")[1]
        task = asyncio.create_task(collect(watching, start + 1, interrupted))
        for number in range(40):
            if number == 20:
                breakers(breakable)[how](victim)
            await eventually_put(writing, f"{prefix}{number:03}", b"")
        await eventually_put(writing, prefix + "end", b"")
        async with asyncio.timeout(LIMIT_S):
            await task
            # The same history once more, read undisturbed: nothing may be missing, nothing twice.
            await collect(writing, start + 1, undisturbed)
    assert interrupted == undisturbed
    assert len({change.key for change in undisturbed}) == 41


async def test_renewals_at_once_share_one_stream(one_member: EtcdCluster) -> None:
    """Two writes at once would break it, each renewal would then open another."""
    members = Members(one_member.endpoints, BootClock(), Login(), attempt_timeout_s=5, call_timeout_s=20)
    keepalive = EtcdKeepalive(members)
    async with client(one_member.endpoints) as store:
        lease_id = (await store.grant(60)).lease_id
        assert await asyncio.gather(*(keepalive.renew(lease_id) for _ in range(200))) == [60] * 200
        assert keepalive.opened == 1
        await store.revoke(lease_id)
    await keepalive.close()
    await members.close()


async def test_a_frozen_member_is_noticed_by_the_watch_itself(breakable: EtcdCluster, prefix: str) -> None:
    """Long before the pings of the transport, which are 10 s apart, could tell."""
    follower = (breakable.leader() + 1) % 3
    other = (follower + 1) % 3
    async with client(from_member(breakable, follower)) as watching, client([breakable.endpoints[other]]) as writing:
        start = await watching.put(prefix + "start", b"")
        async with aclosing(watching.watch(prefix, start)) as stream:
            async with asyncio.timeout(LIMIT_S):
                assert len(await anext(stream)) == 1
            breakable.freeze(follower)
            await eventually_put(writing, prefix + "a", b"")
            async with asyncio.timeout(6):
                while not await anext(stream):
                    pass


async def test_renewals_go_on_at_another_member(breakable: EtcdCluster) -> None:
    follower = next(index for index in range(3) if index != breakable.leader())
    async with client(from_member(breakable, follower)) as store:
        lease_id = (await store.grant(20)).lease_id
        await store.keepalive(lease_id)
        breakable.freeze(follower)
        assert await store.keepalive(lease_id) == 20
        await store.revoke(lease_id)


async def test_a_watch_refuses_a_store_that_lost_everything(lone: EtcdCluster, prefix: str) -> None:
    async with client(lone.endpoints) as store:
        for _ in range(5):
            last = await store.put(prefix + "a", b"")
        async with aclosing(store.watch(prefix, last)) as stream:
            async with asyncio.timeout(LIMIT_S):
                assert len(await anext(stream)) == 1
                lone.kill(0)
                lone.wipe(0)
                lone.start(0)
                with pytest.raises(StoreChanged, match="store accept"):
                    while True:
                        await anext(stream)


async def test_permissions(lone: EtcdCluster, prefix: str) -> None:
    """An agent's user reaches its own keys only; a token that the server forgot is fetched again."""
    enable_authentication(lone, prefix)
    async with client(lone.endpoints, ("agent", "secret")) as store:
        await store.put(prefix + "a", b"x")
        with pytest.raises(Refused, match="permission denied"):
            await store.put("/other", b"x")
        with pytest.raises(Refused, match="permission denied"):
            await store.get("/other")
        async with aclosing(store.watch("/other", 0)) as stream, asyncio.timeout(LIMIT_S):
            with pytest.raises(Refused):
                await anext(stream)
        lone.kill(0)  # its tokens live in memory
        lone.start(0)
        lone.wait_ready(0)
        kv = await store.get(prefix + "a")
        assert kv is not None
        lease_id = (await store.grant(60)).lease_id
        assert await store.keepalive(lease_id) == 60
    async with client(lone.endpoints, ("agent", "wrong")) as store:
        with pytest.raises(Refused, match="check user and password"):
            await store.get(prefix + "a")
    async with client(lone.endpoints) as store:
        with pytest.raises(Refused):
            await store.get(prefix + "a")


def enable_authentication(cluster: EtcdCluster, prefix: str) -> None:
    """A root user, and a user 'agent' that may use the prefix."""
    for arguments in (
        ("user", "add", "root:root"),
        ("user", "grant-role", "root", "root"),
        ("role", "add", "agent"),
        ("role", "grant-permission", "agent", "--prefix=true", "readwrite", prefix),
        ("user", "add", "agent:secret"),
        ("user", "grant-role", "agent", "agent"),
        ("auth", "enable"),
    ):
        cluster.etcdctl(*arguments)


@pytest.mark.parametrize("endpoint", ["ftp://h:1", "http://", "http://h:1/path", "https://h:1"])
async def test_an_endpoint_that_makes_no_sense_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="etcd endpoint"):
        EtcdStore([endpoint], BootClock())


async def test_an_empty_list_of_endpoints_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        EtcdStore([], BootClock())
