"""The daemons' clock on the daemons' event loop."""

import asyncio

from orchestrator.clock import BootClock


async def test_a_sleep_is_never_shorter_than_asked() -> None:
    """uvloop's timers may be early by a millisecond: who then looks what is due finds nothing."""
    clock = BootClock()

    async def slept(seconds: float) -> float:
        began = clock.now()
        await clock.sleep(seconds)
        return clock.now() - began - seconds

    over = await asyncio.gather(*(slept(0.005 + step / 10_000) for step in range(200)))
    assert min(over) >= 0


async def test_a_sleep_of_nothing_lets_others_have_their_turn() -> None:
    others: list[str] = []
    asyncio.get_running_loop().call_soon(others.append, "turn")
    await BootClock().sleep(0)
    assert others == ["turn"]
