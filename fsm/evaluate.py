"""Which event follows for a pool from one look at the world. One function a state, most urgent first.

Levels, not edges: called again with the same world and the record that the event led to, it says what comes next, and
None when nothing does. So a leader that takes over half-way needs no memory of what happened before.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fsm.events import Event, PoolEvent
from fsm.placement import rank
from fsm.records import EdgeGatewaySpec, EdgePool, EdgePoolReport, EdgeView, NodePoolReport, Plan, PoolRecord, PoolSpec
from fsm.types import SUSPECT_MOVE_AFTER_MS, Heartbeat, Judgement, PoolState
from fsm.witness import GatewayView, Sight

S, E, J = PoolState, PoolEvent, Judgement
BAD = (J.DEAD, J.UNFIT)
WITH_PAST = "@0"
"""End of the incarnation of an edge that knows what it has accepted; others say from which revision on they obey."""
PLANS = 2
"""Length of a plan chain: the next gateway, and the one after it."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """All that matters to one pool at one instant. `spec` None: it was deleted. `now_s` is the leader's clock."""

    now_s: float
    spec: PoolSpec | None
    group: EdgeGatewaySpec | None
    gateways: Mapping[str, GatewayView] = field(default_factory=dict)
    edges: Mapping[str, Sight] = field(default_factory=dict)
    edge_reports: Mapping[str, EdgePoolReport] = field(default_factory=dict)
    node_reports: Mapping[str, NodePoolReport] = field(default_factory=dict)
    orders: Mapping[str, tuple[EdgePool, int]] = field(default_factory=dict)
    """What each edge is told of the pool, and the revision at which that was written."""
    ready_since_s: Mapping[str, float] = field(default_factory=dict)
    control_trouble: bool = False
    """Most agents look stale at once, or the leader's own writes fail: then a stale heartbeat says nothing."""
    intent_missing: bool = False
    """It was accepted once, and the intent that the leader reads now lacks it."""


def next_event(record: PoolRecord, view: PoolView) -> Event | None:
    """The most urgent event for that record, or None."""
    if (view.spec is None or view.spec.deleted) and record.state != S.TERMINATING:
        return Event(E.DELETE_REQUESTED, "manifest removed")
    executed = _executed_plan(record, view)
    if executed is not None:
        return executed
    superseded = _superseded_plan(record, view)
    if superseded is not None:
        return superseded
    renewed = _edge_renewed(record, view)
    if renewed is not None:
        return renewed
    if view.spec is not None and _addresses_changed(record, view.spec):
        return Event(E.ADDRESSES_CHANGED, "manifest changed", record.owner, addresses=view.spec.addresses)
    return _BY_STATE[PoolState(record.state)](record, view)


# ---- confirmations -----------------------------------------------------------------------------------------------


def _fresh_edges(view: PoolView) -> list[str]:
    return [name for name, sight in view.edges.items() if sight.heartbeat is Heartbeat.FRESH]


def all_edges_fresh(view: PoolView) -> bool:
    """Every edge of the group can be asked."""
    return bool(view.edges) and len(_fresh_edges(view)) == len(view.edges)


def _confirmed(view: PoolView, holds: Callable[[EdgePoolReport], bool]) -> list[EdgePoolReport] | None:
    """The fresh edges' reports if there are any and all of them confirm, else None."""
    reports = [view.edge_reports.get(name) for name in _fresh_edges(view)]
    known = [r for r in reports if r is not None and holds(r)]
    return known if known and len(known) == len(reports) else None


def _phases(reports: Iterable[EdgePoolReport], *names: str) -> dict[str, float]:
    """The slowest edge's time of each phase."""
    times: dict[str, float] = {}
    for report in reports:
        for name in names:
            if name in report.phases_ms:
                times[name] = max(times.get(name, 0.0), report.phases_ms[name])
    return times


def _prepared(record: PoolRecord, view: PoolView, gateway: str | None) -> bool:
    report = view.node_reports.get(gateway or "")
    if report is None or report.epoch != record.epoch or not report.answers:
        return False
    return report.announcing == record.announce


# ---- choices -----------------------------------------------------------------------------------------------------


def candidates(record: PoolRecord, view: PoolView, but: Iterable[str | None] = ()) -> tuple[str, ...]:
    """Gateways that could take the pool now, best first."""
    left_out = set(but)
    return rank(record.name, (g.name for g in view.gateways.values() if g.ready and g.name not in left_out))


def _best(record: PoolRecord, view: PoolView, *but: str | None) -> str | None:
    return next(iter(candidates(record, view, but)), None)


def damped(record: PoolRecord, now_s: float) -> bool:
    """Whether moves of this pool have to wait: within `backoff_ms` of the last one."""
    return bool(record.moves_s) and now_s < record.moves_s[-1] + record.backoff_ms / 1000


