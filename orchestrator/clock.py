"""The machine's own clocks: the one for arithmetic, and the time of day for people."""

import asyncio
import time


class BootClock:
    """CLOCK_BOOTTIME and the event loop's sleep."""

    def now(self) -> float:
        """Seconds since boot, suspend included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def wall_ms() -> int:
    """Unix time in milliseconds, for records that people read, never for a decision."""
    return time.time_ns() // 1_000_000
