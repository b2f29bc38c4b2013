"""The probe's judgement, instant by instant."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataplane.probe_window import SETTLED_AFTER, SILENT_INTERVALS, WINDOW, ProbeWindow, following

INTERVAL = 0.050
ROUND_TRIP = 0.001


def answered(count: int, start: float = 0.0, first: int = 1) -> ProbeWindow:
    """A window with `count` questions, an interval apart, each answered after a round trip."""
    window = ProbeWindow(INTERVAL)
    for n in range(count):
        window.sent(first + n, start + n * INTERVAL)
        window.answered(first + n, start + n * INTERVAL + ROUND_TRIP)
    return window


def test_nothing_is_known_before_the_first_is_due() -> None:
    window = ProbeWindow(INTERVAL)
    assert window.evaluate(0.0).word == "unknown"
    due = window.sent(1, 0.0)
    assert due == INTERVAL
    assert window.evaluate(due - 0.001).word == "unknown"
    assert window.evaluate(due).word == "doubtful"


def test_two_due_without_an_answer_are_failing() -> None:
    window = answered(10)
    first = window.sent(11, 0.500)
    assert first == pytest.approx(0.505)
    assert window.evaluate(0.5049).word == "passing"
    assert window.evaluate(first).word == "doubtful"
    second = window.sent(12, 0.550)
    assert window.evaluate(0.5549).word == "doubtful"
    judgement = window.evaluate(second)
    assert (judgement.word, judgement.missed, judgement.good) == ("failing", 2, 0)


def test_failing_is_said_before_bfd_speaks() -> None:
    """BFD, 3 x 50 ms, says down at the earliest 100 ms after the last packet that passed."""
    for phase in range(50):
        window = answered(20)
        cut = 20 * INTERVAL - INTERVAL + ROUND_TRIP + phase / 1000
        numbers = [(21 + n, (20 + n) * INTERVAL) for n in range(3)]
        for number, sent in numbers:
            if sent <= cut + 0.100:
                window.sent(number, sent)
        assert window.evaluate(cut + 0.110).word == "failing", phase


def test_a_late_answer_counts_when_it_comes() -> None:
    window = answered(10)
    window.sent(11, 0.500)
    window.sent(12, 0.550)
    assert window.evaluate(0.560).word == "failing"
    assert window.answered(12, 0.561)
    judgement = window.evaluate(0.561)
    assert (judgement.word, judgement.missed, judgement.good) == ("passing", 0, 1)
    assert judgement.last_answered_s == 0.561


def test_an_answer_out_of_order_is_enough() -> None:
    window = answered(10)
    window.sent(11, 0.500)
    window.sent(12, 0.550)
    window.answered(12, 0.551)
    assert window.evaluate(0.556).word == "passing"


@pytest.mark.parametrize(("round_trip", "patience"), [(0.0005, 0.005), (0.002, 0.008), (0.040, INTERVAL)])
def test_patience_is_four_round_trips_within_bounds(round_trip: float, patience: float) -> None:
    window = ProbeWindow(INTERVAL)
    for n in range(60):
        window.sent(n, n * INTERVAL)
        window.answered(n, n * INTERVAL + round_trip)
    assert window.sent(60, 3.0) - 3.0 == pytest.approx(patience)


def test_one_late_answer_does_not_double_the_patience() -> None:
    window = ProbeWindow(INTERVAL)
    for n in range(60):
        window.sent(n, n * INTERVAL)
        window.answered(n, n * INTERVAL + (0.002 if n < 59 else 0.015))
    assert 0.009 < window.sent(60, 3.0) - 3.0 < 0.016


def test_settled_after_fifty_in_a_row_and_not_after_a_miss() -> None:
    window = answered(SETTLED_AFTER - 1)
    now = SETTLED_AFTER * INTERVAL
    assert not window.evaluate(now).settled
    window.sent(SETTLED_AFTER, now)
    assert not window.evaluate(now).settled, "it may still be lost"
    window.answered(SETTLED_AFTER, now + ROUND_TRIP)
    assert window.evaluate(now + ROUND_TRIP).settled
    sent = now + INTERVAL
    due = window.sent(SETTLED_AFTER + 1, sent)
    assert window.evaluate(due).settled, "it may still come"
    assert not window.evaluate(sent + INTERVAL).settled


def test_a_late_answer_unsettles_nothing_and_a_lost_one_for_fifty_questions() -> None:
    window = answered(SETTLED_AFTER)
    late, lost = SETTLED_AFTER * INTERVAL, (SETTLED_AFTER + 1) * INTERVAL
    due = window.sent(SETTLED_AFTER + 1, late)
    assert (window.evaluate(due).word, window.evaluate(due).settled) == ("doubtful", True)
    window.answered(SETTLED_AFTER + 1, due + 0.01)
    window.sent(SETTLED_AFTER + 2, lost)
    assert window.evaluate(lost + ROUND_TRIP).settled
    for n in range(2, SETTLED_AFTER + 2):
        now = late + n * INTERVAL
        assert not window.evaluate(now).settled, n
        window.sent(SETTLED_AFTER + 1 + n, now)
        window.answered(SETTLED_AFTER + 1 + n, now + ROUND_TRIP)
    assert window.evaluate(now + ROUND_TRIP).settled


def test_what_is_failing_is_not_settled_also_before_anything_is_lost() -> None:
    """After a delay the next question goes half an interval later: then two are due before one is lost."""
    window = answered(SETTLED_AFTER)
    first = SETTLED_AFTER * INTERVAL
    window.sent(SETTLED_AFTER + 1, first)
    second = first + INTERVAL / 2
    judgement = window.evaluate(window.sent(SETTLED_AFTER + 2, second))
    assert (judgement.word, judgement.settled) == ("failing", False)
    window.answered(SETTLED_AFTER + 1, second + 0.01)
    window.answered(SETTLED_AFTER + 2, second + 0.01)
    assert window.evaluate(second + 0.01).settled


def test_when_nobody_asked_for_long_nothing_is_known() -> None:
    window = answered(SETTLED_AFTER)
    last = (SETTLED_AFTER - 1) * INTERVAL
    before, after = (window.evaluate(last + SILENT_INTERVALS * INTERVAL + late) for late in (-0.001, 0.001))
    assert (before.word, before.settled) == ("passing", True)
    assert (after.word, after.settled) == ("unknown", False)


def test_whether_the_newest_has_an_answer_does_not_depend_on_time_nor_on_older_ones() -> None:
    window = ProbeWindow(INTERVAL)
    said = [window.unanswered]
    for number in (1, 2, 3):
        window.sent(number, number * INTERVAL)
        said.append(window.unanswered)
    for number in (1, 3):  # the second is lost
        window.answered(number, 9.9)
        said.append(window.unanswered)
    assert said == [False, True, True, True, True, False]


def test_repeated_and_unknown_answers_are_told_apart() -> None:
    window = answered(3)
    assert not window.answered(3, 0.2)
    assert not window.answered(4, 0.2)
    assert not window.answered(0, 0.2)
    with pytest.raises(ValueError, match="must rise"):
        window.sent(3, 0.3)


def test_the_window_is_bounded() -> None:
    window = ProbeWindow(INTERVAL)
    for n in range(WINDOW * 3):
        window.sent(n, n * INTERVAL)
    now = WINDOW * 3 * INTERVAL
    assert window.evaluate(now).missed == WINDOW
    assert not window.answered(WINDOW * 2 - 1, now), "forgotten"
    assert window.answered(WINDOW * 2, now), "the oldest that is known"


def test_a_full_window_forgets_the_oldest_and_no_younger_one() -> None:
    window = answered(WINDOW)
    late = WINDOW * INTERVAL
    window.sent(WINDOW + 1, late)
    window.sent(WINDOW + 2, late + INTERVAL)
    assert window.answered(WINDOW + 1, late + INTERVAL)


@example([(False, 1), (True, SETTLED_AFTER), (False, 1), (True, 9)])
@given(st.lists(st.tuples(st.booleans(), st.integers(1, WINDOW + 10)), min_size=1, max_size=6))
def test_word_and_counts_agree_with_a_plain_reading(runs: list[tuple[bool, int]]) -> None:
    outcomes = [outcome for outcome, times in runs for _ in range(times)]
    window = ProbeWindow(INTERVAL)
    for n, outcome in enumerate(outcomes):
        window.sent(n, n * INTERVAL)
        if outcome:
            window.answered(n, n * INTERVAL + ROUND_TRIP)
    judgement = window.evaluate(len(outcomes) * INTERVAL + ROUND_TRIP)
    expected = "passing" if outcomes[-1] else "failing" if outcomes[-2:] == [False, False] else "doubtful"
    assert judgement.word == expected
    run = next((n for n, outcome in enumerate(reversed(outcomes)) if outcome != outcomes[-1]), len(outcomes))
    assert judgement.missed == (0 if outcomes[-1] else min(run, WINDOW))
    assert judgement.good == (min(run, SETTLED_AFTER) if outcomes[-1] else 0)
    assert judgement.settled == (outcomes[-1] and run >= SETTLED_AFTER)


@given(st.floats(0, 1e7), st.floats(0, 0.999), st.sampled_from((0.02, 0.05, 0.3)))
def test_questions_of_one_phase_go_together_however_late_each_was(now: float, share: float, interval_s: float) -> None:
    phase_s = share * interval_s
    first = following(now, interval_s, phase_s)
    assert 0.499 * interval_s <= first - now <= 1.501 * interval_s
    on_time, late = following(first, interval_s, phase_s), following(first + 0.4 * interval_s, interval_s, phase_s)
    assert on_time == late == pytest.approx(first + interval_s, abs=1e-6)