def _owner(record: PoolRecord, view: PoolView) -> GatewayView | None:
    return view.gateways.get(record.owner or "")


def _unfit(record: PoolRecord, view: PoolView, target: str | None) -> Event | None:
    owner = _owner(record, view)
    if owner is None or owner.judgement not in BAD:
        return None
    if owner.judgement is J.UNFIT and damped(record, view.now_s):
        return None
    return Event(E.OWNER_UNFIT, f"owner {owner.judgement}", target=target, evidence=owner.evidence)


def _planned(record: PoolRecord, view: PoolView) -> Event | None:
    """A reason to move with no packet lost, and somebody to move to."""
    owner, target = _owner(record, view), _best(record, view, record.owner)
    if target is None:
        return None
    if owner is None:
        gone = view.group is not None and record.owner not in view.group.gateways
        return Event(E.MOVE_WANTED, "gateway removed", target=target) if gone else None
    if owner.drained or owner.leaving:
        cause = "gateway drained" if owner.drained else "gateway shutting down"
        return Event(E.MOVE_WANTED, cause, target=target, evidence=owner.evidence)
    if damped(record, view.now_s):
        return None
    if owner.judgement is J.FLAP:
        return Event(E.MOVE_WANTED, "session down, probe passing", target=target, evidence=owner.evidence)
    if owner.judgement is J.SUSPECT and _suspect_moves(owner, view):
        return Event(E.MOVE_WANTED, "suspect", target=target, evidence=owner.evidence)
    return _preempt(record, view, target)


def _suspect_moves(owner: GatewayView, view: PoolView) -> bool:
    asked = view.group is not None and view.group.suspect_action == "move"
    return asked and owner.suspect_s * 1000 >= SUSPECT_MOVE_AFTER_MS and not view.control_trouble


def _preempt(record: PoolRecord, view: PoolView, target: str) -> Event | None:
    if view.group is None or not view.group.preempt:
        return None
    first = next(iter(rank(record.name, view.group.gateways)), None)
    since = view.ready_since_s.get(target)
    if target != first or since is None or view.now_s - since < view.group.preempt_delay_s:
        return None
    return Event(E.MOVE_WANTED, "preempt", target=target)


def _deadline(record: PoolRecord, view: PoolView, target: str | None, serves: bool = False) -> Event | None:
    """Passed only while every edge can be asked: an unreachable edge suspends it, and it restarts on its return."""
    if record.deadline_s is None or view.now_s < record.deadline_s or not all_edges_fresh(view):
        return None
    back = max((sight.fresh_since_s for sight in view.edges.values()), default=0.0)
    if view.now_s < back + 1.0:
        return None
    return Event(E.DEADLINE_PASSED, f"{record.state} took too long", target=target, serves=serves)


def _executed_plan(record: PoolRecord, view: PoolView) -> Event | None:
    """An edge is ahead of the record: it carried out a plan, or several of a chain, that stand on the epoch in force.

    Every number that a record takes otherwise is above all that were reserved before. So a plan above the record's
    epoch stands on it, whether the record still has that plan or replaced it while the edge was carrying it out; one
    below is superseded, and the edge receives the higher command. Once a backup of the store was put back, the edge
    may be ahead without a plan: what it was told last stands, and nothing moves.
    """
    if record.state in (S.PENDING, S.DRAINING, S.TERMINATING):
        return None
    done = {r.epoch: r for r in view.edge_reports.values() if r.owner and not r.removed}
    done |= {r.executed_plan: r for r in view.edge_reports.values() if r.executed_plan is not None}
    newest = max(done, default=0)
    if newest <= record.epoch:
        return None
    report = done[newest]
    cause = "executed by the edge" if report.executed_plan == newest else "the edge is ahead of the store"
    return Event(E.PLAN_EXECUTED, cause, report.owner, newest, phases_ms=_phases([report], "detect"))


def _superseded_plan(record: PoolRecord, view: PoolView) -> Event | None:
    """An edge carried out a plan while the record was already beyond it, and the history does not tell of that yet."""
    oldest = min(record.plans_told, default=0)
    untold = {
        plan.epoch: (plan, edge)
        for edge, report in view.edge_reports.items()
        for plan in _ends(report.carried_out)
        if oldest < plan.epoch < record.epoch and plan.epoch not in record.plans_told
    }
    if not untold or record.state == S.PENDING:
        return None
    plan, edge = untold[min(untold)]
    evidence = {"plan": str(plan.epoch), "target": plan.target, "edge": edge}
    cause = f"{edge} carried out plan {plan.epoch} for {plan.target}"
    return Event(E.PLAN_SUPERSEDED, cause, plan.target, plan.epoch, evidence=evidence)


