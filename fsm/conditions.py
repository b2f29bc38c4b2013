"""What is to be said of a pool besides its state: conditions, standby, and what each edge last acknowledged."""

from collections.abc import Sequence
from dataclasses import replace

from fsm.evaluate import WITH_PAST, PoolView, all_edges_fresh, candidates, damped, incarnation_of, wants_hold
from fsm.records import Condition, EdgePoolReport, EdgeView, PoolRecord
from fsm.types import Heartbeat, Judgement, PoolState


def observe(record: PoolRecord, view: PoolView) -> PoolRecord:
    """The record with everything that is derived from observation brought up to date; equal when nothing changed."""
    standby = next(iter(candidates(record, view, (record.owner, record.target))), None)
    edges, found = _edges(record, view), conditions(record, view)
    addresses = record.addresses or (view.spec.addresses if view.spec else ())
    if (standby, edges, found, addresses) == (record.standby, record.edges, record.conditions, record.addresses):
        return record  # as nearly always: a thousand pools are looked at every few seconds
    return replace(record, standby=standby, edges=edges, conditions=found, addresses=addresses)


def conditions(record: PoolRecord, view: PoolView) -> tuple[Condition, ...]:
    """Conditions that hold, in a fixed order."""
    found = _standbys(record, view)
    owner = view.gateways.get(record.owner or "")
    gone = [name for name, sight in view.edges.items() if sight.heartbeat is not Heartbeat.FRESH]
    if gone or not all_edges_fresh(view):
        found.append(Condition("EdgeUnreachable", "HeartbeatLost", ", ".join(gone) or "no edge is known"))
    if record.state == PoolState.ACTIVE_HEALTHY and record.announce and (deaf := _not_announced(record, view)):
        text = f"no announcement by {record.owner} at {', '.join(deaf)}"
        found.append(Condition("AdvertisementPending", "NotSeenAtEdge", text))
    if owner is not None and owner.judgement is Judgement.SUSPECT:
        found.append(Condition("Suspect", "ControlLost", f"traffic through {owner.name} is fine, its agent is silent"))
    if owner is not None and owner.down_at:
        text = f"{owner.name} is down at {', '.join(owner.down_at)}, not at every edge: no move"
        found.append(Condition("PartialPath", "DownAtSomeEdges", text))
    if record.state == PoolState.HELD and (armed := _perhaps_armed(view)):
        text = f"not acknowledged by {', '.join(armed)}, where a plan may still be carried out"
        found.append(Condition("HoldPending", "PlanNotYetRevoked", text))
    if wants_hold(record, view) and record.state not in (PoolState.HELD, PoolState.TERMINATING):
        found.append(Condition("HoldPending", "MoveUnderWay", "the hold applies at the end of the move"))
    if view.intent_missing:
        text = "kept; put its manifest back, or delete it with 'bgplb manifests apply DIR --prune'"
        found.append(Condition("IntentMissing", "NotInFolder", text))
    if damped(record, view.now_s):
        found.append(Condition("Damped", "TooManyMoves", f"{len(record.moves_s)} moves within a minute"))
    errors = [f"{name}: {r.error}" for name, r in view.edge_reports.items() if r.error]
    errors += [f"{name}: {r.error}" for name, r in view.node_reports.items() if r.error]
    if errors:
        found.append(Condition("AgentError", "Refused", "; ".join(errors)))
    return tuple(found)


def _not_announced(record: PoolRecord, view: PoolView) -> list[str]:
    """Edges that do not hear the owner announce; one that is silent itself is not known to be deaf."""
    fresh = (name for name, sight in view.edges.items() if sight.heartbeat is Heartbeat.FRESH)
    reports = {name: view.edge_reports.get(name) for name in fresh}
    return [name for name, r in reports.items() if r is not None and record.owner not in r.announced_by]


def _perhaps_armed(view: PoolView) -> list[str]:
    """Edges that are told of a plan, or have not said yet that they obey the order which no longer has it.

    That nothing was armed when an edge spoke last says nothing: the order with the plan may have been on its way.
    """
    return [
        name
        for name, (command, revision) in view.orders.items()
        if command.plan or not _obeyed(view.edge_reports.get(name), command.epoch, revision)
    ]


def _obeyed(report: EdgePoolReport | None, epoch: int, revision: int) -> bool:
    return report is not None and report.armed_plan is None and (report.epoch, report.revision) >= (epoch, revision)


def _standbys(record: PoolRecord, view: PoolView) -> list[Condition]:
    """Whether there are as many ready standbys as the group wants; a gateway that the pool is on its way to is none.

    A group that wants none, as one of a single gateway may, is told only when its owner is unfit.
    """
    if record.state == PoolState.STRANDED:
        return [Condition("NoStandby", "OwnerUnfit", "the owner is unfit and no gateway is ready")]
    ready = candidates(record, view, (record.owner, record.target))
    wanted = view.group.standbys if view.group is not None else 1
    if not record.owner or len(ready) >= wanted:
        return []
    why = _why_no_more(record, view, ready)
    if not ready:
        return [Condition("NoStandby", "NoneReady", why)]
    return [Condition("FewStandbys", "FewerThanWanted", f"{len(ready)} of {wanted} are ready; {why}")]


def _why_no_more(record: PoolRecord, view: PoolView, ready: Sequence[str]) -> str:
    others = [g for g in view.gateways.values() if g.name not in (record.owner, *ready)]
    taking_over = {record.target: "taking over"}
    reasons = {g.name: taking_over.get(g.name) or ", ".join(g.not_ready) or str(g.judgement) for g in others}
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "no other gateway"


def _edges(record: PoolRecord, view: PoolView) -> dict[str, EdgeView]:
    edges: dict[str, EdgeView] = {}
    for name, sight in view.edges.items():
        report, known = view.edge_reports.get(name), record.edges.get(name, EdgeView())
        incarnation = _incarnation(known.incarnation, incarnation_of(sight), record.epoch)
        if report is None:
            edges[name] = replace(known, incarnation=incarnation)
            continue
        phase = "installed" if report.installed else "withdrawn" if report.withdrawn else "pending"
        edges[name] = EdgeView(report.epoch, report.owner, "removed" if report.removed else phase, incarnation)
    return edges


def _incarnation(known: str, now: str, epoch: int) -> str:
    """Whom the epoch in force was taken for; `fsm.evaluate` tells when it has to be taken anew."""
    if known.startswith("*"):
        return now or known.removeprefix("*")
    return now if not known and (epoch == 0 or now.endswith(WITH_PAST)) else known
