"""Each question is told of when its answer is due, whatever is asked meanwhile."""

import asyncio

from dataplane.due import Due
from orchestrator.clock import BootClock

STEP_S = 0.02


async def test_each_moment_comes_also_when_the_next_question_is_asked_before() -> None:
    clock = BootClock()
    came: list[float] = []
    due, began = Due(clock, lambda: came.append(clock.now())), clock.now()
    due.at(began + 2 * STEP_S)
    await clock.sleep(STEP_S)
    due.at(began + 1.5 * STEP_S)  # its answer is due before that of the first
    await clock.sleep(2 * STEP_S)
    assert len(came) == 2
    assert came[0] - began >= 1.5 * STEP_S and came[1] - began >= 2 * STEP_S
    assert not due._timers, "what came is not kept: a probe asks for years"


async def test_no_moment_comes_before_its_time() -> None:
    """uvloop's timers may be early, and who looks early sees no answer missing, and does not look again."""
    clock = BootClock()
    early: list[float] = []

    def wait_for(moment: float) -> None:
        Due(clock, lambda: early.append(moment - clock.now())).at(moment)

    for step in range(200):
        wait_for(clock.now() + 0.005 + step / 10_000)
    await clock.sleep(0.05)
    assert len(early) == 200 and max(early) <= 0


async def test_what_is_cancelled_never_comes() -> None:
    came: list[bool] = []
    clock = BootClock()
    due = Due(clock, lambda: came.append(True))
    due.at(clock.now())
    due.at(clock.now() + STEP_S)
    due.cancel()
    assert not due._timers, "nor what was cancelled"
    await asyncio.sleep(2 * STEP_S)
    assert came == []
    due.at(clock.now())
    await asyncio.sleep(STEP_S)
    assert came == [True], "later ones do"
