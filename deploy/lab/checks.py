"""What must hold at the end of a demo: named predicates over collected facts. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bgplb_lab import topology
from bgplb_lab.counting import Counts
from bgplb_lab.observe import Steering

UNPLANNED = ("FailureDetected", "Withdrawn", "PeerUpdated", "StandbyAdvertising", "ActiveHealthy")
PLANNED = ("Draining", "PeerUpdated", "StandbyAdvertising", "ActiveHealthy")
DRAIN_PROBES = 10_000
DRAIN_WINDOW = (2_000, 8_000)
RETURN_LIMIT_S = 10.0


@dataclass(frozen=True)
class Facts:
    """Everything that a demo saw. `moved_*` are probe numbers of the drain, None when the move was not seen."""

    owner: str
    target: str
    states: tuple[str, ...]
    epoch_before: int
    epoch_after: int
    after_cut: Steering
    baseline: Counts
    outage: Counts
    floor_ms: float | None
    return_s: float
    return_states: tuple[str, ...]
    return_probe: Counts
    drain: Counts
    moved_first: int | None
    moved_last: int | None
    left_over: tuple[str, ...]
    foreign_before: Mapping[str, str]
    foreign_after: Mapping[str, str]


@dataclass(frozen=True)
class Check:
    """The verdict on one thing."""

    name: str
    ok: bool
    detail: str


Verdict = tuple[bool, str]


def baseline_is_clean(facts: Facts) -> Verdict:
    """Before the fault every probe is answered, or the rest measures something else."""
    return facts.baseline.sent > 0 and facts.baseline.lost == 0, lost_text(facts.baseline)


def fault_was_felt(facts: Facts) -> Verdict:
    """A cut that costs no packet was no cut."""
    return facts.outage.outage_ms > 0, f"outage {facts.outage.outage_ms:.0f} ms"


def states_in_order(facts: Facts) -> Verdict:
    """An unplanned move passes all its states, each once."""
    return facts.states == UNPLANNED, " > ".join(facts.states) or "no transition"


def epoch_is_higher(facts: Facts) -> Verdict:
    """Each owner change raises the fencing number."""
    return facts.epoch_after > facts.epoch_before, f"{facts.epoch_before} -> {facts.epoch_after}"


def edge_steers_to_target_only(facts: Facts) -> Verdict:
    """One route for the pool, to the new owner."""
    return facts.after_cut.routes == (facts.target,), f"route to {', '.join(facts.after_cut.routes) or 'nobody'}"


def edge_believes_target_only(facts: Facts) -> Verdict:
    """The pool's prefix is in the AllowedIPs of the new owner and of nobody else."""
    return facts.after_cut.allowed == (facts.target,), f"AllowedIPs of {', '.join(facts.after_cut.allowed) or 'nobody'}"


def floor_is_bfd(facts: Facts) -> Verdict:
    """The edge noticed by BFD and by nothing else: a closed connection takes 3 ms, a hold timer 15 s."""
    if facts.floor_ms is None:
        return False, "the unmanaged prefix was not seen to go"
    low = (topology.BFD_MULTIPLIER - 1) * topology.BFD_INTERVAL_MS
    high = (topology.BFD_MULTIPLIER + 1) * topology.BFD_INTERVAL_MS
    return low <= facts.floor_ms <= high, f"{facts.floor_ms:.1f} ms, BFD allows {low} to {high}"


def return_moves_nothing(facts: Facts) -> Verdict:
    """The old owner comes back as a standby, and nothing moves."""
    return facts.return_states == (), f"transitions: {', '.join(facts.return_states) or 'none'}"


def return_loses_nothing(facts: Facts) -> Verdict:
    """No packet is lost when the old owner comes back."""
    return facts.return_probe.sent > 0 and facts.return_probe.lost == 0, lost_text(facts.return_probe)


def return_is_quick(facts: Facts) -> Verdict:
    """Ready as a standby in time."""
    return facts.return_s <= RETURN_LIMIT_S, f"ready after {facts.return_s:.1f} s, at most {RETURN_LIMIT_S:g}"


def drain_moves_in_the_window(facts: Facts) -> Verdict:
    """The whole move lies between probes that were sent before it and after it."""
    low, high = DRAIN_WINDOW
    first, last = facts.moved_first, facts.moved_last
    inside = first is not None and last is not None and low <= first <= last <= high
    return inside, f"asked for at probe {first}, settled at probe {last}, allowed {low} to {high}"


def drain_loses_nothing(facts: Facts) -> Verdict:
    """A planned move costs no packet."""
    return facts.drain.sent == DRAIN_PROBES and facts.drain.lost == 0, lost_text(facts.drain)


def nothing_is_left(facts: Facts) -> Verdict:
    """After a cut of its links and its return, the old owner has nothing of the pool."""
    return not facts.left_over, "; ".join(facts.left_over) or "nothing left"


def foreign_is_untouched(facts: Facts) -> Verdict:
    """Rules, routes, nft tables and BIRD protocols that only look like ours are as they were."""
    gone = [name for name, text in facts.foreign_before.items() if facts.foreign_after.get(name) != text or not text]
    planted = bool(facts.foreign_before)
    return planted and not gone, f"changed: {', '.join(gone)}" if gone else f"{len(facts.foreign_before)} as planted"


def lost_text(counts: Counts) -> str:
    """A sentence on a run of probes."""
    pause = f"sender's longest pause {counts.sched_gap_ms:.1f} ms"
    return f"{counts.sent} sent, {counts.lost} lost, {counts.late} late, {pause}"


CHECKS: tuple[Callable[[Facts], Verdict], ...] = (
    baseline_is_clean,
    fault_was_felt,
    states_in_order,
    epoch_is_higher,
    edge_steers_to_target_only,
    edge_believes_target_only,
    floor_is_bfd,
    return_moves_nothing,
    return_loses_nothing,
    return_is_quick,
    drain_moves_in_the_window,
    drain_loses_nothing,
    nothing_is_left,
    foreign_is_untouched,
)


def judge(facts: Facts) -> tuple[Check, ...]:
    """Every check, in order; the name is the predicate's with blanks."""
    return tuple(Check(check.__name__.replace("_", " "), *check(facts)) for check in CHECKS)
