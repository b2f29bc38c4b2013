"""Whole moves in a world that obeys: power cuts, drains, second failures."""

from dataclasses import replace

import pytest

from fsm.evaluate import next_event
from fsm.events import Event, PoolEvent
from fsm.records import NodePool
from fsm.types import PoolState
from tests.fsm.world import ModelWorld, settled

S = PoolState
UNPLANNED = [S.FAILURE_DETECTED, S.WITHDRAWN, S.PEER_UPDATED, S.STANDBY_ADVERTISING, S.ACTIVE_HEALTHY]
PLANNED = [S.DRAINING, S.PEER_UPDATED, S.STANDBY_ADVERTISING, S.ACTIVE_HEALTHY]
THREE = ("gw-a", "gw-b", "gw-c")


def conditions(world: ModelWorld) -> set[str]:
    return {c.type for c in world.machine.conditions}


def test_first_placement() -> None:
    world = ModelWorld()
    for name in world.gateways:
        world.power_on(name)
    world.run(2.25)
    assert world.state == S.PENDING and not world.history
    assert {key for key, told in world.desired.items() if not isinstance(told, NodePool) or told.announce} == set()
    world.run(0.25)
    assert world.states() == [S.WITHDRAWN, S.PEER_UPDATED, S.STANDBY_ADVERTISING, S.ACTIVE_HEALTHY]
    assert (world.machine.owner, world.machine.epoch, world.machine.standby) == ("gw-a", 1, "gw-b")


def test_power_cut() -> None:
    world = settled()
    mark = len(world.history)
    world.power_cut("gw-a")
    world.run()
    assert world.states(mark) == UNPLANNED
    assert (world.machine.owner, world.machine.previous, world.machine.epoch) == ("gw-b", "gw-a", 2)
    assert world.edges["edge-1"].points_at == "gw-b"
    assert world.history[mark].evidence == {"session": "down", "probe": "failing", "heartbeat": "fresh"}


def test_several_states_are_confirmed_by_one_report() -> None:
    world = settled()
    mark = len(world.history)
    world.power_cut("gw-a")
    world.think()
    world.obey()
    assert len(world.think().entries) >= 3
    assert world.states(mark) == UNPLANNED


def test_an_edge_that_confirms_in_two_steps() -> None:
    world = settled()
    world.edges["edge-1"].at_once = False
    world.power_cut("gw-a")
    world.think()
    world.obey()
    world.think()
    assert world.state == S.WITHDRAWN and world.edges["edge-1"].points_at is None
    world.obey()
    world.think()
    assert world.state in (S.PEER_UPDATED, S.STANDBY_ADVERTISING, S.ACTIVE_HEALTHY)


def test_old_owner_returns_and_nothing_moves() -> None:
    world = settled()
    world.power_cut("gw-a")
    world.run(5)
    mark = len(world.history)
    world.power_on("gw-a")
    world.run(10)
    assert world.states(mark) == [] and world.machine.owner == "gw-b" and world.machine.standby == "gw-a"
    assert not world.gateways["gw-a"].announcing


@pytest.mark.parametrize("state", [S.FAILURE_DETECTED, S.WITHDRAWN])
def test_old_owner_returning_half_way_does_not_stop_a_move(state: str) -> None:
    world = settled()
    world.edges["edge-1"].at_once = False
    world.power_cut("gw-a")
    advance(world, state)
    world.power_on("gw-a")
    world.run(5)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.owner == "gw-b"


def advance(world: ModelWorld, state: str) -> None:
    """Let leader and agents take turns until the machine is in that state, and no further."""
    for _ in range(12):
        world.think()
        if world.state == state:
            return
        world.obey()
    raise AssertionError(f"{state} was not reached: {world.states()}")


def silence(world: ModelWorld) -> None:
    """Nobody confirms by himself any more: states are passed one at a time."""
    for gateway in world.gateways.values():
        gateway.obedient = False


# ---- preempt -----------------------------------------------------------------------------------------------------


def test_preempt_waits_for_its_delay() -> None:
    world = settled()
    world.group = replace(world.group, preempt=True, preempt_delay_s=30)
    world.power_cut("gw-a")
    world.run(5)
    assert world.machine.owner == "gw-b"
    world.power_on("gw-a")
    world.run(29)
    assert world.machine.owner == "gw-b"
    world.run(5)
    assert world.machine.owner == "gw-a" and world.machine.last_move["cause"] == "preempt"


# ---- planned moves -----------------------------------------------------------------------------------------------


