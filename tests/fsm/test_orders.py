"""Operators' orders: hold and release, deletion, in every state and in mid-move."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fsm.events import Event, PoolEvent
from fsm.fence import FenceState, accept
from fsm.records import EdgePool
from fsm.types import PoolState
from tests.fsm.test_moves import advance, conditions, reach, silence
from tests.fsm.world import ModelWorld, settled

S, E = PoolState, PoolEvent


def pending() -> ModelWorld:
    world = ModelWorld()
    for name in world.gateways:
        world.power_on(name)
    world.run()
    return world


def stranded() -> ModelWorld:
    world = settled()
    world.power_cut("gw-b")
    world.run(4)
    world.power_cut("gw-a")
    world.run(1)
    return world


def moving(state: str) -> Callable[[], ModelWorld]:
    def make() -> ModelWorld:
        world = settled()
        world.edges["edge-1"].at_once = False
        silence(world)
        if state == S.STANDBY_ADVERTISING:
            world.gateways["gw-b"].obedient = True
        world.power_cut("gw-a")
        reach(world, state)
        return world

    return make


def draining(switched: bool) -> Callable[[], ModelWorld]:
    def make() -> ModelWorld:
        world = settled()
        world.drain("gw-a")
        world.think()
        if switched:
            world.obey("gw-b")
            world.think()
        assert world.state == S.DRAINING and world.machine.switched is switched
        return world

    return make


def held() -> ModelWorld:
    world = settled()
    world.hold()
    world.run()
    return world


def idle() -> ModelWorld:
    world = settled()
    world.think(Event(E.BECAME_EMPTY, "no address in use"))
    return world


WORLDS: dict[str, Callable[[], ModelWorld]] = {
    S.PENDING: pending,
    S.ACTIVE_HEALTHY: settled,
    S.FAILURE_DETECTED: moving(S.FAILURE_DETECTED),
    S.WITHDRAWN: moving(S.WITHDRAWN),
    S.PEER_UPDATED: moving(S.PEER_UPDATED),
    S.STANDBY_ADVERTISING: moving(S.STANDBY_ADVERTISING),
    S.STRANDED: stranded,
    "Draining, not switched": draining(False),
    "Draining, switched": draining(True),
    S.HELD: held,
    S.IDLE: idle,
}
every_world = pytest.mark.parametrize("name", WORLDS)


def obedient(world: ModelWorld) -> ModelWorld:
    for gateway in world.gateways.values():
        gateway.obedient = True
    return world


@every_world
def test_worlds_are_what_they_say(name: str) -> None:
    assert WORLDS[name]().state == name.split(",")[0]


# ---- deletion ----------------------------------------------------------------------------------------------------


@every_world
def test_deletion_leaves_nothing(name: str) -> None:
    world = WORLDS[name]()
    world.delete()
    obedient(world).run(2)
    assert world.forgotten and world.desired == {}
    assert all(edge.points_at is None for edge in world.edges.values())
    world.obey()
    assert not any(gateway.announcing for gateway in world.gateways.values())
    assert world.history[-1].to_state == S.TERMINATING


def test_deletion_waits_for_an_edge_and_for_a_living_gateway() -> None:
    world = settled()
    world.edge_lost("edge-1")
    world.gateways["gw-a"].obedient = False
    world.delete()
    world.run(40)
    assert world.state == S.TERMINATING and not world.forgotten
    world.edge_back("edge-1")
    world.run(5)
    assert not world.forgotten, "gw-a lives and announces still"
    world.gateways["gw-a"].obedient = True
    world.run(1)
    assert world.forgotten


def test_deletion_does_not_wait_for_a_dead_gateway() -> None:
    world = settled()
    world.power_cut("gw-b")
    world.power_cut("gw-a")
    world.run(5)
    assert world.view().node_reports["gw-a"].announcing, "its last word"
    world.delete()
    world.run(2)
    assert world.forgotten


def test_a_pool_made_again_takes_a_higher_epoch() -> None:
    world = settled()
    world.delete()
    world.run(2)
    world.spec = replace(world.spec, deleted=False)
    world.record, world.forgotten = None, False
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.epoch > 1
    assert world.edges["edge-1"].points_at == "gw-a" and not world.edges["edge-1"].refusals


# ---- hold --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [S.PENDING, S.ACTIVE_HEALTHY, S.STRANDED, S.IDLE])
def test_hold_remembers_where_it_came_from(name: str) -> None:
    world = WORLDS[name]()
    before = world.machine
    world.think()
    world.hold()
    world.think()
    assert world.state == S.HELD and world.machine.held_from == name
    assert (world.machine.owner, world.machine.epoch, world.machine.announce) == (
        before.owner,
        before.epoch,
        before.announce,
    )
    world.release()
    step = world.think()
    assert step.entries[0].to_state == name and world.machine.held_from is None


@pytest.mark.parametrize(
    "name",
    [
        S.FAILURE_DETECTED,
        S.WITHDRAWN,
        S.PEER_UPDATED,
        S.STANDBY_ADVERTISING,
        "Draining, not switched",
        "Draining, switched",
    ],
)
def test_hold_in_mid_move_applies_at_its_end(name: str) -> None:
    world = WORLDS[name]()
    world.hold("hold by operator: inspection")
    world.think()
    assert world.state != S.HELD and "HoldPending" in conditions(world)
    obedient(world).run(4)
    assert world.state == S.HELD and world.machine.held_from == S.ACTIVE_HEALTHY and world.machine.owner == "gw-b"
    assert "HoldPending" not in conditions(world)
    assert world.history[-1].cause == "hold by operator: inspection"


def test_held_pool_does_not_move() -> None:
    world = held()
    mark = len(world.history)
    world.power_cut("gw-a")
    world.drain("gw-a")
    world.run(20)
    assert len(world.history) == mark and world.edges["edge-1"].points_at == "gw-a"
    world.release()
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.owner == "gw-b"


def test_hold_by_manifest() -> None:
    world = settled()
    world.spec = replace(world.spec, hold=True)
    world.run()
    assert world.state == S.HELD and world.machine.cause == "manifest says hold"
    world.spec = replace(world.spec, hold=False)
    world.run()
    assert world.state == S.ACTIVE_HEALTHY


def test_operators_move_names_its_target_and_reason() -> None:
    world = settled(gateways=("gw-a", "gw-b", "gw-c"))
    world.think(Event(E.MOVE_WANTED, "move by operator: try the third", target="gw-c"))
    world.run(1)
    assert world.machine.owner == "gw-c"
    assert world.machine.last_move["cause"] == "move by operator: try the third"
    assert (world.machine.last_move["from"], world.machine.last_move["to"]) == ("gw-a", "gw-c")


# ---- changed addresses -------------------------------------------------------------------------------------------


def test_a_prefix_that_comes_from_another_pool_passes_the_fence() -> None:
    """The other pool had it under a higher number, so that this pool's number has to rise above it."""
    world = settled()
    edge = world.edges["edge-1"]
    theirs = accept(edge.fence, "mail", EdgePool(("192.0.2.64/26",), "gw-b", 9), 1)
    assert isinstance(theirs, FenceState)
    edge.fence, world.counter = theirs, 9
    world.spec = replace(world.spec, addresses=("192.0.2.0/26", "192.0.2.64/26"))
    mark = len(world.history)
    world.run(1)
    assert [e.event for e in world.history[mark:]] == [E.ADDRESSES_CHANGED, E.PLAN_OUTDATED]
    assert world.machine.epoch == 10 and world.machine.owner == "gw-a" and world.state == S.ACTIVE_HEALTHY
    assert edge.fence.floor["192.0.2.64/26"] == 10 and edge.refusals == []


