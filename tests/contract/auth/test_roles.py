"""What each role may do in a real etcd, and what not; and what etcd's roles do not cover."""

import asyncio
from contextlib import aclosing

import pytest

from orchestrator.store.etcd import EtcdStore
from orchestrator.store.keys import Keys
from orchestrator.store.port import CreatedAt, Delete, LeaseLost, Put, Refused
from tests.contract.auth.conftest import Client

KEYS = Keys()
EDGE, NODE = "bgplb-edge-edge-1", "bgplb-node-gw-a"
ORCHESTRATOR, OTHER_ORCHESTRATOR, OPERATOR = (
    "bgplb-orchestrator-orch-1",
    "bgplb-orchestrator-orch-2",
    "bgplb-operator-alice",
)

OTHERS = (
    KEYS.agent("edge", "edge-2"),
    KEYS.agent("edge", "edge-10"),  # begins like the name itself
    KEYS.agent("node", "edge-1"),
    KEYS.heartbeat("edge", "edge-2"),
    KEYS.heartbeat("orchestrator", "orch-1"),
    KEYS.observed("edge", "edge-2", "pool", "web"),
    KEYS.observed_base("edge", "edge-10"),
)
LEADERS = (
    KEYS.meta,
    KEYS.leader,
    KEYS.epoch_counter,
    KEYS.spec("EIPPool", "web"),
    KEYS.machine("pool", "web"),
    KEYS.history("pool", "web", 1),
    KEYS.desired_base("edge", "edge-1"),
    KEYS.desired("edge", "edge-1", "pool", "web"),
    KEYS.request("r1"),
)


async def refused(store: EtcdStore, key: str) -> bool:
    """Whether etcd refuses to write the key, to delete it, and to do either in a transaction."""
    answers = []
    for attempt in (
        store.put(key, b"{}"),
        store.delete(key),
        store.txn([], [Put(key, b"{}")]),
        store.txn([], [Delete(key)]),
    ):
        try:
            await attempt
        except Refused as error:
            assert "permission denied" in str(error)
            answers.append(True)
        else:
            answers.append(False)
    assert len(set(answers)) == 1, answers
    return answers[0]


@pytest.mark.parametrize(("user", "role", "name"), [(EDGE, "edge", "edge-1"), (NODE, "node", "gw-a")])
async def test_an_agent_does_its_work(client: Client, user: str, role: str, name: str) -> None:
    store, leader = client(user), client(ORCHESTRATOR)
    lease = (await store.grant(3)).lease_id
    own, beat = KEYS.agent(role, name), KEYS.heartbeat(role, name)
    assert (await store.txn([CreatedAt(own, 0)], [Put(own, b"{}", lease)])).succeeded
    assert (await store.get(own)) is not None
    await store.put(beat, b"{}", lease)
    for key in (KEYS.observed_base(role, name), KEYS.observed(role, name, "pool", "web")):
        await store.put(key, b"{}", lease)
    await store.delete(KEYS.observed(role, name, "pool", "web"))
    assert await store.keepalive(lease) > 0

    orders = KEYS.desired_prefix(role, name)
    snapshot = await store.list(orders)
    async with aclosing(store.watch(orders, snapshot.revision + 1)) as stream:
        await leader.put(f"{orders}base", b"{}")
        async with asyncio.timeout(10):
            while not (changes := await anext(stream)):
                pass  # a sign of life
    assert [change.key for change in changes] == [f"{orders}base"]
    await store.revoke(lease)
    assert await store.get(own) is None
    await leader.delete(f"{orders}base")


@pytest.mark.parametrize("key", [*OTHERS, *LEADERS])
async def test_an_agent_writes_nothing_that_is_not_its_own(client: Client, key: str) -> None:
    assert await refused(client(EDGE), key)


@pytest.mark.parametrize(
    "prefix", [KEYS.prefix, KEYS.machines_prefix, KEYS.agents_prefix, KEYS.desired_prefix("edge", "edge-2")]
)
async def test_an_agent_reads_no_orders_but_its_own(client: Client, prefix: str) -> None:
    store = client(EDGE)
    with pytest.raises(Refused, match="permission denied"):
        await store.list(prefix)
    with pytest.raises(Refused, match="permission denied"):
        async with asyncio.timeout(10), aclosing(store.watch(prefix, 0)) as stream:
            await anext(stream)