def test_drain_makes_before_it_breaks() -> None:
    world = settled()
    mark = len(world.history)
    world.drain("gw-a")
    world.think()
    assert world.state == S.DRAINING and world.edges["edge-1"].points_at == "gw-a"
    world.obey("gw-b")
    assert world.gateways["gw-b"].announcing and world.gateways["gw-a"].announcing
    world.run()
    assert world.states(mark) == PLANNED
    assert (world.machine.owner, world.machine.epoch) == ("gw-b", 3), "not 2, which is reserved for the plan"
    assert not world.gateways["gw-a"].announcing


def test_edges_hear_of_a_planned_move_only_when_the_target_is_prepared() -> None:
    world = settled()
    silence(world)
    world.drain("gw-a")
    for _ in range(4):
        world.think()
        world.obey()
    assert world.state == S.DRAINING and not world.machine.switched
    assert world.edges["edge-1"].points_at == "gw-a"


def test_drained_gateway_with_nobody_else_keeps_its_pool() -> None:
    world = settled()
    world.power_cut("gw-b")
    world.run(4)
    mark = len(world.history)
    world.drain("gw-a")
    world.run(4)
    assert world.states(mark) == [] and world.machine.owner == "gw-a"


@pytest.mark.parametrize("cut", ["power_cut", "path_cut"])
def test_target_lost_before_the_switch_stays(cut: str) -> None:
    world = settled()
    silence(world)
    world.drain("gw-a")
    world.think()
    mark = len(world.history)
    getattr(world, cut)("gw-b")
    world.run()
    assert world.states(mark) == [S.ACTIVE_HEALTHY] and world.machine.owner == "gw-a"
    assert world.machine.epoch == 4, "the move's number burns; the owner stays under one of its own"
    assert world.edges["edge-1"].points_at == "gw-a"


def test_target_that_never_prepares_is_given_up() -> None:
    world = settled()
    world.gateways["gw-b"].obedient = False
    world.bird_kill("gw-a")  # a flap, not an order: it is not tried again at once
    mark = len(world.history)
    world.run(9.5)
    assert world.state == S.DRAINING
    world.bird_start("gw-a")
    world.run(1)
    assert world.states(mark) == [S.DRAINING, S.ACTIVE_HEALTHY] and world.machine.owner == "gw-a"


def test_owner_dies_while_it_is_drained() -> None:
    world = settled()
    silence(world)
    world.drain("gw-a")
    world.think()
    world.power_cut("gw-a")
    world.gateways["gw-b"].obedient = True
    mark = len(world.history)
    world.run()
    assert world.states(mark) == UNPLANNED and world.machine.owner == "gw-b"


def test_target_dies_after_the_switch_and_the_owner_takes_it_back() -> None:
    world = settled()
    world.think(Event(PoolEvent.MOVE_WANTED, "move by operator", target="gw-b"))
    world.obey("gw-b")
    world.think()
    assert world.machine.switched
    mark = len(world.history)
    world.power_cut("gw-b")
    world.run()
    assert world.states(mark) == UNPLANNED, "no detour through Stranded: gw-a is ready"
    assert world.machine.owner == "gw-a" and world.machine.epoch == 4


def test_gateway_that_shuts_down_gives_its_pools_away() -> None:
    world = settled()
    world.gateways["gw-a"].leaving = True
    mark = len(world.history)
    world.run(1)
    assert world.states(mark) == PLANNED and world.machine.last_move["cause"] == "gateway shutting down"


def test_bird_kill_is_a_planned_move() -> None:
    world = settled()
    mark = len(world.history)
    world.bird_kill("gw-a")
    world.run(1)
    assert world.states(mark) == PLANNED and world.machine.owner == "gw-b"


def test_agent_kill_moves_nothing() -> None:
    world = settled()
    mark = len(world.history)
    world.agent_kill("gw-a")
    world.run(20)
    assert world.states(mark) == [] and "Suspect" in conditions(world)


@pytest.mark.parametrize("trouble", [False, True])
def test_suspect_action_move(trouble: bool) -> None:
    world = settled()
    world.group = replace(world.group, suspect_action="move")
    world.agent_kill("gw-a")
    world.tick(4.9)
    assert next_event(world.machine, world.view()) is None
    world.tick(0.2)
    event = next_event(world.machine, replace(world.view(), control_trouble=trouble))
    assert (event is None) == trouble, "never when it is the store that is in trouble"


