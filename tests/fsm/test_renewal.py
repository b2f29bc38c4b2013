"""Edges that have lost their memory, and stores that have: every number that is used afterwards is above all before."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fsm.core import handle
from fsm.events import Event, PoolEvent
from fsm.records import PoolRecord
from fsm.types import PoolState
from tests.fsm.test_orders import held, idle, pending, stranded
from tests.fsm.world import POOL, ModelWorld, settled

S = PoolState


def test_an_edge_that_forgot_is_commanded_above_every_number_that_was_reserved() -> None:
    world = settled()
    reserved = max(world.armed)
    world.edge_forgets("edge-1")
    world.obey()
    assert world.edges["edge-1"].report is None, "what was written for the one before says nothing to it"
    world.run(1.0)
    assert world.state == S.ACTIVE_HEALTHY
    assert world.machine.epoch > reserved
    accepted = world.edges["edge-1"].fence.pools[POOL].command
    assert (accepted.epoch, accepted.owner) == (world.machine.epoch, world.machine.owner)
    assert [entry.event for entry in world.history].count("EdgeRenewed") == 1
    assert world.violations() == []


def test_a_plan_that_it_carried_out_and_told_nobody_of_is_outbid() -> None:
    """The case that the rule is for: its kernel has moved under a number of which no record is left."""
    world = settled()
    edge, owner = world.edges["edge-1"], world.machine.owner or ""
    edge.late = True
    world.power_cut(owner)
    world.act()
    number = edge.fence.highest_epoch
    assert edge.points_at != owner
    world.power_on(owner)
    world.edge_forgets("edge-1")
    world.run(6.0)
    assert world.state == S.ACTIVE_HEALTHY
    assert edge.fence.highest_epoch > number
    assert edge.points_at == world.machine.owner
    assert world.violations() == []


def test_the_number_of_a_plan_is_no_new_one_for_an_edge_that_forgot_the_plan() -> None:
    """The leader takes over by the plan, which the edge that is there now never had."""
    world = settled()
    (plan,) = world.machine.plan
    world.edge_forgets("edge-1")
    known = world.machine.edges["edge-1"].incarnation
    moved = Event(PoolEvent.OWNER_UNFIT, "down", target=plan.target)
    by_plan = handle(world.machine, moved, world.instant(), world.counter).record
    assert (by_plan.epoch, by_plan.edges["edge-1"].incarnation) == (plan.epoch, known)
    without = handle(replace(world.machine, plan=()), moved, world.instant(), world.counter).record
    assert (without.epoch, without.edges["edge-1"].incarnation) == (world.counter + 1, f"*{known}")


@pytest.mark.parametrize("make", [pending, held, idle, stranded], ids=lambda made: made.__name__)
def test_wherever_a_pool_rests(make: Callable[[], ModelWorld]) -> None:
    world = make()
    before = world.machine
    world.edge_forgets("edge-1")
    world.run(0.5)
    assert world.machine.state == before.state
    assert (world.machine.epoch > before.epoch) == (before.epoch > 0)


def test_in_mid_move_it_waits_for_the_deadline_and_the_move_is_made() -> None:
    world = settled()
    owner = world.machine.owner or ""
    world.edges["edge-1"].stuck = True
    world.power_cut(owner)
    world.think()
    assert world.state == S.FAILURE_DETECTED
    world.edges["edge-1"].stuck = False
    world.edge_forgets("edge-1")
    world.run(10.0)
    assert world.state == S.ACTIVE_HEALTHY
    assert world.machine.owner != owner
    assert world.edges["edge-1"].points_at == world.machine.owner
    assert world.violations() == []


def test_a_deletion_reaches_an_edge_that_forgot() -> None:
    world = settled()
    world.delete()
    world.think()
    world.edge_forgets("edge-1")
    world.run(1.0)
    assert world.forgotten
    assert world.edges["edge-1"].points_at is None


def test_nothing_happens_to_an_edge_that_only_restarts_or_is_away_for_a_while() -> None:
    world = settled()
    before = world.machine
    world.edge_lost("edge-1")
    world.run(5.0)
    world.edge_back("edge-1")
    world.run(5.0)
    assert (world.machine.epoch, world.machine.owner) == (before.epoch, before.owner)
    assert "EdgeRenewed" not in [entry.event for entry in world.history]


def test_an_edge_that_comes_late_to_its_group_is_commanded_anew() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    world.edge_forgets("edge-2")
    world.run(1.0)
    assert world.edges["edge-2"].points_at == world.machine.owner
    assert world.edges["edge-1"].points_at == world.machine.owner
    assert world.violations() == []


# ---- the store -----------------------------------------------------------------------------------------------------


def put_back(world: ModelWorld, record: PoolRecord | None, counter: int) -> None:
    """A backup of the store; what agents report is theirs and stays. `accept` has raised the counter."""
    world.record, world.counter = record, max(counter, world.edges["edge-1"].fence.reserved_epoch)
    world.desired, world.history = {}, []


def moved_since(world: ModelWorld) -> tuple[PoolRecord, int]:
    """The pool's record as it was before it moved to the other gateway and got plans again."""
    before, counter = world.machine, world.counter
    world.drain(before.owner or "")
    world.run(2.0)
    world.undrain(before.owner or "")
    world.run(2.0)
    assert world.machine.owner != before.owner
    return before, counter


def test_an_edge_that_is_ahead_of_a_store_put_back_keeps_what_it_does() -> None:
    world = settled()
    backup = moved_since(world)
    edge = world.edges["edge-1"]
    owner, epoch = edge.points_at, edge.fence.highest_epoch
    put_back(world, *backup)
    world.run(4.0)
    assert world.state == S.ACTIVE_HEALTHY
    assert (world.machine.owner, edge.points_at) == (owner, owner), "no packet went another way"
    assert world.machine.epoch >= epoch
    assert world.machine.plan and world.machine.plan[0].epoch > epoch
    assert edge.refusals == [], "and from here on it obeys"


def test_an_edge_that_serves_a_pool_of_an_emptied_store_keeps_it_where_it_is() -> None:
    world = settled(gateways=("gw-a", "gw-b", "gw-c"))
    moved_since(world)
    edge = world.edges["edge-1"]
    owner, epoch = edge.points_at, edge.fence.highest_epoch
    put_back(world, None, 0)
    world.run(4.0)
    assert world.state == S.ACTIVE_HEALTHY
    assert (world.machine.owner, edge.points_at) == (owner, owner)
    assert world.machine.epoch > epoch
    assert edge.refusals == []


def test_a_deletion_in_a_store_put_back_outbids_the_edge() -> None:
    world = settled()
    backup, counter = moved_since(world)
    put_back(world, replace(backup, state=S.TERMINATING, plan=()), counter)
    world.delete()
    world.run(2.0)
    assert world.forgotten
    assert world.edges["edge-1"].points_at is None
