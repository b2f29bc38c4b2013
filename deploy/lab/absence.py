"""Parts of the brain that are taken away before a power cut, so that the edge has only its plan; and given back."""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bgplb_lab import faults, observe, roles
from bgplb_lab.errors import LabError
from bgplb_lab.world import World

ADOPTED = "PlanExecuted"
"""The event by which a leader takes an edge's own move into the record."""
GONE_PROBES = 1_000
"""How long the part is gone before the cut, in numbers of probes."""


class Without(StrEnum):
    """What is not there when the active gateway loses its power."""

    ETCD = "etcd"
    ORCHESTRATORS = "orchestrators"
    LEADER = "leader"


@dataclass
class Absence:
    """One part's absence during one cut; with `part` None all of it does nothing."""

    part: Without | None = None
    struck: tuple[str, str] | None = None

    def before_cut(self, world: World) -> None:
        """Stop the part, unless it is one that dies together with the gateway."""
        if self.part is Without.ETCD:
            self.strike(world, "etcd-stop", "all")
        elif self.part is Without.ORCHESTRATORS:
            self.strike(world, "orchestrators-stop", "all")

    def at_cut(self, world: World) -> None:
        """Kill what dies together with the gateway, a few milliseconds before it: nobody saw the gateway die."""
        if self.part is Without.LEADER:
            self.strike(world, "orchestrator-kill", roles.leader(world))

    def strike(self, world: World, name: str, node: str) -> None:
        """Break it and remember what was broken."""
        faults.strike(world, name, node)
        self.struck = (name, node)

    def end(self, world: World) -> int | None:
        """Start the part again; answers when, None when nothing was missing."""
        if self.struck is None:
            return None
        stamp_ns = time.monotonic_ns()
        faults.heal(world, *self.struck)
        self.struck = None
        return stamp_ns

    def check_moved_alone(self, world: World, target: str) -> None:
        """Raise LabError unless the edge steers to `target` while the part is still missing."""
        if self.part is None:
            return
        seen = observe.steering(world)
        if seen.routes != (target,):
            where = ", ".join(seen.routes) or "nowhere"
            raise LabError(f"without {self.part} the edge steers the pool to {where} and not to {target}")

    def check_adopted(self, times: int) -> None:
        """Raise LabError unless the record has the edge's own move exactly once."""
        if self.part is not None and times != 1:
            raise LabError(f"without {self.part}: {ADOPTED} stands {times} times in the record, and not once")


def executed(machine: dict[str, Any], seq: int) -> int:
    """How many moves that the edge made by itself were adopted after history entry `seq`."""
    return sum(entry["event"] == ADOPTED for entry in machine["history"] if entry["seq"] > seq)
