"""Metrics of the agents: made from plain values at the moment they are asked for.

Names follow the conventions of Prometheus: base units, `_total` for what only grows. A help text says whose word a
number is: what the kernel was last read to be, what was commanded, what a probe saw.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fsm.fence import FenceState
from fsm.records import EdgePoolReport, EdgeReport, NodePoolReport, NodeReport
from orchestrator.agents.readings import EdgeReadings, NodeReadings

SESSION_WORDS = ("up", "down", "unknown")
PROBE_WORDS = ("passing", "doubtful", "failing", "unknown")
PHASES = ("detect", "order", "withdraw", "peer_move")

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]


class CountedLog:
    """A log that also counts, by event: some things are worth a line each, and their number worth a metric."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self.counts: Counter[str] = Counter()

    def __call__(self, event: str, **fields: object) -> None:
        """Log it."""
        self.counts[event] += 1
        self._log(event, **fields)


@dataclass(frozen=True, slots=True)
class LinkSource:
    """An agent's link with the store. `silent_s`: since the store last took a heartbeat, None if it never did."""

    silent_s: float | None = None
    refused: bool = False
    gaps: int = 0
    problems: int = 0


@dataclass(frozen=True, slots=True)
class EdgeSource:
    """All that an edge agent's metrics are made of."""

    link: LinkSource = LinkSource()
    readings: EdgeReadings = field(default_factory=lambda: EdgeReadings(FenceState(), {}, 0))
    report: EdgeReport | None = None
    pools: Mapping[str, EdgePoolReport] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeSource:
    """All that a node agent's metrics are made of."""

    link: LinkSource = LinkSource()
    report: NodeReport | None = None
    pools: Mapping[str, NodePoolReport] = field(default_factory=dict)
    readings: NodeReadings = field(default_factory=lambda: NodeReadings({}, 0))


