"""What can happen to a pool, as the table sees it: judgements, not raw observations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class PoolEvent(StrEnum):
    """Past tense: something is so now. `fsm.evaluate` derives them from the records, level by level."""

    CANDIDATE_READY = "CandidateReady"
    OWNER_UNFIT = "OwnerUnfit"
    MOVE_WANTED = "MoveWanted"
    TARGET_LOST = "TargetLost"
    OLD_PATH_REMOVED = "OldPathRemoved"
    NEW_PATH_INSTALLED = "NewPathInstalled"
    TARGET_PREPARED = "TargetPrepared"
    ANNOUNCED = "Announced"
    DEADLINE_PASSED = "DeadlinePassed"
    OWNER_RECOVERED = "OwnerRecovered"
    PLAN_OUTDATED = "PlanOutdated"
    PLAN_EXECUTED = "PlanExecuted"
    PLAN_SUPERSEDED = "PlanSuperseded"
    HOLD_REQUESTED = "HoldRequested"
    HOLD_RELEASED = "HoldReleased"
    DELETE_REQUESTED = "DeleteRequested"
    PATHS_REMOVED = "PathsRemoved"
    BECAME_EMPTY = "BecameEmpty"
    BECAME_USED = "BecameUsed"
    ADDRESSES_CHANGED = "AddressesChanged"
    EDGE_RENEWED = "EdgeRenewed"


@dataclass(frozen=True, slots=True)
class Event:
    """One event for one machine.

    `cause` is a short token or an operator's reason; `target` the gateway it speaks of; `epoch` only for a plan that
    was carried out; `serves` says that packets pass through the owner although something is missing; `phases_ms` are
    times that one host measured on its own clock; `addresses` the prefixes that the pool has now; `targets` the
    gateways that a plan should name, next first, or the edges that have lost their memory.
    """

    name: PoolEvent
    cause: str
    target: str | None = None
    epoch: int | None = None
    serves: bool = False
    addresses: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)
    phases_ms: Mapping[str, float] = field(default_factory=dict)