async def test_an_agent_learns_nothing_by_guards(client: Client) -> None:
    """A guard is a read: whether another's key exists can't be found out by a transaction that does nothing."""
    with pytest.raises(Refused, match="permission denied"):
        await client(EDGE).txn([CreatedAt(KEYS.leader, 0)], [])


async def test_a_lease_with_keys_is_ended_only_by_who_may_write_them(client: Client) -> None:
    edge, node = client(EDGE), client(NODE)
    lease = (await node.grant(10)).lease_id
    await node.put(KEYS.heartbeat("node", "gw-a"), b"{}", lease)
    with pytest.raises(Refused, match="permission denied"):
        await edge.revoke(lease)
    with pytest.raises(Refused, match="permission denied"):
        await client(ORCHESTRATOR).revoke(lease)
    assert (await node.get(KEYS.agent("node", "gw-a"))) is None
    assert await node.time_to_live(lease) > 0
    await node.revoke(lease)


async def test_what_roles_do_not_cover(client: Client) -> None:
    """Leases have no owner. etcd 3.4 lets everybody renew any lease whose number he knows, and hang a key of his own
    on it by a transaction; newer ones look at the lease's keys. A lease without keys anybody may end, in all of them.
    """
    edge, node = client(EDGE), client(NODE)
    lease, own = (await node.grant(10)).lease_id, KEYS.heartbeat("edge", "edge-1")
    await node.put(KEYS.heartbeat("node", "gw-a"), b"{}", lease)
    with pytest.raises(Refused, match="permission denied"):
        await edge.put(own, b"{}", lease)
    if (await edge.status()).version.startswith("3.4."):
        assert await edge.keepalive(lease) > 0
        assert (await edge.txn([], [Put(own, b"{}", lease)])).succeeded
        with pytest.raises(Refused, match="permission denied"):
            await node.revoke(lease)  # a stranger's key hangs on it now: it has to expire
        await edge.delete(own)
    else:
        with pytest.raises(Refused, match="permission denied"):
            await edge.keepalive(lease)
        with pytest.raises(Refused, match="permission denied"):
            await edge.txn([], [Put(own, b"{}", lease)])
        assert await node.keepalive(lease) > 0
    await node.revoke(lease)
    bare = (await node.grant(10)).lease_id
    await edge.revoke(bare)
    with pytest.raises(LeaseLost):
        await node.keepalive(bare)


async def test_an_orchestrator_writes_what_leaders_write_and_no_agents_word(client: Client) -> None:
    store = client(ORCHESTRATOR)
    for key in LEADERS:
        assert not await refused(store, key), key
    for key in (KEYS.agent("orchestrator", "orch-1"), KEYS.heartbeat("orchestrator", "orch-1")):
        assert not await refused(store, key), key
    for key in (KEYS.agent("edge", "edge-1"), KEYS.heartbeat("node", "gw-a"), KEYS.observed_base("edge", "edge-1")):
        assert await refused(store, key), key
    assert await refused(store, "/elsewhere/key")
    await store.list(KEYS.prefix)


async def test_a_new_leader_ends_the_lease_of_the_dead_one(client: Client) -> None:
    dead, new = client(ORCHESTRATOR), client(OTHER_ORCHESTRATOR)
    lease = (await dead.grant(60)).lease_id
    hanging = (KEYS.leader, KEYS.agent("orchestrator", "orch-1"), KEYS.heartbeat("orchestrator", "orch-1"))
    for key in hanging:
        await dead.put(key, b"{}", lease)
    await new.revoke(lease)
    assert [await new.get(key) for key in hanging] == [None, None, None]


async def test_an_operator_reads_all_and_only_asks(client: Client) -> None:
    store = client(OPERATOR)
    await store.list(KEYS.prefix)
    assert not await refused(store, KEYS.request("r2"))
    for key in (*OTHERS, *LEADERS):
        if not key.startswith(KEYS.requests_prefix):
            assert await refused(store, key), key
