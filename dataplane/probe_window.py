"""What numbered questions and their answers say about a path: a pure judgement, at any instant.

No IO and no clock: every method takes `now` in seconds of one clock.
"""

from collections import deque
from dataclasses import dataclass
from math import floor
from typing import Literal

Word = Literal["passing", "doubtful", "failing", "unknown"]

FAILING_AFTER = 2
"""This many due questions in a row without an answer mean failing: design decision, so that the probe's word is there
when BFD (3 intervals) speaks."""

SETTLED_AFTER = 50
"""This many answers in a row mean that the path has been good long enough to be trusted again."""

DUE_MINIMUM_S = 0.005
"""A loaded machine answers late by some milliseconds: nothing is due earlier."""

DUE_ROUND_TRIPS = 4
WINDOW = 128
SILENT_INTERVALS = 10
"""Without a question for this many intervals the window is too old to say anything."""


@dataclass
class _Question:
    number: int
    sent: float
    due: float
    answered: bool = False


@dataclass(frozen=True)
class Judgement:
    """What the window says at one instant.

    ``missed`` and ``good``: the newest run of due questions without an answer (at most :data:`WINDOW`), or of questions
    with one (counted up to :data:`SETTLED_AFTER`). ``settled``: so many in a row were answered, if need be late.
    ``last_answered_s``: when the newest answer came, None if there was none yet. ``round_trip_s``: smoothed, None
    without an answer.
    """

    word: Word
    missed: int
    good: int
    settled: bool
    last_answered_s: float | None
    round_trip_s: float | None


def following(now: float, interval_s: float, phase_s: float) -> float:
    """When the next question goes, half an interval from now at least: all with one phase ask at one time."""
    return (floor((now - phase_s) / interval_s + 0.5) + 1) * interval_s + phase_s


class ProbeWindow:
    """The last :data:`WINDOW` questions to one destination."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s`: the intended distance of questions, and the latest moment at which an answer is due."""
        self._interval_s = interval_s
        self._questions: deque[_Question] = deque(maxlen=WINDOW)
        self._open: list[_Question] = []
        """Those of them without an answer, in order."""
        self._round_trip_s: float | None = None
        self._last_answered_s: float | None = None

    def sent(self, number: int, now: float) -> float:
        """Question `number` left (or could not leave: it stays unanswered). Returns when its answer is due.

        Numbers must rise.
        """
        if self._questions and number <= self._questions[-1].number:
            raise ValueError(f"question {number} after {self._questions[-1].number}: numbers must rise")
        due = now + self._patience_s()
        if self._open and len(self._questions) == WINDOW and self._open[0] is self._questions[0]:
            del self._open[0]
        question = _Question(number, now, due)
        self._questions.append(question)
        self._open.append(question)
        return due

    def answered(self, number: int, now: float) -> bool:
        """An answer to `number` came, also when it came late; false for an unknown or repeated one."""
        for index, question in enumerate(self._open):
            if question.number == number:
                del self._open[index]
                question.answered = True
                self._last_answered_s = now
                self._smooth(now - question.sent)
                return True
        return False

    @property
    def unanswered(self) -> bool:
        """Whether the newest question has no answer, be it due or not."""
        return bool(self._open) and self._open[-1] is self._questions[-1]

    def evaluate(self, now: float) -> Judgement:
        """The judgement at this instant.

        Only questions that are answered or due count. *failing*: the last two are unanswered; *doubtful*: the last one
        is; *unknown*: there is none, or nobody has asked for a while (we were frozen or held up: our fault, not the
        path's).
        """
        missed, good = self._newest_run(now)
        word: Word = "passing"
        if not (missed or good) or now - self._questions[-1].sent > SILENT_INTERVALS * self._interval_s:
            word = "unknown"
        elif missed >= FAILING_AFTER:
            word = "failing"
        elif missed:
            word = "doubtful"
        settled = word in ("passing", "doubtful") and self._settled(now)
        return Judgement(word, missed, good, settled, self._last_answered_s, self._round_trip_s)

    def _newest_run(self, now: float) -> tuple[int, int]:
        """(missed, good); one of them is 0."""
        if not any(question.due <= now for question in self._open):  # as nearly always
            return 0, min(len(self._questions) - len(self._open), SETTLED_AFTER)
        missed = good = 0
        for question in reversed(self._questions):
            if question.answered:
                if missed or good == SETTLED_AFTER:
                    break
                good += 1
            elif question.due <= now:
                if good:
                    break
                missed += 1
        return missed, good

    def _settled(self, now: float) -> bool:
        """Whether the newest questions were all answered, late or not; one is lost an interval after it left."""
        lost = [question.number for question in self._open if question.sent + self._interval_s <= now]
        if not lost:
            return len(self._questions) - len(self._open) >= SETTLED_AFTER
        return sum(question.answered for question in self._questions if question.number > lost[-1]) >= SETTLED_AFTER

    def _patience_s(self) -> float:
        if self._round_trip_s is None:
            return self._interval_s
        return min(self._interval_s, max(DUE_MINIMUM_S, DUE_ROUND_TRIPS * self._round_trip_s))

    def _smooth(self, sample_s: float) -> None:
        # The usual gain of 1/8 (RFC 6298): one late answer must not double the patience.
        previous = self._round_trip_s
        self._round_trip_s = sample_s if previous is None else previous + (sample_s - previous) / 8
