"""Reports of a thousand pools: few transactions, the urgent one by itself, nothing lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from fsm.records import EdgePoolReport, EdgeReport
from orchestrator.agents.reports import Reports
from orchestrator.store.lease import Session
from orchestrator.store.port import MAX_TXN_OPS, Delete, Guard, Indeterminate, ModifiedAt, Op, Snapshot, TxnResult
from orchestrator.store.records import decode
from tests.agents.fakes import KEYS
from tests.contract.store.clocks import VirtualClock
from tests.contract.store.fake import FakeEtcd, FakeStore

BASE = KEYS.observed_base("edge", "edge-1")
POOLS = [KEYS.observed("edge", "edge-1", "pool", f"pool-{n:04d}") for n in range(1000)]


class Counting(FakeStore):
    """Keeps what each transaction writes, and holds them up on demand."""

    def __init__(self, server: FakeEtcd) -> None:
        super().__init__(server)
        self.written: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.silent = 0
        """So many transactions are done and not answered."""

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        keys = [getattr(op, "key", "") for op in ops]
        self.written.append(keys)
        if BASE not in keys:
            await self.open.wait()
        result = await super().txn(guards, ops)
        if self.silent:
            self.silent -= 1
            raise Indeterminate("no answer")
        return result


@dataclass
class Desk:
    clock: VirtualClock
    server: FakeEtcd
    store: Counting
    session: Session
    reports: Reports
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def epochs(self) -> dict[str, int]:
        kept = {key: kv for key, kv in self.server.items.items() if key in set(POOLS)}
        return {key: decode(kv.value, EdgePoolReport, key).epoch for key, kv in kept.items()}

    def pools(self) -> list[list[str]]:
        return [keys for keys in self.store.written if BASE not in keys]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = VirtualClock()
    server = FakeEtcd(clock)
    store = Counting(server)
    session = Session(store, clock, 3000, 1000, lambda: 1)
    await session.open()
    made = Desk(clock, server, store, session, Reports(store, session, clock, urgent=BASE))
    made.tasks.append(asyncio.create_task(made.reports.run()))
    yield made
    for task in made.tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await server.close()


def tell(desk: Desk, epoch: int, keys: Sequence[str] = POOLS) -> None:
    for key in keys:
        desk.reports.set(key, EdgePoolReport(epoch, "gw-a"))


async def test_a_thousand_reports_are_few_transactions(desk: Desk) -> None:
    tell(desk, 1)
    await desk.clock.settle()
    assert desk.epochs() == dict.fromkeys(POOLS, 1)
    assert len(desk.store.written) == -(-len(POOLS) // MAX_TXN_OPS)
    assert all(desk.server.items[key].lease == desk.session.lease_id for key in POOLS)


async def test_what_the_store_has_is_not_written_again(desk: Desk) -> None:
    tell(desk, 1)
    await desk.clock.settle()
    before = len(desk.store.written)
    tell(desk, 1)
    tell(desk, 2, POOLS[7:9])
    await desk.clock.settle()
    assert desk.store.written[before:] == [POOLS[7:9]]


async def test_the_urgent_report_waits_for_nobody(desk: Desk) -> None:
    desk.store.open.clear()
    tell(desk, 1)
    await desk.clock.settle()
    desk.reports.set(BASE, EdgeReport("i-1"))
    await desk.clock.settle()
    assert BASE in desk.server.items
    assert len(desk.epochs()) == MAX_TXN_OPS - 1, "it takes along what there is room for"
    desk.store.open.set()
    await desk.clock.settle()
    assert len(desk.epochs()) == len(POOLS)


async def test_what_was_seen_and_what_was_done_about_it_come_at_once_after_an_outage(desk: Desk) -> None:
    """Else a leader would decide on the first what the second says was done already."""
    desk.reports.set(BASE, EdgeReport("i-1"))
    tell(desk, 7, POOLS[:3])
    await desk.clock.settle()
    assert sorted(desk.store.written[0]) == sorted([BASE, *POOLS[:3]])


async def test_what_changes_while_it_is_written_is_written_again(desk: Desk) -> None:
    desk.store.open.clear()
    tell(desk, 1, POOLS[:3])
    await desk.clock.settle()
    tell(desk, 2, POOLS[:1])
    tell(desk, 1, POOLS[3:5])
    desk.store.open.set()
    await desk.clock.settle()
    assert desk.epochs() == {POOLS[0]: 2, **dict.fromkeys(POOLS[1:5], 1)}
    assert desk.pools()[1] == [POOLS[0], *POOLS[3:5]]


async def overtake(desk: Desk) -> None:
    """While an older report is under way, the urgent one takes the newer one along."""
    desk.store.open.clear()
    tell(desk, 1, POOLS[:1])
    await desk.clock.settle()
    tell(desk, 2, POOLS[:1])
    desk.reports.set(BASE, EdgeReport("i-1"))
    await desk.clock.settle()


async def test_an_old_report_that_arrives_after_a_newer_one_is_mended(desk: Desk) -> None:
    await overtake(desk)
    assert desk.epochs() == {POOLS[0]: 2}
    desk.store.open.set()
    await desk.clock.settle()
    assert desk.epochs() == {POOLS[0]: 2}


async def test_an_answer_that_comes_after_a_newer_ones_is_not_taken_for_the_last_word(desk: Desk) -> None:
    """The store has the older report last, though its answer was the first to be read."""
    through, answer = desk.store.txn, asyncio.Event()

    async def slow(guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        result = await through(guards, ops)
        if BASE in [getattr(op, "key", "") for op in ops]:
            await answer.wait()
        return result

    desk.store.txn = slow  # type: ignore[method-assign]
    await overtake(desk)
    desk.store.open.set()
    await desk.clock.settle()
    answer.set()
    await desk.clock.settle()
    assert desk.epochs() == {POOLS[0]: 2}


async def test_a_write_without_an_answer_is_repeated(desk: Desk) -> None:
    desk.store.silent = 1
    tell(desk, 1, POOLS[:2])
    await desk.clock.advance(1.0)
    assert desk.pools() == [POOLS[:2], POOLS[:2]]
    assert desk.epochs() == dict.fromkeys(POOLS[:2], 1)


async def test_a_write_that_arrives_late_does_not_cover_a_newer_one() -> None:
    """The first write gets no answer and reaches the store only after the second: then its guard is gone."""
    clock = VirtualClock()
    server = FakeEtcd(clock)
    store, key, beat = server.client(), POOLS[0], KEYS.agent("edge", "edge-1")
    revision = await store.put(beat, b"registered")
    late: list[tuple[Sequence[Guard], Sequence[Op]]] = []
    through = store.txn

    async def swallow(guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        if not late:
            late.append((guards, ops))
            raise Indeterminate("no answer")
        return await through(guards, ops)

    store.txn = swallow  # type: ignore[method-assign]
    current = [revision]

    async def renew() -> None:
        current[0] = await store.put(beat, b"registered anew")

    session = Session(store, clock, 3000, 1000, lambda: 1)
    await session.open()
    reports = Reports(store, session, clock, guard=lambda: (ModifiedAt(beat, current[0]),), renew=renew)
    task = asyncio.create_task(reports.run())
    reports.set(key, EdgePoolReport(1, "gw-a"))
    await clock.settle()
    reports.set(key, EdgePoolReport(2, "gw-b"))
    await clock.advance(1.0)
    assert decode(server.items[key].value, EdgePoolReport, key).epoch == 2
    assert not (await through(*late[0])).succeeded
    assert decode(server.items[key].value, EdgePoolReport, key).epoch == 2
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await server.close()


async def test_what_is_taken_back_is_deleted_among_the_others(desk: Desk) -> None:
    tell(desk, 1, POOLS[:4])
    await desk.clock.settle()
    desk.reports.set(POOLS[1], None)
    tell(desk, 2, POOLS[2:3])
    await desk.clock.settle()
    assert desk.epochs() == {POOLS[0]: 1, POOLS[2]: 2, POOLS[3]: 1}
    assert len(desk.store.written) == 2


async def test_a_new_lease_gets_everything_anew(desk: Desk) -> None:
    tell(desk, 1)
    await desk.clock.settle()
    desk.server.end_lease(desk.session.lease_id)
    desk.session.report_lost(desk.session.lease_id)
    await desk.session.open()
    desk.reports.forget_written()
    await desk.clock.settle()
    assert desk.epochs() == dict.fromkeys(POOLS, 1)


async def test_only_what_is_below_the_prefix_is_looked_after(desk: Desk) -> None:
    desk.reports.set(BASE, EdgeReport("i-1"))
    tell(desk, 1, POOLS[:3])
    await desk.clock.settle()
    below = f"{KEYS.observed_prefix('edge', 'edge-1')}pool/"
    assert await desk.reports.verify(below) == 0
    desk.server.commit([Delete(POOLS[0]), Delete(BASE)])
    assert await desk.reports.verify(below) == 1
    await desk.clock.settle()
    assert POOLS[0] in desk.server.items and BASE not in desk.server.items


async def test_what_is_written_while_it_is_looked_after_is_not_taken_for_another_hands(desk: Desk) -> None:
    tell(desk, 1, POOLS[:2])
    await desk.clock.settle()
    through = desk.store.list

    async def slow(prefix: str) -> Snapshot:
        tell(desk, 2, POOLS[:1])
        await desk.clock.settle()
        return await through(prefix)

    desk.store.list = slow  # type: ignore[method-assign]
    assert await desk.reports.verify(KEYS.observed_prefix("edge", "edge-1")) == 0


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "unanswered"])
async def test_a_guard_that_may_not_hold_is_renewed_once_for_all_that_were_written_under_it(refused: bool) -> None:
    clock = VirtualClock()
    server = FakeEtcd(clock)
    store, agent = Counting(server), KEYS.agent("edge", "edge-1")
    current = [await store.put(agent, b"registered")]
    if refused:
        await store.put(agent, b"another hand's")
    store.silent = 0 if refused else 2
    renewed: list[int] = []

    async def renew() -> None:
        current[0] = await store.put(agent, b"registered anew")
        renewed.append(current[0])

    session = Session(store, clock, 3000, 1000, lambda: 1)
    await session.open()
    reports = Reports(store, session, clock, BASE, lambda: (ModifiedAt(agent, current[0]),), renew)
    reports.set(POOLS[0], EdgePoolReport(1, "gw-a"))
    store.open.clear()
    task = asyncio.create_task(reports.run())
    await clock.settle()
    reports.set(BASE, EdgeReport("i-1"))
    await clock.settle()
    assert len(renewed) == 1
    store.open.set()
    await clock.advance(1.0)
    assert len(renewed) == 1, "the other write was under the old guard"
    assert {BASE, POOLS[0]} <= server.items.keys()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await server.close()
