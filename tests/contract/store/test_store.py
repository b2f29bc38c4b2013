"""What `Store` promises, asked of the fake and of real etcd alike."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from orchestrator.store.port import (
    MAX_TXN_OPS,
    Change,
    Compacted,
    CreatedAt,
    Delete,
    DeletePrefix,
    Guard,
    LeaseLost,
    ModifiedAt,
    Put,
)
from tests.contract.store.conftest import Bench

LIMIT_S = 20.0


async def take(stream: AsyncGenerator[tuple[Change, ...], None], count: int) -> list[tuple[Change, ...]]:
    """The next items that are not empty, until they hold that many changes."""
    items: list[tuple[Change, ...]] = []
    async with asyncio.timeout(LIMIT_S):
        while sum(len(item) for item in items) < count:
            if item := await anext(stream):
                items.append(item)
    return items


async def test_a_key_carries_its_revisions(bench: Bench) -> None:
    key = bench.prefix + "a"
    assert await bench.store.get(key) is None
    created = await bench.store.put(key, b"one")
    changed = await bench.store.put(key, b"two")
    kv = await bench.store.get(key)
    assert kv is not None
    assert (kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease) == (key, b"two", created, changed, 0)
    assert changed > created


async def test_a_key_created_again_has_a_new_create_revision(bench: Bench) -> None:
    key = bench.prefix + "a"
    first = await bench.store.put(key, b"")
    deleted = await bench.store.delete(key)
    second = await bench.store.put(key, b"")
    kv = await bench.store.get(key)
    assert kv is not None
    assert first < deleted < second == kv.create_revision


async def test_deleting_nothing_changes_nothing(bench: Bench) -> None:
    revision = await bench.store.put(bench.prefix + "a", b"")
    assert await bench.store.delete(bench.prefix + "absent") == revision


async def test_list_holds_the_prefix_and_no_neighbour(bench: Bench) -> None:
    for name in ("b/2", "b/1", "b", "b0", "a/9"):
        last = await bench.store.put(bench.prefix + name, name.encode())
    snapshot = await bench.store.list(bench.prefix + "b/")
    assert [kv.key for kv in snapshot.items] == [bench.prefix + "b/1", bench.prefix + "b/2"]
    assert snapshot.revision >= last
    assert snapshot.cluster_id == (await bench.store.status()).cluster_id != 0


async def test_a_transaction_is_one_revision(bench: Bench) -> None:
    p = bench.prefix
    old = await bench.store.put(p + "old", b"x")
    for name in ("gone/1", "gone/2"):
        await bench.store.put(p + name, b"")
    result = await bench.store.txn(
        [CreatedAt(p + "new", 0), ModifiedAt(p + "old", old), CreatedAt(p + "old", old), ModifiedAt(p + "new", 0)],
        [Put(p + "new", b"n"), Put(p + "old", b"y"), DeletePrefix(p + "gone/"), Delete(p + "absent")],
    )
    assert result.succeeded
    items = (await bench.store.list(p)).items
    assert [(kv.key, kv.value, kv.mod_revision) for kv in items] == [
        (p + "new", b"n", result.revision),
        (p + "old", b"y", result.revision),
    ]


@pytest.mark.parametrize("which", ["created 0", "modified 0", "wrong create", "old mod", "absent", "never"])
async def test_a_guard_that_fails_stops_everything(bench: Bench, which: str) -> None:
    p = bench.prefix
    created = await bench.store.put(p + "a", b"1")
    modified = await bench.store.put(p + "a", b"2")
    guards: dict[str, Guard] = {
        "created 0": CreatedAt(p + "a", 0),
        "modified 0": ModifiedAt(p + "a", 0),
        "wrong create": CreatedAt(p + "a", modified),
        "old mod": ModifiedAt(p + "a", created),
        "absent": CreatedAt(p + "b", created),
        "never": CreatedAt(p + "b", -1),
    }
    result = await bench.store.txn(
        [CreatedAt(p + "a", created), guards[which]], [Put(p + "a", b"3"), Put(p + "c", b"")]
    )
    assert not result.succeeded
    assert [(kv.key, kv.value) for kv in (await bench.store.list(p)).items] == [(p + "a", b"2")]


async def test_a_transaction_has_a_limit(bench: Bench) -> None:
    ops = [Put(f"{bench.prefix}{n:03}", b"") for n in range(MAX_TXN_OPS + 1)]
    with pytest.raises(ValueError, match="at most 128"):
        await bench.store.txn([], ops)
    assert (await bench.store.txn([], ops[:-1])).succeeded
    assert len((await bench.store.list(bench.prefix)).items) == MAX_TXN_OPS


async def test_a_transaction_writes_no_key_twice(bench: Bench) -> None:
    key = bench.prefix + "a"
    for twin in (Put(key, b"2"), Delete(key), DeletePrefix(bench.prefix)):
        with pytest.raises(ValueError, match="transaction writes"):
            await bench.store.txn([], [Put(key, b"1"), twin])


async def test_a_watch_brings_the_past_and_then_the_present(bench: Bench) -> None:
    p = bench.prefix
    first = await bench.store.put(p + "a", b"1")
    await bench.store.put("/elsewhere" + p, b"")
    second = await bench.store.delete(p + "a")
    async with aclosing(bench.store.watch(p, first)) as stream:
        past = [change for item in await take(stream, 2) for change in item]
        assert past == [Change(p + "a", b"1", first, first, 0), Change(p + "a", None, 0, second, 0)]
        third = await bench.client().put(p + "b", b"3")
        assert await take(stream, 1) == [(Change(p + "b", b"3", third, third, 0),)]


async def test_a_watch_from_now_brings_only_what_comes(bench: Bench) -> None:
    p = bench.prefix
    await bench.store.put(p + "before", b"")
    async with aclosing(bench.store.watch(p, 0)) as stream:
        # The first item, a sign of life, shows that the watch stands.
        async with asyncio.timeout(LIMIT_S):
            assert await anext(stream) == ()
        await bench.store.put(p + "after", b"")
        assert [change.key for item in await take(stream, 1) for change in item] == [p + "after"]


async def test_a_transaction_arrives_in_one_piece(bench: Bench) -> None:
    p = bench.prefix
    start = await bench.store.put(p + "start", b"")
    async with aclosing(bench.store.watch(p, start + 1)) as stream:
        await bench.store.txn([], [Put(f"{p}{n}", b"") for n in range(50)])
        items = await take(stream, 1)
    assert [len(item) for item in items] == [50]


async def test_a_quiet_watch_shows_signs_of_life(bench: Bench) -> None:
    async with aclosing(bench.store.watch(bench.prefix, 0)) as stream, asyncio.timeout(LIMIT_S):
        assert [await anext(stream), await anext(stream)] == [(), ()]


async def test_a_watch_into_compacted_history_says_so(bench: Bench) -> None:
    p = bench.prefix
    first = await bench.store.put(p + "a", b"1")
    last = await bench.store.put(p + "a", b"2")
    bench.compact(last)
    async with aclosing(bench.store.watch(p, first)) as stream:
        with pytest.raises(Compacted) as caught:
            await take(stream, 1)
    assert caught.value.revision == last
    async with aclosing(bench.store.watch(p, last)) as stream:
        assert [change.value for item in await take(stream, 1) for change in item] == [b"2"]


async def test_keys_die_with_their_lease(bench: Bench) -> None:
    p = bench.prefix
    grant = await bench.store.grant(60)
    assert grant.ttl_s >= 60
    revision = await bench.store.put(p + "a", b"", grant.lease_id)
    kv = await bench.store.get(p + "a")
    assert kv is not None
    assert kv.lease == grant.lease_id
    assert 0 < await bench.store.time_to_live(grant.lease_id) <= 60
    async with aclosing(bench.store.watch(p, revision + 1)) as stream:
        await bench.store.revoke(grant.lease_id)
        changes = [change for item in await take(stream, 1) for change in item]
    assert [(change.key, change.value) for change in changes] == [(p + "a", None)]
    await bench.store.revoke(grant.lease_id)


async def test_a_lost_lease_is_an_error_everywhere(bench: Bench) -> None:
    key = bench.prefix + "a"
    lease_id = (await bench.store.grant(60)).lease_id
    await bench.store.revoke(lease_id)
    with pytest.raises(LeaseLost):
        await bench.store.keepalive(lease_id)
    with pytest.raises(LeaseLost):
        await bench.store.put(key, b"", lease_id)
    with pytest.raises(LeaseLost):
        await bench.store.txn([], [Put(key + "1", b""), Put(key, b"", lease_id)])
    with pytest.raises(LeaseLost):
        await bench.store.time_to_live(lease_id)
    assert (await bench.store.list(bench.prefix)).items == ()


async def test_a_lease_lives_while_it_is_renewed_and_not_longer(bench: Bench) -> None:
    key = bench.prefix + "a"
    grant = await bench.store.grant(1)
    revision = await bench.store.put(key, b"", grant.lease_id)
    renewals = 4 * grant.ttl_s
    for _ in range(renewals):  # well over the time to live in all
        await asyncio.sleep(0.4)
        assert await bench.store.keepalive(grant.lease_id) == grant.ttl_s
    assert await bench.store.get(key) is not None
    async with aclosing(bench.store.watch(key, revision + 1)) as stream:
        changes = [change for item in await take(stream, 1) for change in item]
    assert [change.value for change in changes] == [None]
    with pytest.raises(LeaseLost):
        await bench.store.keepalive(grant.lease_id)


async def test_many_leases_are_renewed_at_once(bench: Bench) -> None:
    grants = [await bench.store.grant(60) for _ in range(30)]
    answers = await asyncio.gather(*(bench.store.keepalive(grant.lease_id) for grant in grants for _ in range(2)))
    assert answers == [60] * 60
    for grant in grants:
        await bench.store.revoke(grant.lease_id)


async def test_thousands_of_keys_are_listed_as_of_one_revision(bench: Bench) -> None:
    """However many answers that takes, and whatever is written and compacted meanwhile."""
    keys = [f"{bench.prefix}{n:05d}" for n in range(2500)]
    for start in range(0, len(keys), MAX_TXN_OPS):
        await bench.store.txn([], [Put(key, b"x" * 50) for key in keys[start : start + MAX_TXN_OPS]])

    async def write() -> None:
        number = 0
        while True:
            number += 1
            await bench.store.txn([], [Put(keys[0], b"%d" % number), Put(keys[-1], b"%d" % number)])

    await bench.store.txn([], [Put(keys[0], b"0"), Put(keys[-1], b"0")])
    writer = asyncio.create_task(write())
    try:
        for _ in range(5):
            snapshot = await bench.store.list(bench.prefix)
            assert [kv.key for kv in snapshot.items] == keys
            first, last = snapshot.items[0], snapshot.items[-1]
            assert first.mod_revision == last.mod_revision <= snapshot.revision
            assert first.value == last.value
    finally:
        writer.cancel()
