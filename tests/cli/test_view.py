"""The JSON of `fsm dump` and `status`: a golden of each, and the rules behind single fields."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsm.records import GatewayDrain, PoolRecord
from fsm.types import Heartbeat
from orchestrator import view
from orchestrator.store.port import KeyValue
from orchestrator.store.records import encode
from tests.cli.stand_ins import KEYS, NOON_MS, POOL, Stage

GOLDEN = Path(__file__).parent / "golden"
ALIVE = {("edge", "edge-1"): Heartbeat.FRESH, ("node", "gw-a"): Heartbeat.FRESH, ("node", "gw-b"): Heartbeat.FRESH}


def items(on_stage: Stage) -> Mapping[str, KeyValue]:
    """What the store on the stage holds."""
    return on_stage.server.items


def status(on_stage: Stage, alive: view.Beats = ALIVE) -> dict[str, Any]:
    """The status of the stage."""
    return view.status(items(on_stage), KEYS, alive, revision=42, age_ms=3)


def dump(on_stage: Stage, **options: Any) -> dict[str, Any]:
    """The dump of the stage."""
    return view.dump(items(on_stage), KEYS, revision=42, age_ms=3, **options)


def put_pool(on_stage: Stage, **changes: Any) -> None:
    """Change the pool's record."""
    record = view.Reader(items(on_stage), KEYS).one(KEYS.machine("pool", POOL), PoolRecord)
    assert record is not None
    on_stage.put(KEYS.machine("pool", POOL), replace(record, **changes))


@pytest.mark.parametrize("name", ["status", "dump"])
def test_golden(on_stage: Stage, name: str, request: pytest.FixtureRequest) -> None:
    """A change of the golden file is a change of a format that programs read: see `schema`."""
    found = status(on_stage) if name == "status" else dump(on_stage, history=2)
    assert found == json.loads((GOLDEN / f"{name}.json").read_text())


def test_the_fields_that_the_contract_names_are_there(on_stage: Stage) -> None:
    found = status(on_stage)
    assert {"schema", "store", "leader", "pools", "gateways", "edges"} <= set(found)
    fields = {"name", "state", "owner", "standby", "epoch", "since", "conditions", "last_move"}
    assert fields <= set(found["pools"][0])
    dumped = dump(on_stage, history=1)
    assert {"schema", "revision", "age_ms", "machines"} <= set(dumped)
    fields = {"type", "name", "state", "owner", "epoch", "plan", "since", "deadline", "evidence", "conditions", "edges"}
    assert fields | {"history"} <= set(dumped["machines"][0])
    fields = {"seq", "from", "to", "event", "cause", "evidence", "epoch", "revision", "phases_ms"}
    assert fields <= set(dumped["machines"][0]["history"][0])


def test_history_is_the_newest_n_oldest_first(on_stage: Stage) -> None:
    def seqs(limit: int) -> list[int]:
        return [entry["seq"] for entry in dump(on_stage, history=limit)["machines"][0]["history"]]

    assert (seqs(0), seqs(1), seqs(3), seqs(200)) == ([], [4], [2, 3, 4], [1, 2, 3, 4])


def test_history_ends_where_the_ring_has_dropped_the_rest(on_stage: Stage) -> None:
    on_stage.server.items.pop(KEYS.history("pool", POOL, 2))
    assert [entry["seq"] for entry in dump(on_stage, history=200)["machines"][0]["history"]] == [3, 4]


def test_an_outage_is_given_with_its_margin_and_left_out_when_unknown(on_stage: Stage) -> None:
    move = status(on_stage)["pools"][0]["last_move"]
    assert (move["outage_estimate_ms"], move["outage_estimate_plus_minus_ms"]) == (151.4, 50)
    put_pool(on_stage, last_move={"from": "", "to": "gw-a", "epoch": 1})
    assert "outage_estimate_plus_minus_ms" not in status(on_stage)["pools"][0]["last_move"]
    put_pool(on_stage, last_move={})
    assert status(on_stage)["pools"][0]["last_move"] is None


