"""Plays a scenario on a lab that stands, under probes, and judges what came of it."""

import time
from dataclasses import dataclass
from typing import Any

from bgplb_lab import absence, faults, observe, report, roles, topology
from bgplb_lab.checks import Check
from bgplb_lab.counting import Counts
from bgplb_lab.probes import Prober, RouteWatch
from bgplb_lab.scenario import AFTER_PROBES, EDGE, MOVE_TIMEOUT_S, OWNER, settled_at_owner, standing
from bgplb_lab.script import Script, Step
from bgplb_lab.world import World

LEAD_PROBES = 1_000
DETECTION_MS = topology.BFD_INTERVAL_MS * topology.BFD_MULTIPLIER


@dataclass(frozen=True)
class Outcome:
    """What a scenario left: `owner` at the end, owners one after the other, packets, and the floor if one was seen."""

    owner: str
    owners: tuple[str, ...]
    executed: int
    states: tuple[str, ...]
    counts: Counts
    floor_ms: float | None

    @property
    def moves(self) -> int:
        """Changes of the owner."""
        return len(self.owners) - 1

    @property
    def outage_per_floor(self) -> float | None:
        """The longest outage as a multiple of the floor, without what the probes' sender was late by itself."""
        return None if self.floor_ms is None else self.outage_per(self.floor_ms)

    def outage_per(self, detection_ms: float) -> float:
        """The same as a multiple of any other time to notice."""
        return round((self.counts.outage_ms - self.counts.gap_in_outage_ms) / detection_ms, 3)


class Stage:
    """One scenario being played. `struck` remembers which machine a role was when its fault struck."""

    def __init__(self, world: World, script: Script) -> None:
        self.world, self.script = world, script
        self.before = settled_at_owner(world, f"scenario {script.name}")
        self.before = observe.wait_armed(world, MOVE_TIMEOUT_S, OWNER)
        self.named = {"active": OWNER, "standby": str(self.before["standby"])}
        self.struck: dict[tuple[str, str], str] = {}
        self.stamps: list[int] = []

    def machine(self, name: str) -> str:
        """The machine meant by a name or a role."""
        return self.named.get(name) or roles.resolve(self.world, name)

    def play(self) -> Outcome:
        """All steps under probes; raises LabError when a wait is in vain."""
        watch = RouteWatch(self.world, EDGE)
        prober = Prober(self.world)
        prober.wait_until(LEAD_PROBES)
        for step in self.script.steps:
            self.perform(step)
        prober.wait_until(prober.due_now() + AFTER_PROBES)
        counts = prober.stop().counts
        machine = observe.pool(self.world)
        seq = observe.last_seq(self.before)
        return Outcome(
            str(machine["owner"]),
            owners(machine, seq, OWNER),
            absence.executed(machine, seq),
            observe.states_since(machine, seq),
            counts,
            self.floor_ms(watch),
        )

    def perform(self, step: Step) -> None:
        """One step."""
        if step.verb == "pause_ms":
            time.sleep(step.pause_ms / 1000)
            return
        text = " ".join(part for part in (step.verb, step.what, step.value, step.on) if part)
        self.world.say(f"{step.where}: {text}")
        if step.verb == "fault":
            machine = self.struck[step.what, step.on] = self.machine(step.on)
            self.stamps.append(faults.strike(self.world, step.what, machine, step.value))
        elif step.verb == "heal":
            faults.heal(self.world, step.what, self.struck[step.what, step.on], step.value)
        elif step.verb == "move":
            order = ("pool", "move", topology.POOL, "--to", self.machine(step.on), "--reason", self.script.name)
            self.world.inside(topology.ORCHESTRATORS[0], self.world.programs.bgplb, *order, timeout_s=MOVE_TIMEOUT_S)
        else:
            owner = None if step.on == "any" else self.machine(step.on)
            observe.wait_settled(self.world, step.within_s, owner, step.with_standby)

    def floor_ms(self, watch: RouteWatch) -> float | None:
        """From the fault before it to the first deletion of the unmanaged prefix; None if it stayed or all was lost."""
        if not self.stamps:
            return None
        fell_ns = watch.first_after(self.stamps[0], "del", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX)
        if fell_ns is None:
            return None
        return (fell_ns - max(stamp for stamp in self.stamps if stamp <= fell_ns)) / 1e6


