"""Write docs/metrics.md from the collectors themselves: `python docs/generate_metrics.py`."""

from collections.abc import Iterable
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from fsm.ports import Clock
from orchestrator.agents.metrics import EdgeSource, NodeSource, edge_metrics, node_metrics
from orchestrator.leader.metrics import MeasuredInterpreter, ReplicaSource, replica_metrics
from orchestrator.store.keys import Keys
from orchestrator.store.port import Store

FILE = Path(__file__).resolve().parent / "metrics.md"

HEAD = """# Metrics

Generated from the collectors (`make docs`); do not edit.

Each daemon serves `/metrics`, `/healthz` and `/readyz` at the address `http.listen` of its configuration. `/healthz`
answers as long as the process does its rounds; `/readyz` answers 503 and names what is missing while the daemon can't
do its work.

A metric says what its daemon knows, and the help text says of what kind that is: what was *committed* or *wanted* is
the leader's word, what was *accepted* or *read* is the edge's or gateway's own. An agent that is cut off from the store
goes on measuring, and its numbers stay right.
"""


def families() -> dict[str, list[Metric]]:
    """Every family, by the daemon that has it."""
    registry = CollectorRegistry()
    MeasuredInterpreter(cast("Store", None), Keys(), cast("Clock", None), registry)
    return {
        "Orchestrator": [*replica_metrics(ReplicaSource()), *registry.collect()],
        "Edge agent": list(edge_metrics(EdgeSource())),
        "Node agent": list(node_metrics(NodeSource())),
    }


LABELS = {
    "bgplb_transitions": ("event", "to"),
    "bgplb_commits_failed": ("kind",),
    "bgplb_requests_answered": ("verb", "word"),
}
"""Of those that are kept and not made when they are asked for."""


def generated() -> dict[Path, str]:
    """The generated file with the text that it must have."""
    return {FILE: HEAD + "".join(_section(daemon, found) for daemon, found in families().items())}


def _section(daemon: str, found: Iterable[Metric]) -> str:
    rows = "".join(_row(metric) for metric in found)
    return f"\n## {daemon}\n\n| name | type | labels | what it says |\n| --- | --- | --- | --- |\n{rows}"


def _row(metric: Metric) -> str:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    labels = getattr(metric, "_labelnames", ()) or LABELS.get(metric.name, ())
    shown = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {metric.type} | {shown} | {metric.documentation} |\n"


def main() -> None:
    """Write it."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