# ---- second failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.FAILURE_DETECTED, S.WITHDRAWN, S.PEER_UPDATED, S.STANDBY_ADVERTISING])
def test_target_dies_half_way_next_candidate(state: str) -> None:
    world = settled(gateways=THREE)
    world.edges["edge-1"].at_once = False
    silence(world)
    world.power_cut("gw-a")
    if state == S.STANDBY_ADVERTISING:
        world.gateways["gw-b"].obedient = True
        world.gateways["gw-b"].bird = True
    reach(world, state)
    world.power_cut("gw-b")
    for gateway in world.gateways.values():
        gateway.obedient = True
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.owner == "gw-c"
    half_way = state in (S.FAILURE_DETECTED, S.WITHDRAWN)
    assert world.edges["edge-1"].points_at == "gw-c"
    assert world.machine.epoch == 3, "the second plan's number: it names this very gateway"
    was = "gw-a" if half_way else "gw-b"
    assert (world.machine.last_move["from"], world.machine.last_move["to"]) == (was, "gw-c")


def reach(world: ModelWorld, state: str) -> None:
    """As `advance`, with announcements unheard, so that StandbyAdvertising is not passed in the same look."""
    for _ in range(12):
        world.think()
        if world.state == state:
            return
        world.obey()
        for gateway in world.gateways.values():
            gateway.announcing = False
        world.tick(0)
    raise AssertionError(f"{state} was not reached: {world.states()}")


@pytest.mark.parametrize("state", [S.FAILURE_DETECTED, S.WITHDRAWN, S.PEER_UPDATED])
def test_target_dies_half_way_and_nobody_is_left(state: str) -> None:
    """Stranded keeps the mapping that the edges have; it leaves at once when somebody is ready."""
    world = settled()
    world.edges["edge-1"].at_once = False
    silence(world)
    world.power_cut("gw-a")
    reach(world, state)
    world.power_cut("gw-b")
    world.run(3)
    assert world.state == S.STRANDED and "NoStandby" in conditions(world)
    assert world.edges["edge-1"].points_at == "gw-b" and world.machine.owner == "gw-b"
    world.power_on("gw-a")
    world.run(2)
    assert world.state == S.STRANDED
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.owner == "gw-a"


def test_stranded_keeps_the_old_mapping_and_recovers_without_a_move() -> None:
    world = settled()
    world.power_cut("gw-b")
    world.run(4)
    world.path_cut("gw-a")
    world.run(5)
    assert world.state == S.STRANDED
    assert (world.machine.owner, world.machine.epoch, world.edges["edge-1"].points_at) == ("gw-a", 1, "gw-a")
    assert world.gateways["gw-a"].announcing
    world.path_heal("gw-a")
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.epoch == 1


def test_edge_that_cannot_do_it_makes_the_leader_try_the_next() -> None:
    world = settled(gateways=THREE)
    world.edges["edge-1"].stuck = True
    world.power_cut("gw-a")
    world.think()
    assert world.machine.target == "gw-b"
    world.obey()
    world.tick(1.0)
    world.think()
    assert world.state == S.FAILURE_DETECTED and world.machine.target == "gw-c" and world.machine.epoch == 3
    assert "AgentError" in conditions(world)
    world.edges["edge-1"].stuck = False
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.owner == "gw-c"


# ---- advertisement -----------------------------------------------------------------------------------------------


def test_silent_target_is_effective_all_the_same() -> None:
    """The announcement confirms, it is never a precondition: with packets passing, the move ends without it."""
    world = settled()
    world.gateways["gw-b"].obedient = False
    world.power_cut("gw-a")
    world.run(0.5)
    assert world.state == S.PEER_UPDATED and world.edges["edge-1"].points_at == "gw-b"
    world.run(4)
    assert world.state == S.ACTIVE_HEALTHY and "AdvertisementPending" in conditions(world)
    world.gateways["gw-b"].obedient = True
    world.run(0.5)
    assert "AdvertisementPending" not in conditions(world)


def test_target_without_announcement_and_without_packets_is_left() -> None:
    world = settled(gateways=THREE)
    world.gateways["gw-b"].obedient = False
    world.power_cut("gw-a")
    world.run(1.5)
    assert world.state == S.STANDBY_ADVERTISING
    edge = world.edges["edge-1"]
    world.tick(3.0)
    edge.witnesses["gw-b"] = replace(edge.witnesses["gw-b"], session="unknown", probe="failing", missed=2)
    world.think()
    assert world.state == S.FAILURE_DETECTED and world.machine.target == "gw-c"


def test_gateway_removed_from_its_group_gives_its_pool_away() -> None:
    world = settled()
    world.group = replace(world.group, gateways=("gw-b",))
    mark = len(world.history)
    world.run(1)
    assert world.states(mark) == PLANNED and world.machine.owner == "gw-b"
