"""Witness rules: from what edges and agents report to a judgement of each gateway.

The judgement table is the one of docs/architecture.md; `judge` is that table, `view_gateway` feeds it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fsm.records import AgentRecord, EdgeGatewaySpec, EdgeReport, GatewayDrain, GatewayWitness, NodeReport
from fsm.types import PROBE_UNFIT_AFTER, Heartbeat, Judgement, Probe, Session

UNSEEN = GatewayWitness()


@dataclass(frozen=True, slots=True)
class Sight:
    """What the leader knows of an agent's life. `age_s`: since its last heartbeat committed; `fresh_since_s`: stamp."""

    heartbeat: Heartbeat = Heartbeat.EXPIRED
    age_s: float = 0.0
    fresh_since_s: float = 0.0
    record: AgentRecord | None = None


@dataclass(frozen=True, slots=True)
class World:
    """All observations at one instant, as the leader holds them."""

    edges: Mapping[str, Sight] = field(default_factory=dict)
    nodes: Mapping[str, Sight] = field(default_factory=dict)
    edge_reports: Mapping[str, EdgeReport] = field(default_factory=dict)
    node_reports: Mapping[str, NodeReport] = field(default_factory=dict)
    drains: Mapping[str, GatewayDrain] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayView:
    """One gateway as it is judged. `ready`: fit to take a pool now; `not_ready` says why not."""

    name: str
    judgement: Judgement
    ready: bool
    drained: bool = False
    leaving: bool = False
    serves: bool = False
    """The edges' probes pass through it."""
    heard: bool = False
    """Its agent's heartbeat is fresh."""
    usable: bool = False
    """Ready, or short of it only by a late heartbeat or a lost probe: no reason to take it out of a plan."""
    suspect_s: float = 0.0
    down_at: tuple[str, ...] = ()
    """Edges at which it is down, where it is not so at all of them."""
    by_edge: Mapping[str, Judgement] = field(default_factory=dict)
    """What each edge with a fresh agent says of it."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    not_ready: tuple[str, ...] = ()


def judge(session: str, heartbeat: str, probe: str, missed: int) -> Judgement:
    """The judgement table, for one edge's word on one gateway.

    A probe that is `doubtful` decides nothing yet: with the session up it counts as passing, else the next one due is
    awaited, which is less than one probe interval away.
    """
    unfit_by_probe = probe == Probe.FAILING and missed >= PROBE_UNFIT_AFTER
    if session == Session.DOWN:
        if probe == Probe.FAILING:
            return Judgement.DEAD
        return Judgement.FLAP if probe == Probe.PASSING else Judgement.NONE
    if session == Session.UNKNOWN:
        return Judgement.UNFIT if unfit_by_probe else Judgement.NONE
    if unfit_by_probe:
        return Judgement.UNFIT
    if probe == Probe.UNKNOWN:
        return Judgement.NONE
    return Judgement.HEALTHY if heartbeat == Heartbeat.FRESH else Judgement.SUSPECT


IS_DOWN = (Judgement.DEAD, Judgement.UNFIT, Judgement.FLAP)


def combine(words: Sequence[Judgement]) -> Judgement:
    """Several edges' words as one: down only where all who can see say so.

    Down everywhere, but not in the same way, is unfit: at one edge at least no packet passes.
    """
    if not words:
        return Judgement.NONE
    down = {w for w in words if w in IS_DOWN}
    if down and any(w not in down for w in words):
        return Judgement.NONE
    if down:
        return down.pop() if len(down) == 1 else Judgement.UNFIT
    for word in (Judgement.NONE, Judgement.SUSPECT):
        if word in words:
            return word
    return Judgement.HEALTHY


def seeing_edges(group: EdgeGatewaySpec, world: World) -> tuple[str, ...]:
    """Edges whose word counts: with a fresh agent, and of those the ones that are not cut off, if there are some.

    An edge that no gateway reaches while another one is reached has a fault of its own, and says nothing of gateways.
    """
    fresh = tuple(e.name for e in group.edges if _heartbeat(world.edges.get(e.name)) is Heartbeat.FRESH)
    if len(fresh) < 2:
        return fresh
    return tuple(name for name in fresh if not _is_cut_off(world.edge_reports.get(name), group.gateways)) or fresh


def _is_cut_off(report: EdgeReport | None, gateways: Iterable[str]) -> bool:
    """No gateway that it has a tunnel with is up or answers. One that has only begun to look does not know that yet."""
    if report is None:
        return False
    witnesses = (report.gateways[name] for name in gateways if name in report.gateways)
    return all(w.session != Session.UP and w.probe == Probe.FAILING for w in witnesses)


def lan_is_lost(name: str, group: EdgeGatewaySpec, world: World) -> bool:
    """It reaches no other node on the cluster LAN while another gateway reaches one besides this one itself.

    That a neighbour reached us says nothing once we don't reach it: it may have died since.
    """
    report = world.node_reports.get(name)
    if report is None or not report.lan_targets or report.lan_reached:
        return False
    if _heartbeat(world.nodes.get(name)) is not Heartbeat.FRESH:
        return False
    record = world.nodes[name].record
    own = record.lan_address if record is not None else ""
    return any(_reaches_lan(other, own, group, world) for other in group.gateways if other != name)


def _reaches_lan(name: str, but: str, group: EdgeGatewaySpec, world: World) -> bool:
    """It says so, is alive to say so, and no edge has just lost it: a dead neighbour's last word proves nothing."""
    report = world.node_reports.get(name)
    if report is None or not set(report.lan_answering) - {but}:
        return False
    if _heartbeat(world.nodes.get(name)) is not Heartbeat.FRESH:
        return False
    seen = [_witness(world.edge_reports.get(edge), name) for edge in seeing_edges(group, world)]
    return not any(w.session == Session.DOWN or w.probe == Probe.FAILING for w in seen)


