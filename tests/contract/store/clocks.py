"""A clock for tests, which moves only when it is told to."""

import asyncio
import heapq
import itertools
from collections.abc import Callable


class VirtualClock:
    """Time stands still until `advance`; sleepers wake in order of their due time."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait for the clock to be moved that far; even a zero sleep lets others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    async def settle(self) -> None:
        """Let every task run until all of them wait for something."""
        for _ in range(60):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the clock, stopping at each sleeper that becomes due."""
        end = self._now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._now = due
            future.set_result(None)
            await self.settle()
        self._now = end
        await self.settle()

    async def advance_until(self, condition: Callable[[], bool], limit_s: float, step_s: float = 0.01) -> float:
        """Move in steps until the condition holds; returns the seconds it took, raises TimeoutError at the limit."""
        start = self._now
        await self.settle()
        while not condition():
            if self._now - start >= limit_s:
                raise TimeoutError(f"not within {limit_s} virtual seconds")
            await self.advance(step_s)
        return self._now - start