def owners(machine: dict[str, Any], seq: int, first: str) -> tuple[str, ...]:
    """The owners after history entry `seq`, each once in a row, `first` included."""
    found = [first]
    for entry in machine["history"]:
        if entry["seq"] > seq and entry["owner"] and entry["owner"] != found[-1]:
            found.append(str(entry["owner"]))
    return tuple(found)


def judge(script: Script, outcome: Outcome, named: dict[str, str]) -> tuple[Check, ...]:
    """One check for each thing that the scenario expects."""
    wanted = script.expect
    ratio, outage_s = outcome.outage_per_floor, outcome.counts.outage_ms / 1000
    checks = []
    if wanted.owner is not None:
        owner = named.get(wanted.owner, wanted.owner)
        checks.append(Check("owner", outcome.owner == owner, f"{outcome.owner}, wanted {owner}"))
    if wanted.moves is not None:
        path = " -> ".join(outcome.owners)
        checks.append(Check("moves", outcome.moves == wanted.moves, f"{outcome.moves} ({path}), wanted {wanted.moves}"))
    if wanted.moves_max is not None:
        ok = outcome.moves <= wanted.moves_max
        checks.append(Check("moves_max", ok, f"{outcome.moves}, at most {wanted.moves_max}"))
    if wanted.executed is not None:
        ok = outcome.executed == wanted.executed
        checks.append(Check("executed", ok, f"{outcome.executed} by the edge itself, wanted {wanted.executed}"))
    if wanted.lost_max is not None:
        ok = outcome.counts.lost <= wanted.lost_max
        checks.append(Check("lost_max", ok, f"{outcome.counts.lost} lost, at most {wanted.lost_max}"))
    if wanted.outage_per_floor_max is not None:
        ok = ratio is not None and ratio <= wanted.outage_per_floor_max
        detail = "no floor was seen" if ratio is None else f"{ratio}, at most {wanted.outage_per_floor_max}"
        checks.append(Check("outage_per_floor_max", ok, detail))
    if wanted.outage_per_detection_max is not None:
        detections = outcome.outage_per(DETECTION_MS)
        ok = detections <= wanted.outage_per_detection_max
        detail = f"{detections}, at most {wanted.outage_per_detection_max}"
        checks.append(Check("outage_per_detection_max", ok, detail))
    if wanted.outage_s_max is not None:
        ok = outage_s <= wanted.outage_s_max
        checks.append(Check("outage_s_max", ok, f"{outage_s:.1f} s, at most {wanted.outage_s_max:g} s"))
    return tuple(checks)


def record(name: str, outcome: Outcome, checks: tuple[Check, ...]) -> dict[str, Any]:
    """The record of a scenario, schema 1."""
    return {
        "schema": report.SCHEMA,
        "scenario": name,
        "owner": outcome.owner,
        "owners": list(outcome.owners),
        "moves": outcome.moves,
        "plan_executed": outcome.executed,
        "states": list(outcome.states),
        "probe": report.probe_json(outcome.counts),
        "floor_ms": None if outcome.floor_ms is None else round(outcome.floor_ms, 3),
        "ratio": outcome.outage_per_floor,
        "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks],
    }


def play(world: World, script: Script, keep: bool = False) -> dict[str, Any]:
    """A lab for one scenario; answers its record, schema 1. Raises LabError when a wait is in vain."""
    with standing(world, keep):
        world.say(f"{script.name}: {script.teaches}")
        stage = Stage(world, script)
        outcome = stage.play()
    return record(script.name, outcome, judge(script, outcome, stage.named))