def view_gateway(name: str, group: EdgeGatewaySpec, world: World) -> GatewayView:
    """Judge one gateway of a group."""
    sight = world.nodes.get(name, Sight())
    report = world.node_reports.get(name)
    everywhere = {
        e.name: _witness(world.edge_reports.get(e.name), name)
        for e in group.edges
        if _heartbeat(world.edges.get(e.name)) is Heartbeat.FRESH
    }
    by_edge = {e: judge(w.session, sight.heartbeat, w.probe, w.missed) for e, w in everywhere.items()}
    seeing = seeing_edges(group, world)
    judgement, seen = combine([by_edge[e] for e in seeing]), [everywhere[e] for e in seeing]
    down_at = tuple(edge for edge, word in by_edge.items() if word in IS_DOWN)
    lan_lost = lan_is_lost(name, group, world)
    if lan_lost and judgement in (Judgement.HEALTHY, Judgement.SUSPECT, Judgement.NONE):
        judgement = Judgement.UNFIT
    drained, leaving = name in world.drains or name in group.leaving, bool(report and report.leaving)
    lasting = _shortcomings(report, seen, lan_lost, drained, leaving)
    passing = _hesitations(sight, seen)
    not_ready = (*passing, *lasting)
    return GatewayView(
        name=name,
        judgement=judgement,
        ready=judgement is Judgement.HEALTHY and not not_ready,
        drained=drained,
        leaving=leaving,
        serves=bool(seen) and all(w.probe == Probe.PASSING for w in seen),
        heard=sight.heartbeat is Heartbeat.FRESH,
        usable=judgement in (Judgement.HEALTHY, Judgement.SUSPECT)
        and not lasting
        and sight.heartbeat is not Heartbeat.EXPIRED,
        suspect_s=sight.age_s if judgement is Judgement.SUSPECT else 0.0,
        down_at=down_at if len(down_at) < len(by_edge) else (),
        by_edge=by_edge,
        evidence=_evidence(sight, everywhere, lan_lost),
        not_ready=not_ready,
    )


def _witness(report: EdgeReport | None, gateway: str) -> GatewayWitness:
    return report.gateways.get(gateway, UNSEEN) if report is not None else UNSEEN


def _heartbeat(sight: Sight | None) -> Heartbeat:
    return sight.heartbeat if sight else Heartbeat.EXPIRED


def _hesitations(sight: Sight, seen: list[GatewayWitness]) -> tuple[str, ...]:
    """What keeps a gateway from being ready and may be over in a moment."""
    reasons: list[str] = []
    if sight.heartbeat is not Heartbeat.FRESH:
        reasons.append(f"heartbeat {sight.heartbeat}")
    if any(not w.settled for w in seen):
        reasons.append("probes not settled")
    return tuple(reasons)


def _shortcomings(
    report: NodeReport | None,
    seen: list[GatewayWitness],
    lan_lost: bool,
    drained: bool,
    leaving: bool,
) -> tuple[str, ...]:
    """What else does."""
    reasons: list[str] = []
    if report is None:
        reasons.append("no report from its agent")
    elif not report.ready:
        failed = [p.name for p in report.preconditions if not p.ok]
        reasons.append(f"preconditions: {', '.join(failed) or 'not all checked'}")
    if not seen:
        reasons.append("no edge with a fresh agent")
    if not_up := sorted({w.reason or w.session for w in seen if w.session != Session.UP}):
        reasons.append(f"session not up ({', '.join(not_up)})")
    if any(w.full_size == Probe.FAILING for w in seen):
        reasons.append("full-size probe failing")
    if lan_lost:
        reasons.append("cluster LAN lost")
    if drained:
        reasons.append("drained")
    if leaving:
        reasons.append("shutting down")
    return tuple(reasons)


def _evidence(sight: Sight, seen: Mapping[str, GatewayWitness], lan_lost: bool) -> Mapping[str, str]:
    return {
        "session": _each({e: w.session for e, w in seen.items()}) or "unseen",
        "probe": _each({e: w.probe for e, w in seen.items()}) or "unseen",
        "heartbeat": str(sight.heartbeat),
        **({"probe_family": f} if (f := _each({e: w.family for e, w in seen.items()})) else {}),
        **({"lan": "lost"} if lan_lost else {}),
        **({"session_reason": r} if (r := _each({e: w.reason for e, w in seen.items()})) else {}),
    }


def _each(words: Mapping[str, str]) -> str:
    """What the edges say, as one text: each with its name, if there are several; one that says nothing is left out."""
    if len(words) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{edge} {word}" for edge, word in words.items() if word)
