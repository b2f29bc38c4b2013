"""One fault under probes, from before it strikes until the pool is settled again, and what tests ask about it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from bgplb_lab import control, faults, observe, topology
from bgplb_lab.counting import Counts
from bgplb_lab.probes import Prober, ProbeRun, RouteWatch
from bgplb_lab.scenario import EDGE, OWNER
from bgplb_lab.world import World

OTHER = "gw-b"
QUIET_PROBES = 500
LONG_S = 40.0
DETECTION_MS = float(topology.BFD_INTERVAL_MS * topology.BFD_MULTIPLIER)
"""What BFD needs by its own numbers: the floor of a fault of which the unmanaged prefix feels nothing."""


@dataclass(frozen=True)
class Seen:
    """What a fault did. `states` are those entered since before it; `during` and `since_heal` are its packets."""

    before: dict[str, Any]
    states: tuple[str, ...]
    machine: dict[str, Any]
    during: Counts
    since_heal: Counts
    floor_ms: float | None
    restless_s: float

    @property
    def owner(self) -> str:
        """Who has the pool at the end."""
        return str(self.machine["owner"])

    @property
    def lost(self) -> int:
        """Of all probes, from before the fault to after its cure."""
        return self.during.lost + self.since_heal.lost


def within(counts: Counts, floor_ms: float | None, bound: float) -> None:
    """Assert that the outage is at most `bound` times the floor, without what the probes' sender was late by itself.

    Where it is not, and that sender, which comes before all else, had to pause longer than a BFD interval, then nothing
    on this machine was on time, BFD included: skipped by name.
    """
    assert floor_ms is not None, "no floor was seen"
    ratio = (counts.outage_ms - counts.gap_in_outage_ms) / floor_ms
    if ratio > bound and counts.sched_gap_ms > topology.BFD_INTERVAL_MS:
        pytest.skip(f"needs a quieter machine: the probes' sender had to pause for {counts.sched_gap_ms:.0f} ms")
    assert ratio <= bound, f"{counts.outage_ms:.0f} ms are {ratio:.2f} x the floor of {floor_ms:.0f} ms, not {bound}"


def went(lab: World, before: dict[str, Any]) -> tuple[str, ...]:
    """The states entered since `before`."""
    return observe.states_since(observe.pool(lab), observe.last_seq(before))


def condition(lab: World, name: str) -> bool | None:
    """True once the pool says so, None before: for `control.wait_for`."""
    return True if any(name in str(found) for found in observe.pool(lab)["conditions"]) else None


def moved(lab: World) -> bool | None:
    """True once the other gateway has the pool and serves it."""
    return True if observe.situation(lab, OTHER, with_standby=False)[0] is not None else None


def number_at(run: ProbeRun, stamp_ns: int) -> int:
    """The probe that is due at that stamp."""
    return max(0, int((stamp_ns - run.start_ns) / (run.interval_ms * 1e6)))


def suffer(
    lab: World,
    before: dict[str, Any],
    name: str,
    node: str,
    value: str | None = None,
    *,
    until: Callable[[], object | None] | None = None,
    last_s: float = 2.0,
    ends_at: str | None = OWNER,
) -> Seen:
    """Strike under probes, wait `until` something is so (or `last_s`), heal, wait for a settled pool with a standby."""
    watch = RouteWatch(lab, EDGE)
    prober = Prober(lab)
    prober.wait_until(QUIET_PROBES)
    t0_ns = faults.strike(lab, name, node, value)
    if until is None:
        time.sleep(last_s)
    else:
        # Asking a replica costs it time: the first look comes after the move.
        prober.wait_until(prober.due_now() + QUIET_PROBES)
        control.wait_for(f"what {name} on {node} must lead to", until, LONG_S, 0.1)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    fell_ns = watch.first_after(t0_ns, "del", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX)
    healing_ns = time.monotonic_ns()
    if faults.FAULTS[name].lasts:
        faults.heal(lab, name, node, value)
    machine = observe.wait_settled(lab, LONG_S, ends_at)
    settled_ns = time.monotonic_ns()
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    run = prober.stop()
    if node != EDGE or name not in ("edge-reboot", "power-cut"):
        watch.stop()
    middle = number_at(run, healing_ns)
    return Seen(
        before,
        observe.states_since(observe.pool(lab), observe.last_seq(before)),
        machine,
        run.cut(0, middle).counts,
        run.cut(middle, len(run.sent_ns)).counts,
        None if fell_ns is None else (fell_ns - t0_ns) / 1e6,
        (settled_ns - healing_ns) / 1e9,
    )
