"""Work in the second thread: what it costs those in the daemon's own."""

import asyncio
import sys
import time

from dataplane.aside import aside

PYTHONS_OWN_S = 0.005
"""The interval of a Python that is left as it comes."""


async def wait_beside_work() -> float:
    """How long a turn of a millisecond takes here while somebody computes there.

    The quarter that was fastest: in the others the machine may have had other things to do.
    """

    async def compute(until: float) -> None:
        while time.monotonic() < until:
            sum(range(100))

    work = asyncio.create_task(aside(compute(time.monotonic() + 0.4)))
    await asyncio.sleep(0.01)
    waits = []
    while not work.done():
        began = time.monotonic()
        await asyncio.sleep(0.001)
        waits.append(time.monotonic() - began)
    return sorted(waits)[len(waits) // 4]


async def test_who_computes_there_keeps_nobody_here_waiting_long() -> None:
    waited = await wait_beside_work()
    assert waited < 0.004
    ours_s = sys.getswitchinterval()
    sys.setswitchinterval(PYTHONS_OWN_S)
    try:
        assert waited < await wait_beside_work() / 2
    finally:
        sys.setswitchinterval(ours_s)
