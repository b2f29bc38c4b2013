"""The library of scenarios, each on the same lab: what it promises, with its packet bounds."""

from typing import Any

import pytest
from bgplb_lab import control, observe, script, stage
from bgplb_lab.world import World

from tests.lab.standing import need_movable_clocks
from tests.lab.under_fault import DETECTION_MS, condition, within

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

LIBRARY = sorted(path.stem for path in script.LIBRARY.glob("*.yaml"))
DAMPED = ("bird-dies-on-the-active", "cluster-lan-lost-on-the-active", "flapping-sessions")
"""Their moves wait if the pool has moved often just before."""
CALM_S = 120.0


def calm(lab: World) -> bool | None:
    """True once the pool's next move would not have to wait, None before."""
    return None if condition(lab, "Damped") else True


def late(found: script.Script, outcome: stage.Outcome, broken: dict[str, str]) -> list[tuple[float | None, float]]:
    """Bounds of time that were not kept, as yardstick and multiple: they are judged with a view to the machine."""
    bounds = {
        "outage_per_floor_max": (outcome.floor_ms, found.expect.outage_per_floor_max),
        "outage_per_detection_max": (DETECTION_MS, found.expect.outage_per_detection_max),
    }
    return [(measure, bound) for name, (measure, bound) in bounds.items() if broken.pop(name, None) and bound]


@pytest.mark.parametrize("name", [*DAMPED, *(name for name in LIBRARY if name not in DAMPED)])
def test_a_scenario_keeps_what_it_promises(whole_lab: World, healthy: dict[str, Any], name: str) -> None:
    """Every step happens in its time, the right gateway has the pool at the end, and no more is lost than it says."""
    found = script.load(script.find(name))
    if any(step.what == "clock-jump" for step in found.steps):
        need_movable_clocks()
    if name in DAMPED:
        control.wait_for("a pool that has not moved for a while", lambda: calm(whole_lab), CALM_S, 0.5)
    play = stage.Stage(whole_lab, found)
    outcome = play.play()
    broken = {c.name: c.detail for c in stage.judge(found, outcome, play.named) if not c.ok}
    missed = late(found, outcome, broken)
    assert broken == {}, f"{broken}: {outcome.owners} {outcome.states} {outcome.counts.outage_ms} ms"
    for measure, bound in missed:
        within(outcome.counts, measure, bound)


def test_after_all_of_them_both_gateways_are_ready(whole_lab: World, healthy: dict[str, Any]) -> None:
    """No last word from before a cut stays in the store, and nobody is left out for good."""
    observe.wait_settled(whole_lab, CALM_S)
