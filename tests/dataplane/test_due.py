"""Each question is told of when its answer is due, whatever is asked meanwhile."""

import asyncio

from dataplane.due import Due

STEP_S = 0.02


async def test_each_moment_comes_also_when_the_next_question_is_asked_before() -> None:
    loop = asyncio.get_running_loop()
    came: list[float] = []
    due, began = Due(lambda: came.append(loop.time())), loop.time()
    due.within(2 * STEP_S)
    await asyncio.sleep(STEP_S)
    due.within(STEP_S / 2)  # its answer is due before that of the first
    await asyncio.sleep(2 * STEP_S)
    assert len(came) == 2
    assert came[0] - began >= 1.4 * STEP_S and came[1] - began >= 1.9 * STEP_S


async def test_what_is_spared_never_comes() -> None:
    came: list[bool] = []
    due = Due(lambda: came.append(True))
    due.within(0)
    due.within(STEP_S)
    due.spare()
    await asyncio.sleep(2 * STEP_S)
    assert came == []
    due.within(0)
    await asyncio.sleep(STEP_S)
    assert came == [True], "later ones do"