def gauge(name: str, text: str, labels: Labels = (), samples: Samples = ()) -> Metric:
    """A gauge with these samples."""
    family = GaugeMetricFamily(f"bgplb_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number))
    return family


def counter(name: str, text: str, labels: Labels = (), samples: Samples = ()) -> Metric:
    """A counter with these samples; `name` without `_total`."""
    family = CounterMetricFamily(f"bgplb_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number))
    return family


def words(found: Mapping[str, str], known: Labels) -> Samples:
    """One sample for each word that could be said, 1 for the one that is."""
    return [((name, word), float(word == said)) for name, said in sorted(found.items()) for word in known]


def link_metrics(link: LinkSource) -> Iterator[Metric]:
    """What both kinds of agents say of their link with the store."""
    silent = [] if link.silent_s is None else [((), link.silent_s)]
    yield gauge("store_silent_seconds", "Time since the store last took a heartbeat of this agent", samples=silent)
    yield gauge(
        "store_refused",
        "1 while this agent does not obey the store at hand: another one, or one that went backwards",
        samples=[((), link.refused)],
    )
    yield counter(
        "standstills",
        "Times that the process was found to have stood still and read anew what is wanted",
        samples=[((), link.gaps)],
    )
    yield gauge(
        "problems", "Things that this agent can't do at present; its log names them", samples=[((), link.problems)]
    )


def edge_metrics(source: EdgeSource) -> Iterator[Metric]:
    """Metrics of an edge agent."""
    yield from link_metrics(source.link)
    yield from _witness_metrics(source)
    fence, counts = source.readings.fence, source.counts
    yield gauge(
        "fence_highest_epoch", "Highest number that this edge has accepted", samples=[((), fence.highest_epoch)]
    )
    yield counter(
        "commands_refused",
        "Commands that the fence refused: older than what it has accepted for a prefix",
        samples=[((), counts.get("command refused", 0))],
    )
    yield counter(
        "plans_executed",
        "Plans that this edge carried out by itself, a pool each",
        samples=[((), counts.get("plan carried out", 0))],
    )
    yield counter(
        "route_event_overruns",
        "Times that the kernel dropped news of routes and the table was read anew",
        samples=[((), source.readings.overruns)],
    )
    pools = sorted(source.pools.items())
    yield gauge(
        "edge_pool_epoch",
        "Number of the command in force for a pool, as accepted here",
        ("pool",),
        [((name,), report.epoch) for name, report in pools],
    )
    yield gauge(
        "edge_pool_owner",
        "1 for the gateway that a pool is commanded to, as accepted here",
        ("pool", "gateway"),
        [((name, report.owner), 1) for name, report in pools if report.owner],
    )
    yield gauge(
        "edge_pool_installed",
        "1 if AllowedIPs and route were last read to be on the owner",
        ("pool",),
        [((name,), report.installed) for name, report in pools],
    )
    yield gauge(
        "edge_pool_plan_armed",
        "1 while this edge would move the pool by itself if its owner died",
        ("pool",),
        [((name,), report.armed_plan is not None) for name, report in pools],
    )
    yield gauge(
        "edge_pool_last_move_seconds",
        "Phases of the last move of a pool, as measured here: until the session fell, until it was acted on, "
        "until the old owner was cut off, until the new one was in place and read back",
        ("pool", "phase"),
        [((n, p), r.phases_ms[p] / 1000) for n, r in pools for p in PHASES if p in r.phases_ms],
    )


def _witness_metrics(source: EdgeSource) -> Iterator[Metric]:
    report = source.report or EdgeReport("")
    seen, probes = sorted(report.gateways.items()), sorted(source.readings.probes.items())
    known = [(name, probe) for name, probe in probes if probe is not None]
    yield gauge("bird_up", "1 if our BIRD answers, as last asked", samples=[((), report.bird == "up")])
    yield gauge(
        "session",
        "BGP and BFD with a gateway: 1 for the word that holds (up: BGP Established and BFD Up)",
        ("gateway", "word"),
        words({name: witness.session for name, witness in seen}, SESSION_WORDS),
    )
    yield gauge(
        "probe",
        "Probe through a gateway's forwarding path: 1 for the word that holds",
        ("gateway", "word"),
        words({name: probe.word for name, probe in known}, PROBE_WORDS),
    )
    yield gauge(
        "probe_full_size",
        "Probe of full size with DF: 1 for the word that holds",
        ("gateway", "word"),
        words({name: probe.full_size for name, probe in known}, PROBE_WORDS),
    )
    yield gauge(
        "probe_missed",
        "Newest run of unanswered probes that were due",
        ("gateway",),
        [((name,), probe.judgement.missed) for name, probe in known],
    )
    trips = [((n,), p.judgement.round_trip_s) for n, p in known if p.judgement.round_trip_s is not None]
    yield gauge("probe_round_trip_seconds", "Round trip of a probe, smoothed", ("gateway",), trips)


def node_metrics(source: NodeSource) -> Iterator[Metric]:
    """Metrics of a node agent."""
    yield from link_metrics(source.link)
    report = source.report or NodeReport("", False)
    yield gauge(
        "gateway_ready", "1 if every precondition of a gateway held when last checked", samples=[((), report.ready)]
    )
    yield gauge(
        "precondition",
        "1 for each precondition that held when last checked",
        ("name",),
        [((p.name,), p.ok) for p in report.preconditions],
    )
    yield gauge("lan_targets", "Nodes of the cluster LAN that are asked", samples=[((), report.lan_targets)])
    yield gauge(
        "lan_reached",
        "Nodes of the cluster LAN that answer",
        samples=[((), report.lan_reached)],
    )
    pools = sorted(source.pools.items())
    yield gauge(
        "announcing",
        "1 for each pool that BIRD was last read to export",
        ("pool",),
        [((name,), pool.announcing) for name, pool in pools],
    )
    yield gauge(
        "answers",
        "1 for each pool whose answers have their rules and tables here",
        ("pool",),
        [((name,), pool.answers) for name, pool in pools],
    )
    shaken = [((edge,), stamp) for edge, stamp in sorted(source.readings.handshakes.items()) if stamp is not None]
    yield gauge(
        "tunnel_last_handshake_timestamp_seconds",
        "Unix time of the last WireGuard handshake, as last read",
        ("edge",),
        shaken,
    )
    yield counter(
        "tunnels_revived", "Times that a silent tunnel was begun anew", samples=[((), source.readings.revived)]
    )
