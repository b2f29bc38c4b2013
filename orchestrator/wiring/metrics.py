"""From running agents to the values that their metrics are made of."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from prometheus_client.core import Metric

from fsm.records import EdgePoolReport, EdgeReport, NodePoolReport, NodeReport
from orchestrator.agents.edge import EdgeAgent
from orchestrator.agents.link import AgentLink
from orchestrator.agents.metrics import EdgeSource, LinkSource, NodeSource, edge_metrics, node_metrics
from orchestrator.agents.node import NodeAgent
from orchestrator.store.keys import Keys
from orchestrator.store.records import decode

T = TypeVar("T")


def agent_metrics(
    agent: EdgeAgent | NodeAgent, keys: Keys, name: str, counts: Mapping[str, int]
) -> Callable[[], Iterable[Metric]]:
    """The metrics of a running agent. `counts`: how often it logged what."""

    def edge(running: EdgeAgent) -> Iterable[Metric]:
        source = EdgeSource(
            _link(running.link, running.lacking()),
            running.readings(),
            _last(running.link, keys.observed_base("edge", name), EdgeReport),
            _pools(running.link, f"{keys.observed_prefix('edge', name)}pool/", EdgePoolReport),
            counts,
        )
        return edge_metrics(source)

    def node(running: NodeAgent) -> Iterable[Metric]:
        source = NodeSource(
            _link(running.link, running.lacking()),
            _last(running.link, keys.observed_base("node", name), NodeReport),
            _pools(running.link, f"{keys.observed_prefix('node', name)}pool/", NodePoolReport),
            running.readings(),
        )
        return node_metrics(source)

    return lambda: edge(agent) if isinstance(agent, EdgeAgent) else node(agent)


def _link(link: AgentLink | None, lacking: str) -> LinkSource:
    problems = len(lacking.split("; ")) if lacking else 0
    if link is None:
        return LinkSource(problems=problems)
    return LinkSource(link.silent_s(), bool(link.refusal), link.gate.gaps, problems)


def _last(link: AgentLink | None, key: str, type_: type[T]) -> T | None:
    data = link.reports.last(key) if link is not None else None
    return None if data is None else decode(data, type_, key)


def _pools(link: AgentLink | None, prefix: str, type_: type[T]) -> dict[str, T]:
    found = link.reports.below(prefix) if link is not None else {}
    return {pool: decode(data, type_, prefix + pool) for pool, data in found.items()}
