"""What must happen when a machine's clock is wrong: nothing. The lab's own prober and kernel keep the right time."""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from bgplb_lab import absence, control, faults, observe, roles, topology
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.errors import Unreachable
from bgplb_lab.probes import Prober, RouteWatch
from bgplb_lab.scenario import EDGE, OWNER, cut_and_return, move_pool
from bgplb_lab.world import World

from tests.lab.standing import need_movable_clocks
from tests.lab.under_fault import LONG_S, OTHER, QUIET_PROBES, suffer, within

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

HOUR_S = 3600


@pytest.fixture(autouse=True, scope="module")
def movable() -> Iterator[None]:
    """Skips by name where clocks can't be moved."""
    need_movable_clocks()
    yield


def off_s(stamp: str) -> float:
    """By how much a time that a daemon wrote is ahead of this machine's."""
    return datetime.fromisoformat(stamp).timestamp() - time.time()


def last_word(lab: World, node: str, service: str, event: str) -> dict[str, Any]:
    """The newest line of that event in a service's log."""
    lines = (lab.log_folder(node) / f"{service}.log").read_text(encoding="utf-8").splitlines()
    found = [line for line in map(json.loads, (x for x in lines if x.startswith("{"))) if line["event"] == event]
    return dict(found[-1])


@pytest.mark.parametrize("way", ["+1h", "-1h"])
def test_a_wrong_clock_on_the_active_moves_nothing(whole_lab: World, healthy: dict[str, Any], way: str) -> None:
    """Its heartbeats come from another hour: alive is whose heartbeats commit, whatever time they carry."""
    seen = suffer(whole_lab, healthy, "clock-jump", OWNER, way, last_s=4.0)
    assert (seen.lost, seen.states) == (0, ())


@pytest.mark.parametrize(("way", "sign"), [("+1h", 1), ("-1h", -1)])
def test_an_edge_with_a_wrong_clock_carries_out_its_plan(
    whole_lab: World, healthy: dict[str, Any], way: str, sign: int
) -> None:
    """Plans, probes and deadlines count on a clock that never jumps."""
    observe.wait_armed(whole_lab, LONG_S, OWNER)
    faults.strike(whole_lab, "clock-jump", EDGE, way)
    before = observe.wait_armed(whole_lab, LONG_S, OWNER)
    watch = RouteWatch(whole_lab, EDGE)
    cut = cut_and_return(whole_lab, watch, before, lambda: None)
    watch.stop()
    said = last_word(whole_lab, EDGE, "edge-agent", "plan carried out")
    assert abs(off_s(said["timestamp"]) - sign * HOUR_S) < LONG_S, "the clock was not moved"
    assert observe.states_since(cut.after, observe.last_seq(before)) == UNPLANNED
    assert cut.recovery.lost == 0
    faults.heal(whole_lab, "clock-jump", EDGE, way)
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    within(cut.outage, cut.floor_ms, 1.3)


@pytest.mark.parametrize(("way", "sign"), [("+1h", 1), ("-1h", -1)])
def test_a_leader_with_a_wrong_clock_leads_as_any_other(
    whole_lab: World, healthy: dict[str, Any], way: str, sign: int
) -> None:
    """It takes over from one of another time, and neither ages nor deadlines of the record are read by it as times."""
    first = roles.leader(whole_lab)
    others = [name for name in topology.ORCHESTRATORS if name != first]
    for name in others:
        faults.strike(whole_lab, "clock-jump", name, way)
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(whole_lab, "orchestrator-kill", first)

    def another() -> bool | None:
        try:
            return True if roles.leader(whole_lab) in others else None
        except Unreachable:
            return None

    control.wait_for("a leader whose clock is wrong", another, LONG_S, 0.1)
    before = observe.wait_settled(whole_lab, LONG_S, OWNER)
    assert observe.states_since(before, observe.last_seq(healthy)) == ()
    move_pool(whole_lab, OTHER, "an order in another hour")
    machine = observe.wait_settled(whole_lab, LONG_S, OTHER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    assert prober.stop().counts.lost == 0
    assert abs(off_s(machine["since"]) - sign * HOUR_S) < LONG_S, "the clock was not moved"
    assert absence.executed(machine, observe.last_seq(healthy)) == 0
    faults.heal(whole_lab, "orchestrator-kill", first)