@pytest.mark.parametrize("name", [S.FAILURE_DETECTED, S.PEER_UPDATED, "Draining, switched"])
def test_addresses_that_change_in_mid_move_are_numbered_at_its_end(name: str) -> None:
    world = WORLDS[name]()
    world.spec = replace(world.spec, addresses=("192.0.2.0/26", "192.0.2.64/26"))
    obedient(world).run(4)
    assert world.state == S.ACTIVE_HEALTHY and world.history[-1].event == E.ADDRESSES_CHANGED
    assert world.machine.addresses == world.spec.addresses and world.violations() == []
    assert world.edges["edge-1"].points_at == "gw-b"


# ---- empty pools -------------------------------------------------------------------------------------------------


def test_idle_is_steered_and_not_announced() -> None:
    world = idle()
    world.run(1)
    assert world.state == S.IDLE and world.edges["edge-1"].points_at == "gw-a"
    assert not any(gateway.announcing for gateway in world.gateways.values())
    world.think(Event(E.BECAME_USED, "the first address"))
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.gateways["gw-a"].announcing


def test_pool_that_came_into_use_while_it_moved_is_announced() -> None:
    world = idle()
    world.power_cut("gw-a")
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.owner == "gw-b" and not world.machine.announce
    world.think(Event(E.BECAME_USED, "the first address"))
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.gateways["gw-b"].announcing


def test_advance_stops_at_the_state_asked_for() -> None:
    world = settled()
    world.drain("gw-a")
    advance(world, S.DRAINING)
    assert world.state == S.DRAINING
