"""Metrics of an orchestrator: what it has committed, and what the store says as this replica has read it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fsm.effects import AppendHistory, Done, Outcome
from fsm.ports import Clock
from fsm.records import PoolRecord
from fsm.types import PoolState
from orchestrator.leader.interpret import Interpreter
from orchestrator.leader.writes import Answer, Batch
from orchestrator.store.keys import Keys
from orchestrator.store.port import Guard, Store

COMMIT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class MeasuredInterpreter(Interpreter):
    """An interpreter that counts what it commits, and how long that takes."""

    def __init__(self, store: Store, keys: Keys, clock: Clock, registry: CollectorRegistry) -> None:
        super().__init__(store, keys)
        self._time = clock
        self._commit_s = Histogram(
            "bgplb_commit_seconds",
            "Time that the store took for a transaction of the leader, until its answer was read",
            buckets=COMMIT_BUCKETS_S,
            registry=registry,
        )
        self._transitions = Counter(
            "bgplb_transitions", "Transitions that this replica committed", ("event", "to"), registry=registry
        )
        self._failed = Counter(
            "bgplb_commits_failed",
            "Transactions of the leader that were not done, by kind",
            ("kind",),
            registry=registry,
        )
        self._answered = Counter(
            "bgplb_requests_answered",
            "Operators' requests that this replica answered",
            ("verb", "word"),
            registry=registry,
        )

    async def commit(self, batches: Sequence[Batch], guard: Guard, counter_revision: int) -> tuple[Outcome, ...]:
        """See `Interpreter.commit`."""
        began_s = self._time.now()
        outcomes = await super().commit(batches, guard, counter_revision)
        self._commit_s.observe(self._time.now() - began_s)
        failed = next((outcome for outcome in outcomes if not isinstance(outcome, Done)), None)
        if failed is not None:
            self._failed.labels(failed.kind).inc()
            return outcomes
        for write in (write for batch in batches for write in batch.writes):
            if isinstance(write, AppendHistory):
                self._transitions.labels(write.entry.event, write.entry.to_state).inc()
            elif isinstance(write, Answer):
                word = "accepted" if write.request.accepted else "refused"
                self._answered.labels(write.request.verb, word).inc()
        return outcomes


@dataclass(frozen=True, slots=True)
class ReplicaSource:
    """All that a replica's other metrics are made of. `store_age_s` is None before the first read."""

    leads: bool = False
    takeovers: int = 0
    store_age_s: float | None = None
    refused: bool = False
    repairs: int = 0
    reloads: int = 0
    epoch: int = 0
    requests_waiting: int = 0
    problems: int = 0
    wall_ms: Callable[[], int] = lambda: 0
    pools: Mapping[str, PoolRecord] = field(default_factory=dict)


def replica_metrics(source: ReplicaSource) -> Iterator[Metric]:
    """The families, in a fixed order."""
    yield _one("leader", "1 on the orchestrator that leads, as it sees itself", source.leads)
    yield _one("store_age_seconds", "Time since the store was last known to be current here", source.store_age_s)
    text = "1 while this replica does not obey the store at hand: another one, or one that went backwards"
    yield _one("store_refused", text, source.refused)
    yield _count(
        "takeovers", "Times that this replica took leadership from a leader that had fallen silent", source.takeovers
    )
    yield _count("mirror_repairs", "Times that a full read found the watch deaf", source.repairs)
    yield _count(
        "mirror_reloads", "Full reads that replaced the copy of the store: the first, and repairs", source.reloads
    )
    yield _one("epoch", "Last number handed out, as read from the store", source.epoch)
    yield _one("requests_waiting", "Operators' requests that nobody has answered yet", source.requests_waiting)
    yield _one("problems", "What is wrong with intent and records; 'bgplb status' names it", source.problems)
    yield from _pools(source)


def _pools(source: ReplicaSource) -> Iterator[Metric]:
    states = GaugeMetricFamily("bgplb_pools", "Pools by state, as committed in the store", labels=["state"])
    counts = dict.fromkeys((str(state) for state in PoolState), 0)
    state_of = GaugeMetricFamily(
        "bgplb_pool_state", "1 for the state of a pool, as committed", labels=["pool", "state"]
    )
    age = GaugeMetricFamily("bgplb_pool_state_age_seconds", "Time since a pool entered its state", labels=["pool"])
    epoch = GaugeMetricFamily(
        "bgplb_pool_epoch", "Number of a pool's newest owner change, as committed", labels=["pool"]
    )
    owner = GaugeMetricFamily(
        "bgplb_pool_owner", "1 for the gateway that a pool is wanted on; the edge's own metric says where it is",
        labels=["pool", "gateway"],
    )  # fmt: skip
    condition = GaugeMetricFamily("bgplb_pool_condition", "1 for each condition that holds", labels=["pool", "type"])
    for name, record in sorted(source.pools.items()):
        counts[record.state] = counts.get(record.state, 0) + 1
        state_of.add_metric([name, record.state], 1)
        age.add_metric([name], max(0, source.wall_ms() - record.since_ms) / 1000)
        epoch.add_metric([name], record.epoch)
        if record.owner:
            owner.add_metric([name, record.owner], 1)
        for found in sorted({condition.type for condition in record.conditions}):
            condition.add_metric([name, found], 1)
    for state, number in counts.items():
        states.add_metric([state], number)
    yield from (states, state_of, age, epoch, owner, condition)


def _one(name: str, text: str, number: float | None) -> Metric:
    family = GaugeMetricFamily(f"bgplb_{name}", text)
    if number is not None:
        family.add_metric([], float(number))
    return family


def _count(name: str, text: str, number: int) -> Metric:
    family = CounterMetricFamily(f"bgplb_{name}", text)
    family.add_metric([], float(number))
    return family
