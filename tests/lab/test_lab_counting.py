"""Counting probes, and taking what is said for what it is worth: pure."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from bgplb_lab import control, observe
from bgplb_lab.counting import answered_by_all, arrivals, count, longest_run, median, nearest_rank
from bgplb_lab.errors import Unreachable
from bgplb_lab.probes import ProbeRun
from bgplb_lab.world import World

MS = 1_000_000


def stamps(number: int, interval_ms: float = 1.0) -> list[int]:
    return [int(place * interval_ms * MS) for place in range(number)]


def answers_after(sent: list[int], delay_ms: float) -> list[int | None]:
    return [stamp + int(delay_ms * MS) for stamp in sent]


def test_a_clean_run_has_no_outage() -> None:
    sent = stamps(100)
    counts = count(sent, answers_after(sent, 0.4), 1.0)
    assert (counts.sent, counts.lost, counts.late, counts.outage_ms, counts.outage_first) == (100, 0, 0, 0.0, None)
    assert counts.sched_gap_ms == 0.0


def test_the_outage_is_the_longest_run_of_lost_numbers() -> None:
    sent = stamps(100)
    arrived = answers_after(sent, 0.4)
    for number in (3, 4, *range(20, 60), 80):
        arrived[number] = None
    counts = count(sent, arrived, 1.0)
    assert (counts.lost, counts.outage_ms, counts.outage_first) == (43, 40.0, 20)


def test_the_interval_scales_the_outage() -> None:
    sent = stamps(10, 5.0)
    arrived = answers_after(sent, 1.0)
    arrived[4] = arrived[5] = None
    assert count(sent, arrived, 5.0).outage_ms == 10.0


def test_a_late_answer_counts_for_the_outage_but_not_as_lost() -> None:
    sent = stamps(10)
    arrived = answers_after(sent, 1.0)
    arrived[4], arrived[5], arrived[6] = None, sent[5] + 21 * MS, sent[6] + 20 * MS
    counts = count(sent, arrived, 1.0)
    assert (counts.lost, counts.late, counts.outage_ms) == (1, 1, 2.0)


def test_everything_lost_is_one_outage() -> None:
    counts = count(stamps(7), [None] * 7, 1.0)
    assert (counts.lost, counts.outage_ms, counts.outage_first) == (7, 7.0, 0)


def test_the_senders_pauses_are_told_and_not_left_out() -> None:
    sent = [0, MS, 2 * MS, 9 * MS, 9 * MS + 1, 10 * MS]
    counts = count(sent, answers_after(sent, 0.1), 1.0)
    assert [(gap.at_ms, gap.gap_ms) for gap in counts.sched_gaps] == [(2.0, 7.0)]
    assert counts.sched_gap_ms == 7.0
    assert counts.sent == 6


def test_the_first_of_two_answers_counts_and_strangers_do_not() -> None:
    assert arrivals(3, [(1, 50), (1, 40), (7, 1), (-1, 1)]) == [None, 50, None]


def test_of_equal_runs_the_earlier_is_named() -> None:
    assert longest_run([True, False, True, False, True]) == (1, 1)
    assert longest_run([]) == (None, 0)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError):
        count([1, 2], [None], 1.0)


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 5.0), (90, 9.0), (99, 10.0), (100, 10.0)])
def test_nearest_rank(percent: float, expected: float) -> None:
    assert nearest_rank([float(number) for number in range(10, 0, -1)], percent) == expected


def test_median_of_even_and_odd() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_no_values_have_no_rank() -> None:
    with pytest.raises(ValueError):
        nearest_rank([], 50)
    with pytest.raises(ValueError):
        median([])


def test_a_number_counts_as_answered_when_both_families_answered_it() -> None:
    assert answered_by_all([[10, None, 12, None], [11, 9, None, None]]) == [11, None, None, None]
    assert answered_by_all([[10, None]]) == [10, None]
    with pytest.raises(ValueError, match="shorter"):
        answered_by_all([[1, 2], [1]])


def test_the_outage_of_both_families_together_is_that_of_either() -> None:
    sent = [number * 1_000_000 for number in range(10)]
    ipv4: list[int | None] = [stamp + 100 for stamp in sent]
    ipv6 = list(ipv4)
    ipv4[2:5], ipv6[4:7] = [None] * 3, [None] * 3
    counts = ProbeRun(0, 1.0, sent, {"4": ipv4, "6": ipv6}).counts
    assert (counts.lost, counts.outage_ms, counts.outage_first) == (5, 5.0, 2)
    assert {version: (own.lost, own.outage_ms) for version, own in counts.families.items()} == {
        "4": (3, 3.0),
        "6": (3, 3.0),
    }
    assert counts.families == ProbeRun(0, 1.0, sent, {"4": ipv4, "6": ipv6}).cut(0, 10).counts.families
    assert ProbeRun(0, 1.0, sent, {"6": ipv6}).counts.families == {}


def test_what_several_prefixes_of_a_pool_say_is_one_answer_only_if_they_agree() -> None:
    assert observe.agreed([("gw-b",), ("gw-b",)]) == ("gw-b",)
    assert observe.agreed([("gw-b",), ("gw-a",)]) == ("gw-a", "gw-b")
    assert observe.agreed([(), ()]) == ()
    assert observe.agreed([("gw-b",), ()]) == ("gw-b", "nobody for 2001:db8:2::/64")


@pytest.mark.parametrize(
    ("cmd", "empty"), [("dump", {"age_ms": -1, "machines": []}), ("status", {"store": {"age_ms": -1}})]
)
def test_an_orchestrator_that_has_just_started_is_not_asked_what_it_knows(
    cmd: str, empty: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"age_ms": 3, "store": {"age_ms": 3}}
    answers = {11: empty, 12: known}
    monkeypatch.setattr(control, "ask_socket", lambda path, _request: answers[int(path.split("/")[2])])
    world = cast(World, SimpleNamespace(pids=lambda: {"orch-1": 11, "orch-2": 12}))
    assert observe.replica(world, {"cmd": cmd}) == known
    answers[12] = empty
    with pytest.raises(Unreachable, match="orch-2 has just started"):
        observe.replica(world, {"cmd": cmd})


def test_the_first_orchestrator_that_answers_is_believed_and_why_the_others_do_not_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: dict[int, dict[str, Any]] = {11: {"error": "no such pool"}, 13: {"age_ms": 0, "machines": []}}

    def ask(path: str, _request: dict[str, Any]) -> dict[str, Any]:
        pid = int(path.split("/")[2])
        if pid not in answers:
            raise Unreachable(f"{pid} is silent")
        return answers[pid]

    monkeypatch.setattr(control, "ask_socket", ask)
    world = cast(World, SimpleNamespace(pids=lambda: {"orch-1": 11, "orch-2": 12, "orch-3": 13}))
    assert observe.replica(world, {"cmd": "dump"}) == answers[13]
    world = cast(World, SimpleNamespace(pids=lambda: {"orch-1": 11, "orch-2": 12}))
    with pytest.raises(Unreachable, match="orch-1: no such pool; 12 is silent; orch-3 is off"):
        observe.replica(world, {"cmd": "dump"})
