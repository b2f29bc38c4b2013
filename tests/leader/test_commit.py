"""Writes: guarded by leadership, whole or not at all, and neither lost nor repeated when an answer is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from fsm.effects import SetDesired
from fsm.invariants import epochs_have_one_owner
from fsm.records import AgentBase, Request
from orchestrator.leader.interpret import chunks
from orchestrator.leader.writes import Batch
from orchestrator.store.port import MAX_TXN_OPS, Delete, Indeterminate, Op, Put, Refused, TxnResult, Unavailable
from tests.leader.model import KEYS, MAIL, WEB, Replica, World, group, other, pool, settled

Fate = Literal["applied", "not applied"]


def transitions(replica: Replica) -> list[str]:
    return [f"{f['from']}->{f['to']}" for event, f in replica.said if event == "transition"]


async def test_a_deposed_leader_changes_nothing() -> None:
    world, deposed = await settled()
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB)
    await world.round(heir)
    owner = world.machine().owner
    assert owner is not None
    for name in ("gw-a", "gw-b"):
        world.ask("move", "web", name)
    world.power_cut(owner)
    deposed.offer(group("gw-b", "gw-a"), replace(WEB, hold=True), MAIL)
    world.obey()
    before = dict(world.server.items)
    for _ in range(5):
        assert not await deposed.turn(), "it has to find out that its writes fail"
    assert dict(world.server.items) == before
    await world.round(heir, ticks=2)
    assert world.state() == ("ActiveHealthy", other(owner))


async def test_a_leader_that_steps_down_starts_from_what_is_there_when_it_leads_again() -> None:
    world, first = await settled()
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB)
    first.leading = False
    first.sync()
    first.loop._step_down()
    owner = world.machine().owner
    world.power_cut(owner or "")
    await world.round(heir, first, ticks=2)
    world.power_on(owner or "")
    await world.round(heir, first, ticks=16)
    world.elect(first)
    heir.leading = False
    request = world.ask("move", "web", owner)
    await world.round(first, heir, ticks=4)
    assert world.answer(request).accepted
    assert world.state() == ("ActiveHealthy", owner)
    assert world.epochs_given() == sorted(set(world.epochs_given()))


@pytest.mark.parametrize("fate", ["applied", "not applied"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_a_lost_answer_neither_loses_nor_repeats_a_transition(fate: Fate, nth: int) -> None:
    world, leader = await settled()
    owner = world.machine().owner
    assert owner is not None
    seq = world.machine().seq
    real, count = leader.store.txn, 0

    async def txn(guards: object, ops: object) -> TxnResult:
        nonlocal count
        count += 1
        if count == nth:
            leader.store.lose_answer = fate
        return await real(guards, ops)  # type: ignore[arg-type]

    leader.store.txn = txn  # type: ignore[method-assign]
    world.power_cut(owner)
    await world.round(leader, ticks=3)
    assert world.state() == ("ActiveHealthy", other(owner))
    entries = [entry for entry in world.history() if entry.seq > seq]
    assert [e.to_state for e in entries] == [
        "FailureDetected", "Withdrawn", "PeerUpdated", "StandbyAdvertising", "ActiveHealthy"
    ]  # fmt: skip
    assert [e.seq for e in entries] == list(range(seq + 1, seq + 6))
    assert len(transitions(leader)) == world.machine().seq, "one line a transition, also where an answer was lost"


@pytest.mark.parametrize("fate", ["applied", "not applied"])
async def test_a_request_whose_answer_was_lost_is_done_once(fate: Fate) -> None:
    world, leader = await settled()
    owner = world.machine().owner
    request = world.ask("drain", "web", reason="maintenance")
    leader.store.lose_answer = fate
    await world.round(leader, ticks=3)
    assert world.answer(request).accepted
    assert world.state() == ("ActiveHealthy", other(owner))
    begun = [entry for entry in world.history() if (entry.from_state, entry.to_state) == ("ActiveHealthy", "Draining")]
    assert len(begun) == 1, "one move"


async def test_an_answer_that_was_lost_on_a_deposed_leader_is_not_taken_for_done() -> None:
    """Its transaction failed; that the new leader wrote an equal base meanwhile proves nothing about it."""
    world, deposed = await settled()
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB)
    world.power_cut(world.machine().owner or "")
    world.obey()
    real = deposed.store.txn

    async def txn(guards: object, ops: object) -> TxnResult:
        result = await real(guards, ops)  # type: ignore[arg-type]
        assert not result.succeeded
        await heir.turn()
        deposed.store.txn = real  # type: ignore[method-assign]
        raise Indeterminate("answer lost")

    deposed.store.txn = txn  # type: ignore[method-assign]
    said = len(transitions(deposed))
    assert not await deposed.turn()
    assert len(transitions(deposed)) == said


async def test_our_own_late_answer_does_not_hide_what_a_new_leader_wrote_meanwhile() -> None:
    world, deposed = await settled()
    heir = world.leader("orchestrator-2")
    world.elect(deposed)
    heir.leading = False
    real = deposed.store.txn

    async def txn(guards: object, ops: object) -> TxnResult:
        result = await real(guards, ops)  # type: ignore[arg-type]
        world.elect(heir)
        heir.offer(group(), replace(WEB, hold=True))
        await world.round(heir, ticks=2)
        deposed.sync()  # the watch is ahead of our own transaction's answer
        return result

    deposed.store.txn = txn  # type: ignore[method-assign]
    world.ask("hold", "web", reason="look")
    await deposed.turn()
    deposed.store.txn = real  # type: ignore[method-assign]
    deposed.sync()
    assert deposed.known.machines == heir.known.machines
    assert deposed.known.specs == heir.known.specs


@pytest.mark.parametrize("damaged", [b'{"schema": 99}', b'{"schema": 1, "name": "web", "state": "Resting"}'])
async def test_an_unreadable_record_stops_its_own_pool_only(damaged: bytes) -> None:
    world, leader = await settled(group(), WEB, MAIL)
    owner = world.machine("mail").owner
    world.server.commit([Put(KEYS.machine("pool", "web"), damaged)])
    world.power_cut(owner or "")
    for name in world.gateways:
        world.gateways[name].good_since_s = 0.0
    await world.round(leader, ticks=4)
    assert world.state("mail") == ("ActiveHealthy", other(owner))
    assert world.server.items[KEYS.machine("pool", "web")].value == damaged, "never overwritten"
    assert any(KEYS.machine("pool", "web") in problem for problem in leader.loop.problems())


async def test_a_counter_that_is_no_number_is_told_and_nobody_gets_a_number() -> None:
    world, leader = await settled()
    highest = max(world.epochs_given())
    world.server.commit([Put(KEYS.epoch_counter, b"seven")])
    world.ask("move", "web", other(world.machine().owner))
    assert not await leader.turn()
    assert any(KEYS.epoch_counter in problem for problem in leader.loop.problems())
    assert world.state()[0] == "ActiveHealthy"
    assert world.server.items[KEYS.epoch_counter].value == b"seven", "never overwritten"
    world.server.commit([Delete(KEYS.epoch_counter)])
    await leader.turn()
    assert world.machine().epoch > highest


@pytest.mark.parametrize("follows", [False, True])
async def test_transitions_without_end_leave_nothing_in_memory(follows: bool) -> None:
    world, leader = await settled()
    replica = Replica(world, "orchestrator-2") if follows else leader

    def held() -> int:
        replica.sync()
        return len(replica.known.revisions) + len(replica.known._deferred)

    before = held()
    for _ in range(3):
        world.ask("move", "web", other(world.machine().owner))
        await world.round(leader, ticks=2)
    assert len(world.history()) > 10
    assert held() <= before + 3, "the requests"


async def test_one_pool_whose_guard_fails_does_not_hold_up_the_others() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    for name in ("web", "mail"):
        world.ask("move", name, "gw-a")
    await world.round(leader, ticks=2)
    world.power_cut("gw-a")
    world.obey()
    leader.sync()
    # A change of its record that the watch has not brought yet: for that pool alone the guard can't hold.
    record = world.machine("web")
    world.put(KEYS.machine("pool", "web"), replace(record, cause="touched"))
    leader.loop.wake()
    await leader.loop.turn()
    assert world.state("mail")[0] == "FailureDetected"
    assert world.state("web")[0] == "ActiveHealthy"
    await world.round(leader, ticks=2)
    assert world.state("web") == world.state("mail") == ("ActiveHealthy", "gw-b")
    assert world.epochs_given() == sorted(set(world.epochs_given()))


async def test_many_pools_take_several_transactions_each_whole_by_itself() -> None:
    pools = [pool(f"pool-{n}", f"192.0.2.{n}/32") for n in range(60)]
    world, leader = await settled(group(), *pools)
    for spec in pools:
        assert world.state(spec.name)[0] == "ActiveHealthy"
    sizes: list[int] = []
    real = leader.store.txn

    async def txn(guards: object, ops: Sequence[Op]) -> TxnResult:
        sizes.append(len(ops))
        return await real(guards, ops)  # type: ignore[arg-type]

    leader.store.txn = txn  # type: ignore[method-assign]
    owned = {spec.name for spec in pools if world.machine(spec.name).owner == "gw-a"}
    assert owned, "rendezvous hashing spreads sixty pools"
    world.power_cut("gw-a")
    await world.round(leader, ticks=4)
    assert {world.state(spec.name) for spec in pools} == {("ActiveHealthy", "gw-b")}
    assert max(sizes) <= MAX_TXN_OPS
    assert len(sizes) > 1


def test_a_batch_is_never_split() -> None:
    def batch(name: str, size: int) -> Batch:
        return Batch(tuple(SetDesired("edge", f"{name}-{n}", "", "", AgentBase()) for n in range(size)), name)

    parts = [batch("a", 60), batch("b", 60), batch("c", 60), batch("d", 100)]
    groups = chunks(parts)
    assert [b.machine for g in groups for b in g] == ["a", "b", "c", "d"]
    assert all(sum(len(b.writes) + 1 for b in g) < MAX_TXN_OPS for g in groups)


async def test_a_group_of_many_gateways_is_served() -> None:
    """One pool is told to every gateway: with more of them than a transaction holds, it takes several."""
    names = tuple(f"gw-{n}" for n in range(150))
    world, leader = await settled(group(*names), WEB, world=World(names))
    assert world.state()[0] == "ActiveHealthy"
    assert len(world.present("desired/node")) == 300
    owner = world.machine().owner
    world.power_cut(owner or "")
    await world.round(leader, ticks=2)
    assert world.state()[0] == "ActiveHealthy"
    assert world.machine().owner != owner
    leader.offer(group(*names))
    world.expire("node", owner or "")
    await world.round(leader, ticks=3)
    assert [key for key in world.present() if "web" in key] == []


FAILURES: dict[str, Callable[[], Exception]] = {
    "unavailable": lambda: Unavailable("nobody answers"),
    "refused": lambda: Refused("no space left"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_store_that_fails_is_tried_again_and_said_once(failure: str) -> None:
    world, leader = await settled()
    owner = world.machine().owner
    real = leader.store.txn

    async def txn(guards: object, ops: object) -> TxnResult:
        raise FAILURES[failure]()

    leader.store.txn = txn  # type: ignore[method-assign]
    world.power_cut(owner or "")
    world.obey()
    for _ in range(5):
        assert not await leader.turn()
    told = [event for event, _ in leader.said if "write" in event]
    assert len(told) == 1, f"one line for one trouble, not one a try: {leader.said[-6:]}"
    leader.store.txn = real  # type: ignore[method-assign]
    await world.round(leader, ticks=2)
    assert world.state() == ("ActiveHealthy", other(owner))


async def test_a_deletion_whose_answer_is_lost_ends_well() -> None:
    world, leader = await settled()
    leader.offer(group())
    for _ in range(12):
        leader.store.lose_answer = "applied"
        world.obey()
        await leader.turn()
    await world.round(leader, ticks=2)
    assert [key for key in world.present() if "web" in key] == []


async def test_a_write_that_is_applied_long_after_its_answer_was_lost_gives_no_number_twice() -> None:
    """It was not there when it was read back: it came into etcd only with the next write, ahead of that."""
    world, leader = await settled(group(), WEB, MAIL)
    for name in ("web", "mail"):
        world.ask("move", name, "gw-a")
    await world.round(leader, ticks=2)
    real = leader.store.txn
    late: list[tuple[Any, Any]] = []

    async def txn(guards: Any, ops: Any) -> TxnResult:
        if not late:
            late.append((guards, ops))
            raise Indeterminate("answer lost")
        leader.store.txn = real  # type: ignore[method-assign]
        assert (await real(*late[0])).succeeded
        return await real(guards, ops)

    leader.store.txn = txn  # type: ignore[method-assign]
    world.ask("move", "web", "gw-b")
    await leader.turn()
    first_in_line = Request("first-in-line", "move", "mail", "gw-b", at_ms=1)  # it would get the very same number
    world.put(KEYS.request(first_in_line.id), first_in_line)
    leader.sync()
    await leader.loop.turn()
    await world.round(leader, ticks=4)
    assert world.state("web") == world.state("mail") == ("ActiveHealthy", "gw-b")
    assert not epochs_have_one_owner({name: world.history(name) for name in ("web", "mail")})
    assert world.epochs_given() == sorted(set(world.epochs_given()))


async def test_a_leader_knows_what_it_wrote_before_the_watch_brings_it() -> None:
    world, leader = await settled()
    world.power_cut(world.machine().owner or "")
    world.obey()
    await leader.turn()
    assert world.state()[0] == "FailureDetected"
    revision = world.server.revision
    for _ in range(3):
        leader.loop.wake()
        assert await leader.loop.turn()
    assert world.server.revision == revision, "nothing is decided twice, nor refused by its own write"