def _ends(plans: tuple[Plan, ...]) -> list[Plan]:
    """Without those that the edge went on from to the next of their chain: plans in a row count as one."""
    left = {plan.base for plan in plans}
    return [plan for plan in plans if plan.epoch not in left]


def incarnation_of(sight: Sight) -> str:
    """Who an edge is now; empty while it is not registered."""
    return sight.record.incarnation if sight.record is not None else ""


def _edge_renewed(record: PoolRecord, view: PoolView) -> Event | None:
    """An edge has lost its memory, or is new, since the number in force was taken: that says nothing to it.

    What it did before may have been done under a plan of which nobody heard. A deletion must also outbid an edge that
    is ahead of a store that was put back.
    """
    if not record.epoch or record.state not in (S.ACTIVE_HEALTHY, S.IDLE, S.STRANDED, S.HELD, S.TERMINATING):
        return None
    renewed = _renewed(record, view)
    if renewed:
        return Event(E.EDGE_RENEWED, f"{', '.join(renewed)} began anew", record.owner, targets=renewed)
    ahead = tuple(name for name, report in view.edge_reports.items() if report.epoch > record.epoch)
    if ahead and record.state == S.TERMINATING:
        return Event(E.EDGE_RENEWED, f"{', '.join(ahead)} ahead of the store", targets=ahead)
    return None


def _renewed(record: PoolRecord, view: PoolView) -> tuple[str, ...]:
    return tuple(name for name in _fresh_edges(view) if _is_another(record, name, incarnation_of(view.edges[name])))


def _is_another(record: PoolRecord, edge: str, now: str) -> bool:
    known = record.edges.get(edge, EdgeView()).incarnation
    if not now or now == known or known.startswith("*"):
        return False
    return bool(known) or not now.endswith(WITH_PAST)


def _plan_outdated(record: PoolRecord, view: PoolView) -> Event | None:
    """The plan should name others than it does. While the edge can't be told, or nobody can be judged, it stays.

    A target that is in it stays while it is usable: the edge looks for itself before it moves, and a late heartbeat
    must not take the plan away just when it may be needed. A pool that several edges serve has no plan: they would
    have to agree first.
    """
    if not all_edges_fresh(view) or view.control_trouble:
        return None
    armed = {plan.target for plan in record.plan}
    fit = (g.name for g in view.gateways.values() if g.ready or (g.usable and g.name in armed))
    ranked = tuple(name for name in rank(record.name, fit) if name != record.owner)
    wanted = ranked[:PLANS] if len(view.edges) == 1 else ()
    fits = not record.plan or record.plan[0].base == record.epoch
    if fits and wanted == tuple(plan.target for plan in record.plan):
        return None
    return Event(E.PLAN_OUTDATED, f"next: {', '.join(wanted) or 'nobody'}", targets=wanted)


def _addresses_changed(record: PoolRecord, spec: PoolSpec) -> bool:
    """At rest, with a number that was taken for other prefixes. A record that does not know for which is no proof."""
    if record.state not in (S.ACTIVE_HEALTHY, S.IDLE, S.STRANDED, S.HELD) or not record.epoch:
        return False
    return bool(record.addresses) and spec.addresses != record.addresses


# ---- one function a state ----------------------------------------------------------------------------------------


def _pending(record: PoolRecord, view: PoolView) -> Event | None:
    if wants_hold(record, view):
        return Event(E.HOLD_REQUESTED, _hold_cause(record))
    ready = candidates(record, view)
    sent_to = {report.owner for report in view.edge_reports.values() if report.owner and not report.removed}
    if len(sent_to) == 1 and sent_to <= set(ready):
        return Event(E.CANDIDATE_READY, "the edges send to it already", target=sent_to.pop())
    return Event(E.CANDIDATE_READY, "first ready gateway", target=ready[0]) if ready else None


def _active(record: PoolRecord, view: PoolView) -> Event | None:
    if wants_hold(record, view):
        return Event(E.HOLD_REQUESTED, _hold_cause(record))
    urgent = _unfit(record, view, _best(record, view, record.owner)) or _planned(record, view)
    return urgent or _plan_outdated(record, view)


def _moving(record: PoolRecord, view: PoolView) -> Event | None:
    """FailureDetected and Withdrawn. Confirmation counts first: a move that is done is not thrown away."""
    if record.state == S.FAILURE_DETECTED:
        reports = _confirmed(view, lambda r: r.epoch == record.epoch and r.withdrawn)
        if reports is not None:
            phases = _phases(reports, "detect", "order", "withdraw")
            return Event(E.OLD_PATH_REMOVED, "confirmed", record.target, phases_ms=phases)
    else:
        reports = _confirmed(view, lambda r: r.epoch == record.epoch and r.installed and r.owner == record.target)
        if reports is not None:
            return Event(E.NEW_PATH_INSTALLED, "confirmed", record.target, phases_ms=_phases(reports, "peer_move"))
    target = view.gateways.get(record.target or "")
    if target is None or target.judgement in BAD:
        evidence = target.evidence if target else {}
        return Event(E.TARGET_LOST, "target unfit", _best(record, view, record.target), evidence=evidence)
    late = _deadline(record, view, _best(record, view, record.target) or (record.target if target.ready else None))
    return replace(late, targets=_renewed(record, view)) if late else None


