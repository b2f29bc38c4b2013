"""Counting probes: pure functions from stamps to figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

LATE_AFTER_MS = 20.0


@dataclass(frozen=True)
class SchedulingGap:
    """A pause of the sender: at which ms after its start, and how many ms between two sends."""

    at_ms: float
    gap_ms: float


@dataclass(frozen=True)
class Counts:
    """What became of a run of numbered probes.

    `lost` were never answered, `late` were answered after `late_after_ms`; both count as lost for the outage, which is
    the longest run of such numbers x interval. `outage_first` is the number with which that run begins (None when there
    is no such run). `families`: the same by IP version, where several were asked; a number is then answered when it
    was answered over each of them.
    """

    interval_ms: float
    sent: int
    lost: int
    late: int
    outage_ms: float
    outage_first: int | None
    sched_gaps: tuple[SchedulingGap, ...]
    families: Mapping[str, "Counts"] = field(default_factory=dict)

    @property
    def sched_gap_ms(self) -> float:
        """The longest pause of the sender above twice the interval, 0 when there was none."""
        return max((gap.gap_ms for gap in self.sched_gaps), default=0.0)

    @property
    def gap_in_outage_ms(self) -> float:
        """The longest of those pauses that touch the outage: by so much it may seem longer than it was."""
        if self.outage_first is None:
            return 0.0
        begin_ms = self.outage_first * self.interval_ms
        end_ms = begin_ms + self.outage_ms
        touching = (g.gap_ms for g in self.sched_gaps if g.at_ms <= end_ms and g.at_ms + g.gap_ms >= begin_ms)
        return max(touching, default=0.0)


def arrivals(sent: int, answers: Iterable[tuple[int, int]]) -> list[int | None]:
    """First arrival in ns per number, None for those never answered; numbers that were not sent are ignored."""
    first: list[int | None] = [None] * sent
    for number, stamp_ns in answers:
        if 0 <= number < sent and first[number] is None:
            first[number] = stamp_ns
    return first


def answered_by_all(arrivals_by_family: Iterable[Sequence[int | None]]) -> list[int | None]:
    """Per number the last of the arrivals, None where one is missing. Raises ValueError when the lengths differ."""
    return [
        None if any(stamp is None for stamp in stamps) else max(stamp for stamp in stamps if stamp is not None)
        for stamps in zip(*arrivals_by_family, strict=True)
    ]


def answered_in_time(
    sent_ns: Sequence[int], arrived_ns: Sequence[int | None], late_after_ms: float = LATE_AFTER_MS
) -> list[bool]:
    """Per sequence number: answered, and not late."""
    limit_ns = int(late_after_ms * 1e6)
    return [
        arrived is not None and arrived - sent <= limit_ns for sent, arrived in zip(sent_ns, arrived_ns, strict=True)
    ]


def longest_run(good: Sequence[bool]) -> tuple[int | None, int]:
    """First number and length of the longest run of False; the earliest of equals; (None, 0) when there is none."""
    best_first: int | None = None
    best_length = length = 0
    for number, ok in enumerate(good):
        length = 0 if ok else length + 1
        if length > best_length:
            best_first, best_length = number - length + 1, length
    return best_first, best_length


def scheduling_gaps(sent_ns: Sequence[int], interval_ms: float) -> tuple[SchedulingGap, ...]:
    """Pauses between two sends longer than twice the interval."""
    found = []
    for earlier, later in pairwise(sent_ns):
        gap_ms = (later - earlier) / 1e6
        if gap_ms > 2 * interval_ms:
            found.append(SchedulingGap((earlier - sent_ns[0]) / 1e6, gap_ms))
    return tuple(found)


def count(
    sent_ns: Sequence[int],
    arrived_ns: Sequence[int | None],
    interval_ms: float,
    late_after_ms: float = LATE_AFTER_MS,
) -> Counts:
    """Count one run; `arrived_ns` has a place per number sent. Raises ValueError when the lengths differ."""
    good = answered_in_time(sent_ns, arrived_ns, late_after_ms)
    lost = sum(1 for arrived in arrived_ns if arrived is None)
    first, length = longest_run(good)
    late = len(good) - sum(good) - lost
    return Counts(
        interval_ms, len(sent_ns), lost, late, length * interval_ms, first, scheduling_gaps(sent_ns, interval_ms)
    )


def nearest_rank(values: Sequence[float], percent: float) -> float:
    """The percentile by nearest rank: the smallest value such that at least `percent` % are not above it."""
    if not values:
        raise ValueError("no values to rank")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle; raises ValueError for none."""
    if not values:
        raise ValueError("no values to rank")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
