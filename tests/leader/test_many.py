"""Hundreds of pools: transactions are counted, nothing else waits, and a follower reads only what it needs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fsm.events import PoolEvent
from fsm.records import EdgePoolReport, EdgeReport, NodePoolReport, NodeReport
from orchestrator.leader import knowledge as knowledge_module
from orchestrator.leader.loop import SETTLED_AT_ONCE, SETTLED_IN_A_ROW, TAKEN_IN_AT_ONCE
from orchestrator.store.port import MAX_TXN_OPS, Guard, Op, Put, TxnResult
from orchestrator.store.records import decode
from tests.contract.store.fake import FakeEtcd, FakeStore
from tests.leader.model import KEYS, Replica, World, group, pool

MANY = 200
POOLS = [pool(f"pool-{n:04d}", f"198.18.{n // 256}.{n % 256}/32") for n in range(MANY)]


class Counting(FakeStore):
    """Keeps the keys of each transaction, and lets something happen between them."""

    def __init__(self, server: FakeEtcd) -> None:
        super().__init__(server)
        self.written: list[list[str]] = []
        self.between: Any = None

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        self.written.append([op.key for op in ops if isinstance(op, Put)])
        result = await super().txn(guards, ops)
        if self.between is not None:
            self.between()
        return result

    def about(self, what: str) -> list[list[str]]:
        return [keys for keys in self.written if any(what in key for key in keys)]


async def accepted(autonomous: bool = False) -> tuple[World, Replica, Counting]:
    """All pools at rest with a plan each."""
    world = World()
    store = Counting(world.server)
    leader = world.leader(store=store)
    leader.offer(group(), *POOLS)
    for edge in world.edges.values():
        edge.autonomous = autonomous
    await world.round(leader, ticks=4)
    assert {m.state for m in leader.known.machines.values()} == {"ActiveHealthy"}
    assert all(m.plan for m in leader.known.machines.values())
    return world, leader, store


async def test_accepting_many_takes_a_bounded_number_of_transactions() -> None:
    _, leader, store = await accepted()
    keys = sum(len(written) for written in store.written)
    assert len(store.written) <= 2 * keys / MAX_TXN_OPS + 4 * MANY / SETTLED_AT_ONCE + 10
    bases = store.about("desired/edge/edge-1/base")
    assert len(bases) <= 3, "the base names all prefixes: it is not written once a pool"
    assert len(leader.known.machines) == MANY


async def test_plans_of_a_dead_gateway_are_adopted_in_few_transactions_each_once() -> None:
    world, leader, store = await accepted(autonomous=True)
    owned = [m.name for m in leader.known.machines.values() if m.owner == "gw-a"]
    assert len(owned) > MANY / 4
    store.written.clear()
    world.power_cut("gw-a")
    await world.round(leader, ticks=4)
    assert {m.owner for m in leader.known.machines.values()} == {"gw-b"}
    assert {m.state for m in leader.known.machines.values()} == {"ActiveHealthy"}
    moves = [entry for name in owned for entry in world.history(name) if entry.event == PoolEvent.PLAN_EXECUTED]
    assert len(moves) == len(owned), "adopted exactly once"
    assert len(store.written) < len(owned)


async def test_reports_are_taken_in_between_two_commits_and_not_after_the_last() -> None:
    world, leader, store = await accepted()
    seen: list[int] = []
    store.written.clear()
    world.power_cut("gw-a")
    world.obey()
    leader.sync()

    def beat() -> None:
        world.put(KEYS.heartbeat("node", "gw-b"), {"seq": 10_000 + len(seen)})
        leader.sync()
        seen.append(leader.known.revisions[KEYS.heartbeat("node", "gw-b")])

    store.between = beat
    await leader.loop.turn()
    assert len(store.written) > 2
    assert seen == sorted(set(seen)), "each beat is known before the next commit"


async def test_a_turn_that_concerns_one_pool_settles_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world, leader, _ = await accepted()
    leader.sync()
    await leader.loop.turn()
    settled: list[str] = []
    real = leader.loop._settler.settle

    def counted(name: str, *arguments: Any) -> Any:
        settled.append(name)
        return real(name, *arguments)

    monkeypatch.setattr(leader.loop._settler, "settle", counted)
    name = POOLS[7].name
    world.put(KEYS.observed("node", "gw-a", "pool", name), NodePoolReport(99, False, False, "changed"))
    leader.sync()
    await leader.loop.turn()
    assert settled == [name]
    settled.clear()
    report = NodeReport("i-gw-a", True, (), 1, 1, problems=("bird: a word",))
    world.put(KEYS.observed_base("node", "gw-a"), report)
    leader.sync()
    await leader.loop.turn()
    assert settled == [], "what an agent says of itself concerns no pool unless it changes the judgement"


async def test_a_heartbeat_wakes_nobody_and_concerns_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    world, leader, store = await accepted()
    leader.sync()
    await leader.loop.turn()
    store.written.clear()
    settled: list[str] = []
    monkeypatch.setattr(leader.loop._settler, "settle", lambda name, *_: settled.append(name))
    leader.loop._wake.clear()
    for beat in range(10_000, 10_010):
        for role, name in (("edge", "edge-1"), ("node", "gw-a"), ("node", "gw-b")):
            world.put(KEYS.heartbeat(role, name), {"seq": beat})
        leader.sync()
        assert not leader.loop._wake.is_set()
        await leader.loop.turn()
    assert settled == []
    assert store.written == []


async def at_rest(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Replica, list[str]]:
    """All pools accepted and settled; the list gets the name of each one that is looked at from here on."""
    world, leader, _ = await accepted()
    leader.sync()
    await leader.loop.turn()
    settled: list[str] = []

    def noted(name: str, *_: Any) -> tuple[None, int]:
        settled.append(name)
        return None, 0

    monkeypatch.setattr(leader.loop._settler, "settle", noted)
    return world, leader, settled


async def test_one_late_answer_concerns_no_pool_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    world, leader, settled = await at_rest(monkeypatch)
    key = KEYS.observed_base("edge", "edge-1")
    report: EdgeReport = world.read(key, EdgeReport)

    async def tell(**fields: Any) -> list[str]:
        settled.clear()
        witness = replace(report.gateways["gw-b"], **fields)
        world.put(key, replace(report, gateways={**report.gateways, "gw-b": witness}))
        leader.sync()
        await leader.loop.turn()
        return sorted(settled)

    assert await tell(probe="doubtful", missed=1) == []
    waiting = replace(leader.known.machines[POOLS[7].name], state="StandbyAdvertising", deadline_s=1e9)
    world.put(KEYS.machine("pool", waiting.name), waiting)
    leader.sync()
    await leader.loop.turn()
    assert await tell() == [waiting.name], "its move ends when packets pass"
    assert len(await tell(settled=False)) == MANY, "a gateway that is no longer ready concerns all"


async def test_how_long_a_gateway_is_suspect_concerns_no_pool_until_it_is_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, leader, settled = await at_rest(monkeypatch)

    async def silent_for(seconds: float) -> int:
        """Only the agent of gw-a is; so many pools are looked at in the turn after that."""
        settled.clear()
        world.clock.seconds = began_s + seconds
        for role, name in (("edge", "edge-1"), ("node", "gw-b")):
            world.put(KEYS.heartbeat(role, name), {"seq": world.clock.seconds})
        leader.sync()
        await leader.loop.turn()
        return len(settled)

    began_s = world.clock.seconds
    looked_at = [await silent_for(seconds) for seconds in (0.5, 1.5, 2.5, 4.9, 5.1, 6.0)]
    assert looked_at == [0, MANY, 0, 0, MANY, 0], "as it becomes suspect, and when one may move for that"


async def test_a_turn_that_fails_half_way_is_finished_by_the_next() -> None:
    world, leader, store = await accepted()
    world.power_cut("gw-a")
    world.obey()
    leader.sync()
    store.between = lambda: setattr(store, "reachable", len(store.written) < 3)
    store.written.clear()
    assert not await leader.loop.turn()
    store.between, store.reachable = None, True
    await world.round(leader, ticks=4)
    assert {m.owner for m in leader.known.machines.values()} == {"gw-b"}
    assert {m.state for m in leader.known.machines.values()} == {"ActiveHealthy"}


async def test_who_is_deposed_half_way_writes_nothing_more() -> None:
    world, leader, store = await accepted()
    world.power_cut("gw-a")
    world.obey()
    leader.sync()
    store.written.clear()
    store.between = lambda: setattr(leader, "leading", False)
    await leader.loop.turn()
    decided = {key for keys in store.written for key in keys if key.startswith(KEYS.machines_prefix)}
    assert len(decided) <= SETTLED_AT_ONCE


async def test_a_follower_reads_each_key_once_however_often_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    leader, follower = world.leader(), Replica(world, "orchestrator-2")
    leader.offer(group(), *POOLS[:20])
    read: list[str] = []
    real = decode

    def counted(data: bytes, type_: Any, key: str = "") -> Any:
        read.append(key)
        return real(data, type_, key)

    await world.round(leader, follower, ticks=1)
    monkeypatch.setattr(knowledge_module, "decode", counted)
    follower.known._deferred.clear()
    report = KEYS.observed("edge", "edge-1", "pool", "pool-0003")
    for epoch in range(1, 50):
        world.put(report, EdgePoolReport(epoch, "gw-a"))
        follower.sync()
    assert read == []
    follower.loop.catch_up()
    assert read == [report]
    found = follower.known.pool_reports["edge", "edge-1", "pool-0003"]
    assert isinstance(found, EdgePoolReport) and found.epoch == 49


async def test_a_follower_that_begins_to_lead_knows_everything() -> None:
    world = World()
    leader, follower = world.leader(), Replica(world, "orchestrator-2")
    leader.offer(group(), *POOLS[:20])
    await world.round(leader, follower, ticks=4)
    leader.leading = False
    world.elect(follower)
    follower.offer(group(), *POOLS[:20])
    world.power_cut("gw-a")
    await world.round(follower, ticks=4)
    assert {m.owner for m in follower.known.machines.values()} == {"gw-b"}
    assert follower.known.machines.keys() == {p.name for p in POOLS[:20]}


def pauses(world: World, monkeypatch: pytest.MonkeyPatch, *happens: Callable[[], None]) -> list[float]:
    """The pauses in which others may run; at each one these happen."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)
        for each in happens:
            each()

    monkeypatch.setattr(world.clock, "sleep", pause)
    return made


