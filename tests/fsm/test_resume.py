"""A leader dies at every point of a move; another takes the record as it stands in the store, and finishes."""

from collections.abc import Callable
from itertools import count

import pytest

from fsm.types import PoolState
from tests.fsm.world import ModelWorld, settled

S = PoolState
Turn = Callable[[ModelWorld], None]


def power_cut() -> ModelWorld:
    world = settled(gateways=("gw-a", "gw-b", "gw-c"), edges=("edge-1", "edge-2"))
    for edge in world.edges.values():
        edge.at_once = False
    world.power_cut("gw-a")
    return world


def drain() -> ModelWorld:
    world = settled(gateways=("gw-a", "gw-b", "gw-c"), edges=("edge-1", "edge-2"))
    world.drain("gw-a")
    return world


def turns(world: ModelWorld) -> list[Turn]:
    """One round in the smallest steps: the leader's look, then each agent by itself."""
    agents: list[Turn] = [lambda w, name=name: w.obey(name) for name in (*world.edges, *world.gateways)]  # type: ignore[misc]
    return [lambda w: _think(w), *agents]


def _think(world: ModelWorld) -> None:
    world.think()


def run_until(make: Callable[[], ModelWorld], steps: int) -> tuple[ModelWorld, bool]:
    """The world after that many small steps, and whether its move had ended before."""
    world = make()
    done = False
    for number in range(steps):
        turn = turns(world)[number % len(turns(world))]
        turn(world)
        done = world.machine.owner == "gw-b" and world.state == S.ACTIVE_HEALTHY
    return world, done


def successor(world: ModelWorld) -> None:
    """Another leader reads the store: nothing of the first one's memory, clock or name is left."""
    before = world.machine
    world.another_leads("orchestrator-2")
    assert world.machine == before
    world.now_s += 50_000.0  # another host's clock
    for gateway in world.gateways.values():
        gateway.good_since_s += 50_000.0 - 10.0
        gateway.lost_s = gateway.lost_s and gateway.lost_s + 50_000.0
    world.tick(0)


@pytest.mark.parametrize("make", [power_cut, drain])
def test_every_interrupted_prefix_is_finished(make: Callable[[], ModelWorld]) -> None:
    interrupted: set[tuple[str, bool]] = set()
    for steps in count(1):
        world, done = run_until(make, steps)
        interrupted.add((world.state, world.machine.switched))
        successor(world)
        world.run(2)
        assert world.violations() == []
        assert world.state == S.ACTIVE_HEALTHY and world.machine.owner == "gw-b", (steps, world.history)
        assert all(edge.points_at == "gw-b" for edge in world.edges.values())
        assert world.machine.leader == "orchestrator-2"
        if done:
            break
    assert len(interrupted) >= 3, f"the sweep only cut in {interrupted}"


@pytest.mark.parametrize("make", [power_cut, drain])
def test_every_interrupted_prefix_with_the_target_dead(make: Callable[[], ModelWorld]) -> None:
    """The same, and the target dies together with the leader."""
    for steps in count(1):
        world, done = run_until(make, steps)
        world.power_cut("gw-b")
        successor(world)
        world.run(12)
        assert world.violations() == []
        assert world.state == S.ACTIVE_HEALTHY, (steps, world.history)
        assert world.machine.owner == ("gw-c" if make is power_cut or world.machine.owner != "gw-a" else "gw-a")
        assert {edge.points_at for edge in world.edges.values()} == {world.machine.owner}
        if done:
            break


def test_deadlines_restart_on_the_new_leaders_clock() -> None:
    world = power_cut()
    world.think()
    assert world.machine.deadline_s == world.now_s + 1.0
    successor(world)
    world.think()
    assert world.state == S.FAILURE_DETECTED and world.machine.deadline_s == world.now_s + 1.0


def test_a_leader_of_the_same_name_started_anew_gives_the_time_in_which_nobody_looked() -> None:
    """Its clock may even be the same one, and the deadline long over: no edge had a leader to answer meanwhile."""
    world = power_cut()
    world.think()
    number, target = world.machine.epoch, world.machine.target
    world.another_leads(world.leader)
    world.now_s += 20.0
    for gateway in world.gateways.values():
        gateway.lost_s = gateway.lost_s and gateway.lost_s + 20.0
    world.tick(0)
    world.think()
    assert world.state == S.FAILURE_DETECTED and world.machine.deadline_s == world.now_s + 1.0
    assert (world.machine.epoch, world.machine.target, world.machine.retries) == (number, target, 0)


def test_a_look_that_was_not_committed_is_no_look() -> None:
    """The record before, seen again: the same decision under the same number, since neither was written."""
    world = power_cut()
    before, counter = world.machine, world.counter
    first = world.think().record
    world.record, world.counter = before, counter
    assert world.think().record == first
