"""Plans that an edge carries out by itself: adopted exactly once, by whichever leader, or superseded."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from fsm.invariants import epochs_have_one_owner, epochs_rise
from tests.contract.store.fake import FakeStore
from tests.leader.model import KEYS, MAIL, WEB, Replica, World, group, other, settled


async def armed(*gateways: str) -> tuple[World, Replica]:
    world = World(gateways or ("gw-a", "gw-b"))
    for edge in world.edges.values():
        edge.autonomous = True
    return await settled(group(*world.gateways), WEB, MAIL, world=world)


def sound(world: World) -> None:
    """Histories and numbers are as they must be."""
    histories = {name: world.history(name) for name in ("web", "mail")}
    assert not epochs_have_one_owner(histories)
    for name, entries in histories.items():
        assert not epochs_rise(name, entries)
        assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
    assert world.epochs_given() == sorted(set(world.epochs_given()))
    assert all(edge.refusals == [] for edge in world.edges.values())
    for name in histories:
        assert world.edges["edge-1"].points_at[name] == world.machine(name).owner


def adoptions(world: World, name: str) -> int:
    return Counter(entry.event for entry in world.history(name))["PlanExecuted"]


async def test_what_an_edge_did_without_any_leader_is_adopted_once_under_its_number() -> None:
    world, leader = await armed()
    owner = world.machine().owner
    plan = world.machine().plan[0]
    leader.leading = False
    world.power_cut(owner or "")
    world.clock.seconds += 5.0
    world.obey()
    assert world.edges["edge-1"].points_at["web"] == plan.target
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB, MAIL)
    await world.round(heir, ticks=8)
    assert world.state() == ("ActiveHealthy", plan.target)
    assert plan.epoch in [entry.epoch for entry in world.history()]
    assert adoptions(world, "web") == 1
    sound(world)


@pytest.mark.parametrize("fate", ["applied", "not applied"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_an_adoption_whose_answer_is_lost_is_made_once(fate: str, nth: int) -> None:
    world, leader = await armed()
    owner = world.machine().owner
    real, count = leader.store.txn, 0

    async def txn(guards: object, ops: object) -> object:
        nonlocal count
        count += 1
        if count == nth:
            leader.store.lose_answer = fate  # type: ignore[assignment]
        return await real(guards, ops)  # type: ignore[arg-type]

    leader.store.txn = txn  # type: ignore[method-assign, assignment]
    world.power_cut(owner or "")
    await world.round(leader, ticks=6)
    assert world.state() == ("ActiveHealthy", other(owner))
    assert adoptions(world, "web") == 1
    sound(world)


async def test_a_leader_that_was_faster_supersedes_what_the_edge_did_meanwhile() -> None:
    world, leader = await armed("gw-a", "gw-b", "gw-c")
    edge = world.edges["edge-1"]
    owner = world.machine().owner or ""
    planned, number = world.machine().plan[0].target, world.machine().plan[0].epoch
    third = next(g for g in world.gateways if g not in (owner, planned))
    edge.autonomous = False
    world.ask("move", "web", third)
    leader.sync()
    leader.loop.wake()
    await leader.loop.turn()  # under way in etcd; the edge has not heard of it
    edge.autonomous = True
    world.power_cut(owner)
    world.act_by_plan()
    assert edge.points_at["web"] == planned
    await world.round(leader, ticks=12)
    assert world.state()[0] == "ActiveHealthy"
    assert world.machine().owner != owner
    assert [(e["plan"], e["target"], e["edge"]) for e in told_superseded(world)] == [(str(number), planned, "edge-1")]
    sound(world)


async def superseded_without_anybody_knowing(world: World, leader: Replica) -> int:
    """The pool is on its way to a third gateway when its owner dies and the edge, which has not heard of that, acts.

    Returns the number of the plan.
    """
    owner, plan = world.machine().owner or "", world.machine().plan[0]
    world.ask("move", "web", next(g for g in world.gateways if g not in (owner, plan.target)))
    await leader.turn()
    world.power_cut(owner)
    world.act_by_plan()
    assert world.edges["edge-1"].points_at["web"] == plan.target
    return plan.epoch


def told_superseded(world: World) -> list[Mapping[str, str]]:
    return [entry.evidence for entry in world.history() if entry.event == "PlanSuperseded"]


@pytest.mark.parametrize("fate", ["applied", "not applied"])
@pytest.mark.parametrize("nth", range(1, 7))
async def test_a_superseded_plan_is_told_once_though_leaders_change_and_answers_are_lost(fate: str, nth: int) -> None:
    world, leader = await armed("gw-a", "gw-b", "gw-c")
    number = await superseded_without_anybody_knowing(world, leader)
    count = 0
    real = FakeStore.txn

    def losing(replica: Replica) -> Replica:
        async def txn(guards: object, ops: object) -> object:
            nonlocal count
            count += 1
            if count == nth:
                replica.store.lose_answer = fate  # type: ignore[assignment]
            return await real(replica.store, guards, ops)  # type: ignore[arg-type]

        replica.store.txn = txn  # type: ignore[method-assign, assignment]
        return replica

    losing(leader)
    for successor in range(2, 6):
        await world.round(leader, ticks=2)
        leader.leading = False
        leader = losing(world.leader(f"orchestrator-{successor}"))
        leader.offer(group("gw-a", "gw-b", "gw-c"), WEB, MAIL)
    await world.round(leader, ticks=12)
    assert count >= nth, "an answer was lost"
    assert world.state()[0] == "ActiveHealthy"
    assert len(told_superseded(world)) == 1 and adoptions(world, "web") == 0
    said = world.machine().superseded
    assert (said["epoch"], said["edge"]) == (number, "edge-1") and int(said["by_epoch"]) > number
    sound(world)


async def test_a_pool_of_the_same_name_is_not_told_of_the_plans_of_the_one_before() -> None:
    """The edge need not have noticed that it was gone."""
    world, leader = await armed()
    world.power_cut(world.machine().owner or "")
    await world.round(leader, ticks=6)
    assert adoptions(world, "web") == 1
    fence = world.edges["edge-1"].fence
    leader.offer(group(), MAIL)
    await world.round(leader, ticks=4)
    assert not world.present("machines/pool/web")
    remembered = fence.pools["web"].carried_out
    assert remembered
    leader.offer(group(), WEB, MAIL)
    world.power_on(next(g.name for g in world.gateways.values() if not g.powered))
    for _ in range(12):
        await world.round(leader, ticks=2)
        edge = world.edges["edge-1"]
        if "web" in edge.fence.pools:
            kept = replace(edge.fence.pools["web"], carried_out=remembered)
            edge.fence = replace(edge.fence, pools={**edge.fence.pools, "web": kept})
    assert world.state()[0] == "ActiveHealthy" and told_superseded(world) == []


async def test_two_failures_in_a_row_without_a_leader() -> None:
    world, leader = await armed("gw-a", "gw-b", "gw-c")
    leader.leading = False
    chain = [plan.target for plan in world.machine().plan]
    assert len(chain) == 2
    for name in (world.machine().owner or "", chain[0]):
        world.power_cut(name)
        world.obey()
    assert world.edges["edge-1"].points_at["web"] == chain[1]
    heir = world.leader("orchestrator-2")
    heir.offer(group("gw-a", "gw-b", "gw-c"), WEB, MAIL)
    await world.round(heir, ticks=12)
    assert world.state() == ("ActiveHealthy", chain[1])
    sound(world)


async def test_a_deposed_leader_adopts_nothing() -> None:
    world, deposed = await armed()
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB, MAIL)
    await world.round(heir, ticks=2)
    world.power_cut(world.machine().owner or "")
    world.obey()
    before = dict(world.server.items)
    for _ in range(3):
        assert not await deposed.turn()
    assert dict(world.server.items) == before
    await world.round(heir, ticks=6)
    assert adoptions(world, "web") == 1
    sound(world)


async def test_a_hold_takes_the_plan_away() -> None:
    world, leader = await armed()
    owner = world.machine().owner
    world.ask("hold", "web")
    await world.round(leader, ticks=2)
    world.power_cut(owner or "")
    await world.round(leader, ticks=6)
    assert world.state() == ("Held", owner)
    assert world.edges["edge-1"].points_at["web"] == owner


async def test_numbers_that_were_reserved_are_never_given_to_another_pool() -> None:
    world, leader = await armed("gw-a", "gw-b", "gw-c")
    reserved = {plan.epoch: name for name in ("web", "mail") for plan in world.machine(name).plan}
    assert len(reserved) == 4
    assert max(reserved) <= int(world.server.items[KEYS.epoch_counter].value)
    for name in ("gw-a", "gw-b", "gw-c", "gw-a"):
        world.ask("move", "web", name)
        world.ask("move", "mail", name)
        await world.round(leader, ticks=8)
    for name in ("web", "mail"):
        for entry in world.history(name):
            assert reserved.get(entry.epoch, name) == name
    sound(world)