async def test_a_turn_in_which_nothing_is_committed_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    world, leader, store = await accepted()
    leader.sync()
    await leader.loop.turn()
    store.written.clear()
    made, before = pauses(world, monkeypatch), leader.loop.turns
    leader.loop.wake()
    assert await leader.loop.turn()
    assert store.written == []
    assert made == [0.0] * (MANY // SETTLED_IN_A_ROW)
    assert leader.loop.turns - before == len(made), "a long turn must not look like a loop that hangs"


async def test_who_begins_to_lead_takes_its_backlog_in_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world, leader, _ = await accepted()
    follower = Replica(world, "orchestrator-2")
    follower.sync()
    waiting = len(follower.known._deferred)
    assert waiting > 2 * TAKEN_IN_AT_ONCE
    leader.leading = False
    world.elect(follower)
    name = POOLS[7].name
    changed = NodePoolReport(99, False, False, "changed meanwhile")

    def meanwhile() -> None:
        world.put(KEYS.observed("node", "gw-a", "pool", name), changed)
        follower.sync()

    made = pauses(world, monkeypatch, meanwhile)
    follower.offer(group(), *POOLS)
    await follower.loop.turn()
    assert len(made) >= waiting // TAKEN_IN_AT_ONCE
    assert follower.known.machines.keys() == {p.name for p in POOLS}
    assert follower.known.pool_reports["node", "gw-a", name] == changed, "no older word replaced what came meanwhile"
