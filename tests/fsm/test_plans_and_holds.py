"""A hold revokes the plan, and is in force once the edges have acknowledged that."""

from dataclasses import replace

from fsm.types import PoolState
from tests.fsm.test_moves import UNPLANNED, conditions
from tests.fsm.test_plans import THREE, at_rest, chain, told
from tests.fsm.world import ModelWorld, settled

S = PoolState


def test_hold_is_pending_until_the_edge_says_that_the_plan_is_revoked() -> None:
    world = settled(gateways=THREE)
    world.hold()
    world.think()
    assert world.state == S.HELD and "HoldPending" in conditions(world) and told(world) == ()
    assert len(world.machine.plan) == 2, "remembered: it may be carried out before the revocation arrives"
    world.obey("edge-1")
    world.think()
    assert "HoldPending" not in conditions(world)
    world.power_cut("gw-a")
    world.act()
    world.run(5)
    assert world.state == S.HELD and world.edges["edge-1"].points_at == "gw-a", "now nobody moves"


def test_hold_is_pending_while_the_order_that_arms_is_still_under_way() -> None:
    """What the edge said last, that nothing is armed, is older than the order that arms it."""
    world = ModelWorld(THREE)
    world.think()
    world.obey()
    world.think()
    report = world.edges["edge-1"].report
    assert world.machine.plan and report is not None and report.armed_plan is None
    world.hold()
    for _ in range(2):
        world.think()
        assert world.state == S.HELD and "HoldPending" in conditions(world)
    world.obey("edge-1")
    world.think()
    assert "HoldPending" not in conditions(world)


def test_a_pool_that_was_never_armed_is_held_at_once() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    world.hold()
    world.think()
    assert world.state == S.HELD and "HoldPending" not in conditions(world)


def test_hold_is_in_force_once_every_edge_has_acknowledged() -> None:
    """Even one that needs no plan: what it was told before may have had one."""
    world = settled(edges=("edge-1", "edge-2"))
    world.spec = replace(world.spec, addresses=("192.0.2.0/26", "192.0.2.64/26"))
    world.think()
    world.hold()
    world.think()
    world.obey("edge-1")
    world.think()
    assert world.state == S.HELD and "HoldPending" in conditions(world)
    world.obey("edge-2")
    world.think()
    assert "HoldPending" not in conditions(world)


def test_hold_stays_pending_while_an_armed_edge_is_away() -> None:
    world = settled()
    world.edge_lost("edge-1")
    world.hold()
    world.run(10)
    assert world.state == S.HELD and "HoldPending" in conditions(world)
    world.power_cut("gw-a")
    world.act()
    world.edge_back("edge-1")
    world.run(1)
    assert (world.state, world.machine.owner, world.machine.epoch) == (S.HELD, "gw-b", 2)
    assert "HoldPending" not in conditions(world)
    at_rest(world)


def test_release_arms_again_without_new_numbers_where_the_chain_still_stands() -> None:
    world = settled(gateways=THREE)
    before = chain(world)
    world.hold()
    world.run(5)
    world.release()
    world.run()
    assert chain(world) == before and told(world) == world.machine.plan and world.counter == 3
    world.hold()
    world.run()
    world.power_cut("gw-b")
    world.release()
    world.run()
    assert chain(world) == [("gw-c", 4, 1)] and world.counter == 4, "and with new ones where it does not"


def test_a_plan_carried_out_before_the_hold_arrives_is_adopted_and_then_held() -> None:
    world = settled(gateways=THREE)
    world.hold()
    world.think()
    world.power_cut("gw-a")
    world.act()
    mark = len(world.history)
    world.run(1)
    assert world.states(mark) == [*UNPLANNED, S.HELD]
    assert (world.machine.owner, world.machine.epoch, world.machine.held_from) == ("gw-b", 2, S.ACTIVE_HEALTHY)
    at_rest(world)
