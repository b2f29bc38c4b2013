"""A plan that the edge executed is adopted exactly once, under the number it was armed with; late ones are not."""

from dataclasses import replace

import pytest

from fsm.core import handle
from fsm.evaluate import next_event
from fsm.events import Event, PoolEvent
from fsm.invariants import epochs_have_one_owner
from fsm.records import EdgePoolReport, Plan
from fsm.types import PoolState
from tests.fsm.world import POOL, ModelWorld, settled

S, E = PoolState, PoolEvent


def armed() -> ModelWorld:
    """A pool at rest with a plan for gw-b under number 2, reserved from the counter."""
    world = settled()
    world.counter = 2
    world.record = replace(world.machine, plan=(Plan("gw-b", 2, 1),))
    return world


def execute(world: ModelWorld) -> None:
    """The edge does it by itself, and says so."""
    edge = world.edges["edge-1"]
    edge.points_at = "gw-b"
    edge.report = EdgePoolReport(
        2, "gw-b", withdrawn=True, installed=True, executed_plan=2, phases_ms={"detect": 1.0, "peer_move": 0.2}
    )


def test_adopted_under_its_own_number() -> None:
    world = armed()
    world.power_cut("gw-a")
    execute(world)
    mark = len(world.history)
    world.think()
    first = world.history[mark]
    assert (first.event, first.to_state, first.epoch, first.target) == (E.PLAN_EXECUTED, S.FAILURE_DETECTED, 2, "gw-b")
    assert first.phases_ms == {"detect": 1.0}
    world.run(2)
    assert world.state == S.ACTIVE_HEALTHY and (world.machine.owner, world.machine.epoch) == ("gw-b", 2)
    assert world.counter == 2, "no other number was taken"
    assert epochs_have_one_owner({POOL: world.history}) == []


def test_adopted_exactly_once() -> None:
    world = armed()
    world.power_cut("gw-a")
    execute(world)
    report = world.edges["edge-1"].report
    world.think()
    world.run(1)
    world.edges["edge-1"].report = report  # the same report, seen again
    world.run(5)
    assert [e.event for e in world.history].count(E.PLAN_EXECUTED) == 1


def test_superseded_by_a_higher_epoch() -> None:
    """The leader had moved it already: what the edge did is an older command, and changes nothing."""
    world = armed()
    world.drain("gw-a")
    world.think()
    assert world.machine.epoch == 3 and world.machine.plan == ()
    execute(world)
    before = world.machine
    event = next_event(before, world.view())
    assert event is None or event.name != E.PLAN_EXECUTED
    step = handle(before, Event(E.PLAN_EXECUTED, "late", "gw-b", 2), world.instant(), world.counter)
    assert step.record is before and step.ignored == "superseded by a higher epoch"


@pytest.mark.parametrize("plan", [Plan("gw-b", 2, 0), Plan("gw-b", 9, 1)], ids=["another base", "another number"])
def test_not_adopted_unless_base_and_number_fit(plan: Plan) -> None:
    world = armed()
    world.record = replace(world.machine, plan=(plan,))
    execute(world)
    event = next_event(world.machine, world.view())
    assert event is None or event.name != E.PLAN_EXECUTED


@pytest.mark.parametrize("order", ["drain", "hold", "delete"])
def test_orders_revoke_the_plan(order: str) -> None:
    world = armed()
    getattr(world, order)(*(["gw-a"] if order == "drain" else []))
    world.think()
    assert world.machine.plan == ()
