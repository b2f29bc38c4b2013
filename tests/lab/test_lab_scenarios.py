"""Two scenarios of the library on one lab: a double fault, and a gateway that flaps."""

from typing import Any

import pytest
from bgplb_lab import faults, script, stage
from bgplb_lab.world import World


@pytest.mark.parametrize("name", ["leader-killed-at-the-cut", "flapping-active"])
def test_a_scenario_keeps_what_it_promises(whole_lab: World, healthy: dict[str, Any], name: str) -> None:
    """The leader dies with the gateway that it watches; a gateway fails again and again, and nobody goes back to it."""
    found = script.load(script.find(name))
    play = stage.Stage(whole_lab, found)
    outcome = play.play()
    broken = [f"{c.name}: {c.detail}" for c in stage.judge(found, outcome, play.named) if not c.ok]
    assert broken == [], outcome
    assert faults.in_force(whole_lab) == []
