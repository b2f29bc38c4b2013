"""An agent that comes back without its disk: another installation with other keys, and what that costs in packets."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from bgplb_lab import control, faults, observe
from bgplb_lab.probes import Prober
from bgplb_lab.scenario import EDGE, OWNER
from bgplb_lab.world import World

from tests.lab.under_fault import LONG_S, QUIET_PROBES, went

pytestmark = pytest.mark.chaos

BACK_S = 15.0
"""Until an installation without a past carries packets again: a lease, a handshake, and the tries in between."""


def lose_state(lab: World, node: str) -> Path:
    """What the agent keeps in its state directory is gone, its keys included."""
    folder = lab.disk_folder / node / "lib"
    assert any(folder.iterdir()), "there was something to lose"
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return folder


def reserved(machine: dict[str, Any]) -> int:
    """The highest number that was ever meant for the pool: its own, or that of its last plan."""
    return max(int(epoch) for epoch in (machine["epoch"], *(plan["epoch"] for plan in machine["plan"] or [])))


def test_an_edge_without_its_disk_is_commanded_anew_above_every_number(
    whole_lab: World, healthy: dict[str, Any]
) -> None:
    before = observe.wait_armed(whole_lab, LONG_S, OWNER)
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(whole_lab, "edge-agent-kill", EDGE)
    lose_state(whole_lab, EDGE)
    began = time.monotonic_ns()
    faults.heal(whole_lab, "edge-agent-kill", EDGE)

    def above() -> dict[str, Any] | None:
        machine = observe.pool(whole_lab)
        return machine if machine["epoch"] > reserved(before) else None

    control.wait_for("a number above all that were reserved", above, LONG_S, 0.1)
    after = observe.wait_settled(whole_lab, LONG_S, OWNER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    run = prober.stop()
    lost = [sent for sent, at in zip(run.sent_ns, run.arrived_ns, strict=True) if at is None]
    took_s = (lost[-1] - began) / 1e9 if lost else 0.0
    print(f"{len(lost)} packets lost, the last {took_s:.1f} s after the agent was started again")
    assert took_s <= BACK_S
    assert run.arrived_ns[-1] is not None
    assert went(whole_lab, before) == (), "nothing moved"
    assert after["edges"][EDGE]["epoch"] == after["epoch"], "and the edge obeys the new number"
    seen = observe.steering(whole_lab)
    assert (seen.routes, seen.allowed) == ((OWNER,), (OWNER,))
