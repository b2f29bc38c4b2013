"""Deadlines that pass again and again: an edge that can't do what it is told is not told ever more."""

from itertools import pairwise

from fsm.core import resume
from fsm.types import Instant, PoolState
from tests.fsm.test_moves import THREE
from tests.fsm.world import ModelWorld, settled

S = PoolState


def stuck(world: ModelWorld) -> ModelWorld:
    """From here on the owner is dead, and the edge can't do what it is told."""
    world.edges["edge-1"].stuck = True
    world.power_cut("gw-a")
    return world


def test_the_only_candidate_is_waited_for_under_one_number_and_ever_more_patiently() -> None:
    """An edge whose kernel always refuses goes on trying by itself: another number would change nothing."""
    world = stuck(settled())
    mark = len(world.history)
    world.run(60)
    entries = world.history[mark:]
    assert {e.to_state for e in entries} == {S.FAILURE_DETECTED}
    assert {(e.target, e.epoch) for e in entries} == {("gw-b", world.machine.epoch)}
    assert [e.event for e in entries][1:] == ["DeadlinePassed"] * 5, "after 1, 2, 4, 8 and 16 s"
    world.edges["edge-1"].stuck = False
    world.run(4)
    assert (world.state, world.machine.owner, world.machine.retries) == (S.ACTIVE_HEALTHY, "gw-b", 0)
    assert world.violations() == []


def test_patience_ends_at_half_a_minute() -> None:
    """Or an edge that is mended after a day would be waited for another day."""
    world = stuck(settled())
    mark = len(world.history)
    world.run(130)
    passed_ms = [entry.at_ms for entry in world.history[mark:]]
    assert [(b - a) / 1000 for a, b in pairwise(passed_ms)] == [1, 2, 4, 8, 16, 32, 32, 32]


def test_candidates_are_tried_in_turn_and_ever_more_slowly() -> None:
    world = stuck(settled(gateways=THREE))
    mark = len(world.history)
    world.run(60)
    entries = world.history[mark:]
    assert [e.target for e in entries] == ["gw-b", "gw-c"] * 3
    assert world.machine.epoch == entries[-1].epoch
    world.edges["edge-1"].stuck = False
    world.run(4)
    assert world.state == S.ACTIVE_HEALTHY
    assert world.violations() == []


def test_a_new_leader_keeps_the_patience() -> None:
    world = stuck(settled())
    world.run(8)
    assert world.machine.retries == 3
    taken = resume(world.machine, Instant(5.0, 0), "another", 2)
    assert (taken.retries, taken.deadline_s) == (3, 13.0)
