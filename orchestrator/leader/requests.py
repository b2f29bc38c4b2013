"""Operators' requests: checked against the state they meet, then put through the same table as everything else."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fsm.evaluate import PoolView, candidates
from fsm.events import Event, PoolEvent
from fsm.records import GatewayDrain, PoolRecord, Request
from fsm.types import PoolState
from orchestrator.leader.knowledge import Knowledge
from orchestrator.leader.writes import DropSpec, SetSpec, Write
from orchestrator.listing import few
from orchestrator.store.records import DRAIN_KIND

RESTING = (PoolState.ACTIVE_HEALTHY, PoolState.IDLE)
PRUNE = "prune"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a request comes to: an answer, and what follows if it was accepted.

    `event` and `record` are for the pool that it names, `writes` for everything else.
    """

    accepted: bool
    answer: str
    event: Event | None = None
    record: PoolRecord | None = None
    writes: tuple[Write, ...] = ()


def refuse(answer: str) -> Decision:
    """A refusal; `answer` says why and what would help."""
    return Decision(False, answer)


def decide(request: Request, known: Knowledge, views: Mapping[str, PoolView]) -> Decision:
    """The decision on a request. Pools: drain, move, hold, release. Gateways: gateway-drain, gateway-undrain."""
    if request.verb in ("gateway-drain", "gateway-undrain"):
        return _gateway(request, known)
    if request.verb not in ("drain", "move", "hold", "release"):
        return refuse(f"unknown request {request.verb!r}")
    record, view = known.machines.get(request.subject), views.get(request.subject)
    if record is None or view is None:
        return refuse(f"no pool {request.subject}; there are: {few(known.machines)}")
    if record.state == PoolState.TERMINATING:
        return refuse(f"pool {record.name} is being deleted")
    if request.verb in ("drain", "move"):
        return _move(request, record, view)
    if request.verb == "hold":
        return _hold(request, record)
    return _release(record, view)


def _move(request: Request, record: PoolRecord, view: PoolView) -> Decision:
    if record.state not in RESTING:
        hint = {PoolState.HELD: "release it first", PoolState.STRANDED: "it moves by itself once a gateway is ready"}
        return refuse(
            f"pool {record.name} is {record.state}: {hint.get(PoolState(record.state), 'wait for it to settle')}"
        )
    ready = candidates(record, view, (record.owner,))
    if request.target == record.owner:
        return refuse(f"pool {record.name} is on {record.owner} already")
    if request.target is not None and request.target not in view.gateways:
        return refuse(f"no gateway {request.target}; there are: {few(view.gateways)}")
    if request.target is not None and request.target not in ready:
        lacking = ", ".join(view.gateways[request.target].not_ready)
        return refuse(f"{request.target} is not ready: {lacking or view.gateways[request.target].judgement}")
    if not ready:
        return refuse(f"no other gateway is ready to take pool {record.name}; see 'bgplb status'")
    target = request.target or ready[0]
    event = Event(PoolEvent.MOVE_WANTED, _cause(request), target=target)
    return Decision(True, f"pool {record.name} moves from {record.owner} to {target}", event)


def _hold(request: Request, record: PoolRecord) -> Decision:
    if record.hold_request or record.state == PoolState.HELD:
        return refuse(f"pool {record.name} is held already: {record.hold_request or 'by its manifest'}")
    held = replace(record, hold_request=_cause(request))
    resting = record.state in (*RESTING, PoolState.PENDING, PoolState.STRANDED)
    when = "now" if resting else "at the end of the move that is under way"
    return Decision(True, f"pool {record.name} is held {when}", record=held)


def _release(record: PoolRecord, view: PoolView) -> Decision:
    if not record.hold_request:
        if view.spec is not None and view.spec.hold:
            return refuse(f"pool {record.name} is held by its manifest: set hold to false there")
        return refuse(f"pool {record.name} is not held")
    by_manifest = view.spec is not None and view.spec.hold
    rest = "; its manifest still holds it" if by_manifest else ""
    return Decision(True, f"pool {record.name} is released{rest}", record=replace(record, hold_request=""))


def _gateway(request: Request, known: Knowledge) -> Decision:
    gateways = {name for group in known.groups().values() for name in group.gateways}
    drained = request.subject in known.drains()
    if request.subject not in gateways:
        return refuse(f"no gateway {request.subject}; there are: {few(gateways)}")
    if request.verb == "gateway-drain":
        if drained:
            return refuse(f"gateway {request.subject} is drained already")
        drain = GatewayDrain(request.subject, request.reason, request.by)
        owned = sorted(r.name for r in known.machines.values() if r.owner == request.subject)
        answer = f"gateway {request.subject} is drained; it carries {', '.join(owned) or 'no pool'}"
        return Decision(True, answer, writes=(SetSpec(DRAIN_KIND, request.subject, drain),))
    if not drained:
        return refuse(f"gateway {request.subject} is not drained")
    return Decision(
        True, f"gateway {request.subject} may carry pools again", writes=(DropSpec(DRAIN_KIND, request.subject),)
    )


def _cause(request: Request) -> str:
    by = f" by {request.by}" if request.by else ""
    return f"{request.verb}{by}: {request.reason}" if request.reason else f"{request.verb}{by}"
