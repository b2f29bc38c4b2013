"""A pool as its edge has it: what was read back of the last command, and the stamps of the last move.

All stamps are of one clock, the edge's: the phases of a move and the estimate of its outage are differences of them.
"""

from dataclasses import dataclass, field

from dataplane.probe import ProbeState
from fsm.fence import Accepted
from fsm.records import EdgePoolReport
from orchestrator.agents.plans import next_plan
from orchestrator.agents.steering import Sight


@dataclass(slots=True)
class PoolAtEdge:
    """`sight` is None until the command in force was read back; `error` says why it could not be carried out."""

    sight: Sight | None = None
    error: str = ""
    removed: bool = False
    _left_s: float | None = None
    """When the old gateway last answered a probe, while the outage is not over."""
    _moved_s: float | None = None
    _outage_ms: float | None = None
    _lead_ms: dict[str, float] = field(default_factory=dict)
    """Phases before the edge acted: until the session fell, and from there to the command or plan."""

    def leave(self, probe: ProbeState | None, fell_s: float | None, now: float) -> None:
        """A move away from a gateway begins; `probe` and `fell_s` are of that gateway."""
        self._outage_ms, self._moved_s, self._lead_ms = None, None, {}
        self._left_s = probe.judgement.last_answered_s if probe else None
        if self._left_s is not None and fell_s is not None and fell_s <= now:
            self._lead_ms = {"detect": (fell_s - self._left_s) * 1000, "order": (now - fell_s) * 1000}
        if probe is not None and probe.word == "passing":
            self._outage_ms, self._left_s = 0.0, None

    def moved(self, now: float) -> None:
        """The move is in the kernel."""
        if self._left_s is not None and self._moved_s is None:
            self._moved_s = now

    @property
    def unanswered(self) -> bool:
        """It was moved after an outage, and nothing has answered since."""
        return self._left_s is not None and self._moved_s is not None

    def settle_outage(self, probe: ProbeState | None) -> bool:
        """Whether the outage is over: the new gateway has answered a probe since the move. `probe` is its."""
        answered = probe.judgement.last_answered_s if probe else None
        if self._left_s is None or self._moved_s is None or answered is None or answered < self._moved_s:
            return False
        self._outage_ms, self._left_s = round((self._moved_s - self._left_s) * 1000, 1), None
        return True

    def phases(self) -> dict[str, float]:
        """Phases of the last move as read back, in milliseconds."""
        return dict(self.sight.phases_ms) if self.sight else {}

    def report(self, accepted: Accepted, announced_by: tuple[str, ...]) -> EdgePoolReport:
        """What the leader is told. `announced_by`: gateways whose announcement is in the signal table."""
        command, sight, plan = accepted.command, self.sight, next_plan(accepted.command)
        return EdgePoolReport(
            epoch=command.epoch,
            owner=command.owner,
            withdrawn=bool(sight and sight.withdrawn),
            installed=bool(sight and sight.installed),
            removed=bool(self.removed and sight and not sight.sends_to and not sight.accepts_from),
            lingering=bool(sight and sight.accepts_from - {command.owner or ""}),
            announced_by=announced_by,
            executed_plan=command.epoch if accepted.executed else None,
            armed_plan=plan.epoch if plan else None,
            revision=accepted.mod_revision,
            carried_out=accepted.carried_out,
            phases_ms={name: round(value, 2) for name, value in {**self.phases(), **self._lead_ms}.items()},
            outage_estimate_ms=self._outage_ms,
            error=self.error,
        )