def _settling(record: PoolRecord, view: PoolView) -> Event | None:
    """PeerUpdated and StandbyAdvertising: the move is effective, the rest is confirmation."""
    unfit = _unfit(record, view, _best(record, view, record.owner))
    if unfit is not None:
        return unfit
    if record.state == S.PEER_UPDATED and _prepared(record, view, record.owner):
        return Event(E.TARGET_PREPARED, "acknowledged", record.owner)
    owner = _owner(record, view)
    serving = owner is not None and owner.serves
    if record.state == S.STANDBY_ADVERTISING and serving:
        seen = _confirmed(view, lambda r: r.epoch == record.epoch and record.owner in r.announced_by)
        if seen is not None or not record.announce:
            return Event(E.ANNOUNCED, "announcement seen, probe passing", record.owner)
    if record.state == S.STANDBY_ADVERTISING and not serving and damped(record, view.now_s):
        return None  # the deadline would be another move; it counts once the back-off is over
    return _deadline(record, view, _best(record, view, record.owner), serves=serving)


def _stranded(record: PoolRecord, view: PoolView) -> Event | None:
    if wants_hold(record, view):
        return Event(E.HOLD_REQUESTED, _hold_cause(record))
    owner = _owner(record, view)
    in_place = _confirmed(view, lambda r: r.epoch == record.epoch and r.installed and r.owner == record.owner)
    if owner is not None and owner.judgement is J.HEALTHY and in_place is not None:
        return Event(E.OWNER_RECOVERED, "probes pass again", record.owner, evidence=owner.evidence)
    target = _best(record, view)
    return Event(E.CANDIDATE_READY, "a gateway became ready", target=target) if target else None


def _draining(record: PoolRecord, view: PoolView) -> Event | None:
    target, other = view.gateways.get(record.target or ""), _best(record, view, record.target)
    lost = target is None or target.judgement in BAD
    if record.switched:
        reports = _confirmed(view, lambda r: r.epoch == record.epoch and r.installed and r.owner == record.target)
        if reports is not None:
            return Event(E.NEW_PATH_INSTALLED, "confirmed", record.target, phases_ms=_phases(reports, "peer_move"))
    unfit = _unfit(record, view, other if lost else record.target)
    if unfit is not None:
        return unfit
    if lost:
        return Event(E.TARGET_LOST, "target unfit", other, evidence=target.evidence if target else {})
    if not record.switched and _prepared(record, view, record.target):
        return Event(E.TARGET_PREPARED, "acknowledged", record.target)
    return _deadline(record, view, other or record.target)


def _held(record: PoolRecord, view: PoolView) -> Event | None:
    return None if wants_hold(record, view) else Event(E.HOLD_RELEASED, "hold released")


def _terminating(record: PoolRecord, view: PoolView) -> Event | None:
    edges = [view.edge_reports.get(name) for name in view.edges]
    never_placed = record.epoch == 0
    if never_placed or (edges and all(r is not None and r.removed for r in edges) and not _announced_still(view)):
        return Event(E.PATHS_REMOVED, "confirmed")
    return _deadline(record, view, None)


def _announced_still(view: PoolView) -> bool:
    """By a gateway that an edge hears, or that is alive: what a dead one said last must not block a deletion."""
    if any(report.announced_by for report in view.edge_reports.values()):
        return True
    alive = {gateway.name for gateway in view.gateways.values() if gateway.heard}
    return any(report.announcing for name, report in view.node_reports.items() if name in alive)


def wants_hold(record: PoolRecord, view: PoolView) -> bool:
    """The manifest says `hold: true`, or an operator asked for it and has not released it."""
    return bool(record.hold_request) or (view.spec is not None and view.spec.hold)


def _hold_cause(record: PoolRecord) -> str:
    return record.hold_request or "manifest says hold"


_BY_STATE: dict[PoolState, Callable[[PoolRecord, PoolView], Event | None]] = {
    S.PENDING: _pending,
    S.ACTIVE_HEALTHY: _active,
    S.IDLE: _active,
    S.FAILURE_DETECTED: _moving,
    S.WITHDRAWN: _moving,
    S.PEER_UPDATED: _settling,
    S.STANDBY_ADVERTISING: _settling,
    S.STRANDED: _stranded,
    S.DRAINING: _draining,
    S.HELD: _held,
    S.TERMINATING: _terminating,
}
