"""The machine's own clocks: the one for arithmetic, and the time of day for people."""

import asyncio
import time

_TICK_S = 0.001
"""uvloop's timers count milliseconds, and may be early by as much."""


class BootClock:
    """CLOCK_BOOTTIME and the event loop's sleep."""

    def now(self) -> float:
        """Seconds since boot, suspend included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        """Wait; never less than that, and up to two milliseconds more."""
        until = self.now() + seconds
        await asyncio.sleep(seconds + _TICK_S if seconds > 0 else 0)
        while (left := until - self.now()) > 0:  # noqa: ASYNC110 - there is nothing to wait for but time
            await asyncio.sleep(left + _TICK_S)


def wall_ms() -> int:
    """Unix time in milliseconds, for records that people read, never for a decision."""
    return time.time_ns() // 1_000_000
