"""Moments at which answers are due: turns of the event loop that are spared when the answers are there before."""

import asyncio
from collections.abc import Callable


class Due:
    """`on_due` is called from the event loop at each such moment; it must not block or raise."""

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._timers: set[asyncio.TimerHandle] = set()

    def within(self, seconds: float) -> None:
        """An answer is due in so many seconds. Those that are awaited already stay so: each has its own moment."""

        def meet() -> None:
            self._timers.discard(timer)
            self._on_due()

        timer = asyncio.get_running_loop().call_later(seconds, meet)
        self._timers.add(timer)

    def spare(self) -> None:
        """Nothing is awaited any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
