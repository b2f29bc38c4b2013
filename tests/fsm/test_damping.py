"""Damping: arithmetic of the back-off, what waits for it, and what does not."""

from dataclasses import replace

import pytest

from fsm.core import handle, resume
from fsm.evaluate import damped, next_event
from fsm.events import Event, PoolEvent
from fsm.records import PoolRecord
from fsm.types import DAMPING_LONGEST_MS, Instant, PoolState
from tests.fsm.world import ModelWorld, settled

S, E = PoolState, PoolEvent


def moved(times_s: list[float]) -> PoolRecord:
    """A pool that was told to move at each of these times."""
    record = PoolRecord("web", S.ACTIVE_HEALTHY, owner="gw-a", epoch=1)
    for time_s in times_s:
        at = replace(record, state=S.ACTIVE_HEALTHY, target=None)
        record = handle(at, Event(E.OWNER_UNFIT, "c", target="gw-b"), Instant(time_s, 0), record.epoch).record
    return record


@pytest.mark.parametrize(
    ("times_s", "backoff_ms"),
    [
        ([100], 0),
        ([100, 110], 0),
        ([100, 110, 120], 1000),
        ([100, 110, 120, 130], 2000),
        ([100, 110, 120, 130, 140], 4000),
        ([100, 131, 162], 0),
        ([100, 110, 120, 200], 0),
        ([100, 110, 120, 175], 2000),
        ([100 + n for n in range(12)], DAMPING_LONGEST_MS),
        ([100 + n for n in range(40)], DAMPING_LONGEST_MS),
        ([*range(100, 112), 111 + 599], DAMPING_LONGEST_MS),
        ([*range(100, 112), 111 + 601], 0),
    ],
)
def test_backoff(times_s: list[float], backoff_ms: int) -> None:
    assert moved(times_s).backoff_ms == backoff_ms


def test_damped_lasts_as_long_as_the_backoff() -> None:
    record = moved([100, 110, 120])
    assert damped(record, 120.0) and damped(record, 120.999)
    assert not damped(record, 121.0)
    assert not damped(moved([100, 110]), 110.0)


def test_stamps_of_another_leader_mean_nothing() -> None:
    record = replace(moved([100, 110, 120]), leader="o-1", term=17, deadline_s=121.0)
    assert resume(record, Instant(120.5, 0), "o-1", 17) is record
    taken = resume(record, Instant(7.0, 0), "o-2", 18)
    assert (taken.moves_s, taken.backoff_ms, taken.leader, taken.deadline_s) == ((), 0, "o-2", 8.0)


@pytest.mark.parametrize("now_s", [7.0, 500.0], ids=["stamps ahead", "stamps behind"])
def test_own_stamps_from_before_a_reboot_mean_nothing(now_s: float) -> None:
    """CLOCK_BOOTTIME starts at zero again: stamps ahead of it would hold a pool back for days, others are over."""
    record = replace(moved([100, 110, 120]), leader="o-1", term=17, deadline_s=121.0)
    again = resume(record, Instant(now_s, 0), "o-1", 18)
    assert (again.moves_s, again.deadline_s, again.term) == ((), now_s + 1.0, 18) and not damped(again, now_s)


def damped_world(gateways: tuple[str, ...] = ("gw-a", "gw-b")) -> ModelWorld:
    world = settled(gateways=gateways)
    world.tick(10)
    world.record = replace(world.machine, moves_s=(world.now_s,), backoff_ms=16_000)
    return world


def test_unfit_owner_waits_dead_does_not() -> None:
    world = damped_world()
    world.path_cut("gw-a")  # the session stays up: healthy on paper
    world.think()
    assert world.state == S.ACTIVE_HEALTHY
    assert "Damped" in [c.type for c in world.machine.conditions]
    world.power_cut("gw-a")
    world.think()
    assert world.state == S.FAILURE_DETECTED


def test_unfit_owner_moves_when_the_backoff_is_over() -> None:
    world = damped_world()
    world.path_cut("gw-a")
    world.run(15.5)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.owner == "gw-a"
    world.run(2)
    assert world.machine.owner == "gw-b"


def test_flap_waits_an_operators_order_does_not() -> None:
    world = damped_world()
    world.bird_kill("gw-a")
    world.think()
    assert world.state == S.ACTIVE_HEALTHY
    world.drain("gw-a")
    world.think()
    assert world.state == S.DRAINING


def test_a_new_owner_that_does_not_serve_waits_too() -> None:
    """The deadline of StandbyAdvertising is no way around the back-off: else a pool wanders every three seconds."""
    world = damped_world(("gw-a", "gw-b", "gw-c"))
    world.record = replace(world.machine, state=S.STANDBY_ADVERTISING, deadline_s=world.now_s + 3)
    world.path_cut("gw-a")
    world.run(10)
    assert world.state == S.STANDBY_ADVERTISING
    world.run(8)
    assert world.state == S.ACTIVE_HEALTHY and world.machine.owner != "gw-a"


def test_backoff_of_a_pool_at_rest_asks_for_nothing() -> None:
    world = damped_world()
    assert next_event(world.machine, world.view()) is None
