"""The words of the core: states, witnesses, judgements, profiles. Names are those of the records and the documents."""

from dataclasses import dataclass
from enum import StrEnum


class PoolState(StrEnum):
    """Where a pool stands. Every state's meaning is in `fsm.pool.STATES`, next to its deadline."""

    PENDING = "Pending"
    ACTIVE_HEALTHY = "ActiveHealthy"
    FAILURE_DETECTED = "FailureDetected"
    WITHDRAWN = "Withdrawn"
    PEER_UPDATED = "PeerUpdated"
    STANDBY_ADVERTISING = "StandbyAdvertising"
    STRANDED = "Stranded"
    DRAINING = "Draining"
    HELD = "Held"
    IDLE = "Idle"
    TERMINATING = "Terminating"


class Session(StrEnum):
    """What an edge knows of its BGP and BFD session with a gateway."""

    UP = "up"
    """BGP Established and BFD Up."""
    DOWN = "down"
    """It was up in this BIRD process, and fell."""
    UNKNOWN = "unknown"
    """BIRD is silent or new, the session was never up in it, or all sessions of the edge fell in one instant."""


class Probe(StrEnum):
    """What the data-path probe says of a gateway."""

    PASSING = "passing"
    DOUBTFUL = "doubtful"
    """The last probe that was due is unanswered, the one before was answered."""
    FAILING = "failing"
    """The last two that were due are unanswered."""
    UNKNOWN = "unknown"
    """No probe was due yet, or nobody fresh is probing."""


class Heartbeat(StrEnum):
    """How long ago an agent's heartbeat committed in etcd, as the leader saw it."""

    FRESH = "fresh"
    STALE = "stale"
    EXPIRED = "expired"
    """Its lease is gone."""


class Judgement(StrEnum):
    """What the witnesses of one gateway amount to (docs/architecture.md, "Judgement")."""

    HEALTHY = "healthy"
    UNFIT = "unfit"
    DEAD = "dead"
    """Unfit beyond doubt: session down and probe failing. Never damped."""
    FLAP = "flap"
    """Session down, probe passing: move it with no packet lost."""
    SUSPECT = "suspect"
    """Traffic is fine, control is lost."""
    NONE = "none"
    """The witnesses do not suffice: nothing moves."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Timing of BFD and of the probe towards a gateway; both use one interval."""

    interval_ms: int
    multiplier: int
    probe_interval_ms: int


PROFILES = {
    "fast": Profile(interval_ms=50, multiplier=3, probe_interval_ms=50),
    "lan": Profile(interval_ms=10, multiplier=3, probe_interval_ms=20),
    "wan": Profile(interval_ms=300, multiplier=3, probe_interval_ms=300),
}
"""Named profiles: a cut link is noticed after interval x multiplier (RFC 5880 section 6.8.4)."""

PROBE_UNFIT_AFTER = 5
"""Unanswered probes in a row after which the probe alone makes a gateway unfit."""

PROBE_SETTLED_AFTER = 50
"""Answered probes in a row after which a gateway counts as good again."""

STALE_AFTER_MS = 1000
"""Age of the last heartbeat from which an agent is stale, in milliseconds."""

SUSPECT_MOVE_AFTER_MS = 5000
"""How long a gateway is Suspect before `suspectAction: move` acts, in milliseconds."""

PARTIAL_AFTER_MS = 500
"""How long edges must disagree on a gateway until it is said, in milliseconds: in a power cut they do for a moment."""

DAMPING_WINDOW_MS = 60_000
DAMPING_FREE_MOVES = 3
DAMPING_FIRST_MS = 1000
DAMPING_LONGEST_MS = 300_000


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment of the leader: its own clock for arithmetic, the wall clock only for people.

    `now_s` is CLOCK_BOOTTIME in seconds and is never compared with another host's;
    `wall_ms` is Unix time in milliseconds and is never used for a decision.
    """

    now_s: float
    wall_ms: int
