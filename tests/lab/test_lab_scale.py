"""What the benches of many pools count, without a lab."""

import os
from typing import Any

import pytest
import yaml
from bgplb_lab import scale
from bgplb_lab.errors import LabError


def test_prefixes_are_apart_and_in_the_aggregate() -> None:
    found = scale.prefixes(5000)
    assert len(set(found)) == 5000
    assert found[0] == "198.18.0.0/32"
    assert found[-1] == "198.18.19.135/32"


def test_the_manifest_has_a_pool_for_each_prefix() -> None:
    pools = list(yaml.safe_load_all(scale.manifest(3)))
    assert [pool["metadata"]["name"] for pool in pools] == ["many-0000", "many-0001", "many-0002"]
    assert [pool["spec"]["addresses"] for pool in pools] == [[prefix] for prefix in scale.prefixes(3)]
    assert all("aggregateIPv6" not in pool["spec"] for pool in pools)


def test_a_pool_is_steered_by_the_first_new_route_after_the_cut() -> None:
    def event(kind: str, t_ns: int, prefix: str, table: int = 254) -> dict[str, Any]:
        return {"event": kind, "t_ns": t_ns, "table": table, "prefix": prefix}

    events: list[dict[str, Any]] = [
        {"event": "listening"}, event("new", 5, "a"), event("del", 11, "a"), event("new", 12, "a", 10177),
        event("new", 20, "a"), event("new", 30, "a"), event("new", 25, "b"), event("new", 26, "other"),
    ]  # fmt: skip
    assert scale.steered(events, 10, {"a", "b", "c"}) == {"a": 20, "b": 25}


def test_the_load_of_a_process_is_read_and_one_that_ended_is_named() -> None:
    mine = scale.load(os.getpid())
    assert mine.cpu_s > 0 and mine.rss_mb > 1

    def spend(_seconds: float) -> None:
        sum(range(10**6))

    rows = scale.measured({"me": os.getpid()}, 1.0, spend)
    assert rows["me"]["rss_mb"] > 1
    with pytest.raises(LabError, match="ended while its load was measured"):
        scale.load(2**22 + 1)