def test_a_gateway_that_is_drained_says_so_and_why_it_is_not_ready(on_stage: Stage) -> None:
    on_stage.put(KEYS.spec("GatewayDrain", "gw-b"), GatewayDrain("gw-b", "disks", "operator"))
    gw_b = status(on_stage)["gateways"][1]
    assert (gw_b["name"], gw_b["drained"], gw_b["ready"], gw_b["not_ready"]) == ("gw-b", True, False, ["drained"])


def test_a_gateway_with_a_silent_agent_is_suspect_and_not_ready(on_stage: Stage) -> None:
    gw_a = status(on_stage, {**ALIVE, ("node", "gw-a"): Heartbeat.STALE})["gateways"][0]
    assert (gw_a["agent"], gw_a["judgement"], gw_a["ready"]) == ("stale", "suspect", False)
    assert gw_a["carries"] == [POOL]


def test_without_a_fresh_edge_nothing_is_known_of_a_gateway(on_stage: Stage) -> None:
    gw_a = status(on_stage, {**ALIVE, ("edge", "edge-1"): Heartbeat.EXPIRED})["gateways"][0]
    assert (gw_a["session"], gw_a["probe"], gw_a["judgement"]) == ("unseen", "unseen", "none")


def test_a_pool_that_no_leader_has_taken_up_is_named(on_stage: Stage) -> None:
    on_stage.server.items.pop(KEYS.machine("pool", POOL))
    found = status(on_stage)
    assert found["pools"] == []
    assert found["problems"] == [f"accepted and not yet taken up by a leader: pool {POOL}"]


def test_what_only_the_leader_knows_is_told_with_the_rest(on_stage: Stage) -> None:
    on_stage.server.items.pop(KEYS.machine("pool", POOL))
    found = view.status(items(on_stage), KEYS, ALIVE, revision=1, age_ms=0, problems=["a.yaml: bad"])
    assert found["problems"] == ["a.yaml: bad", f"accepted and not yet taken up by a leader: pool {POOL}"]


def test_nobody_leads(on_stage: Stage) -> None:
    on_stage.server.items.pop(KEYS.leader)
    assert status(on_stage)["leader"] is None


def test_an_unreadable_record_hides_no_other(on_stage: Stage) -> None:
    on_stage.put(KEYS.observed_base("edge", "edge-1"), b"{")
    found = status(on_stage)
    assert [pool["name"] for pool in found["pools"]] == [POOL]
    assert found["edges"][0]["problems"] == ["no report from its agent"]
    assert found["problems"][0].startswith("/bgplb/v1/observed/edge/edge-1/base: not a EdgeReport: ")


def test_who_beats_between_two_looks_is_fresh() -> None:
    def beat(name: str, revision: int) -> dict[str, KeyValue]:
        key = KEYS.heartbeat("node", name)
        return {key: KeyValue(key, b"{}", 1, revision, 0)}

    agent = KEYS.agent("node", "d")
    earlier = {**beat("a", 5), **beat("b", 5), **beat("gone", 5)}
    later = {**beat("a", 6), **beat("b", 5), **beat("c", 7), agent: KeyValue(agent, b"{}", 1, 1, 0)}
    found = {name: state for (_, name), state in view.beats(earlier, later, KEYS).items()}
    assert found == {"a": Heartbeat.FRESH, "b": Heartbeat.STALE, "c": Heartbeat.FRESH, "d": Heartbeat.EXPIRED}


def test_times_for_people() -> None:
    assert view.iso(NOON_MS) == "2030-03-17T17:46:40.000Z"
    assert view.iso(0) is None


def test_a_thousand_machines_are_read_from_one_pass(on_stage: Stage) -> None:
    for number in range(1000):
        record = PoolRecord(name=f"p-{number:03}", state="ActiveHealthy", owner="gw-a", seq=0)
        on_stage.put(KEYS.machine("pool", record.name), encode(record))
    assert len(status(on_stage)["pools"]) == 1001
    assert len(status(on_stage)["gateways"][0]["carries"]) == 1001
