"""What the bench of leaders counts, without a lab; and one round of it in a lab."""

import base64
import json
from typing import Any

import pytest
from bgplb_lab import leadership
from bgplb_lab.leadership import LEADER_KEY, RECORDS, Handover, Seen, handover, milliseconds, parse
from bgplb_lab.world import World


def line(key: str, value: dict[str, Any] | None, revision: int) -> str:
    """As `etcdctl watch -w json` prints a change."""
    kv: dict[str, Any] = {"key": base64.b64encode(key.encode()).decode(), "mod_revision": revision}
    event: dict[str, Any] = {"kv": kv}
    if value is None:
        event["type"] = 1
    else:
        kv["value"] = base64.b64encode(json.dumps(value).encode()).decode()
    return json.dumps({"Header": {"revision": revision}, "Events": [event]})


def test_a_change_is_read_and_so_is_a_deletion() -> None:
    assert list(parse(line(LEADER_KEY, {"name": "orch-2"}, 7), 5)) == [Seen(5, 7, LEADER_KEY, {"name": "orch-2"})]
    assert list(parse(line(LEADER_KEY, None, 8), 6)) == [Seen(6, 8, LEADER_KEY, None)]
    assert list(parse('{"Header": {"revision": 9}, "Created": true}', 6)) == []


def leader(t_ns: int, revision: int, name: str | None) -> Seen:
    return Seen(t_ns, revision, LEADER_KEY, None if name is None else {"name": name})


def record(t_ns: int, revision: int, by: str) -> Seen:
    return Seen(t_ns, revision, f"{RECORDS}pool/web", {"leader": by})


def test_the_next_leader_acts_with_its_own_first_write() -> None:
    """Not with one that the old one had under way, nor by having the key."""
    seen = [record(1_000_000, 10, "orch-1"), leader(2_000_000, 11, None), leader(9_000_000, 12, "orch-2")]
    assert handover(seen, 0) is None
    seen += [record(9_500_000, 9, "orch-2"), record(10_000_000, 13, "orch-1")]
    assert handover(seen, 0) is None
    assert handover([*seen, record(12_000_000, 14, "orch-2")], 1_000_000) == Handover("orch-2", 8.0, 11.0)


def test_of_two_that_led_the_second_counts_if_the_first_never_wrote() -> None:
    seen = [leader(2_000_000, 11, "orch-2"), leader(3_000_000, 12, "orch-3"), record(4_000_000, 13, "orch-3")]
    assert handover(seen, 0) == Handover("orch-3", 3.0, 4.0)


@pytest.mark.parametrize(("took", "expected"), [("850µs", 0.85), ("2.5ms", 2.5), ("1.25s", 1250.0)])
def test_times_of_go(took: str, expected: float) -> None:
    assert milliseconds(took) == pytest.approx(expected)


@pytest.mark.parametrize("took", ["1m2s", "", "ms"])
def test_other_texts_are_no_times(took: str) -> None:
    with pytest.raises(ValueError, match="no time"):
        milliseconds(took)


def test_the_record_has_each_figure_with_median_and_worst() -> None:
    found = {end: [Handover("o", 1.0, ms) for ms in (10.0, 30.0, 20.0)] for end in leadership.ENDS}
    document = leadership.document(found, [1.0])
    assert document["runs"] == 3 and document["store_read_ms"] == [1.0]
    for end in leadership.ENDS:
        assert document[end]["acted_ms"] == [10.0, 30.0, 20.0]
        assert (document[end]["acted_median_ms"], document[end]["acted_worst_ms"]) == (20.0, 30.0)
    assert leadership.table(document).row_count == 5


@pytest.mark.chaos
@pytest.mark.usefixtures("healthy")
def test_the_next_leader_acts_soon(whole_lab: World) -> None:
    """One of each kind, with room for a busy machine: as multiples of what the followers wait before they accuse."""
    document = leadership.measure(whole_lab, 1)
    waited_ms = 3 * 250.0
    assert document["term"]["acted_worst_ms"] < waited_ms, "it was handed over, not taken"
    assert document["kill"]["acted_worst_ms"] < 4 * waited_ms
