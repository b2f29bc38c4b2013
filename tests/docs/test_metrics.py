"""Names of metrics follow the conventions of Prometheus, and each says something."""

import importlib.util
import re

import pytest
from prometheus_client.core import Metric

from tests.docs.pages import REPOSITORY

UNITS_NOT_BASE = ("_ms", "_milliseconds", "_kb", "_mb", "_percent", "_minutes")


def families() -> list[tuple[str, Metric]]:
    spec = importlib.util.spec_from_file_location("generate_metrics", REPOSITORY / "docs" / "generate_metrics.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [(daemon, metric) for daemon, found in module.families().items() for metric in found]


@pytest.mark.parametrize(("daemon", "metric"), families(), ids=lambda value: getattr(value, "name", value))
def test_a_metric_is_named_as_is_usual_and_explained(daemon: str, metric: Metric) -> None:
    assert re.fullmatch(r"bgplb_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert not metric.name.endswith(UNITS_NOT_BASE), "base units: seconds, bytes"
    assert not metric.name.endswith("_total"), "the client adds that to counters"
    assert len(metric.documentation.split()) >= 4, f"{daemon}: {metric.name} says nothing"


def test_one_name_means_one_thing_in_every_daemon() -> None:
    texts: dict[str, set[tuple[str, str]]] = {}
    for _daemon, metric in families():
        texts.setdefault(metric.name, set()).add((metric.type, str(getattr(metric, "_labelnames", ""))))
    assert {name: kinds for name, kinds in texts.items() if len(kinds) > 1} == {}
