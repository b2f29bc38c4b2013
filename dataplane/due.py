"""Moments at which answers are due: turns of the event loop that are spared when the answers are there before."""

import asyncio
from collections.abc import Callable

from fsm.ports import Clock

_TICK_S = 0.001
"""uvloop's timers count milliseconds, and may be early by as much: so who is early waits for one more."""


class Due:
    """`on_due` is called from the event loop at each such moment, and never before; it must not block or raise."""

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._timers: set[asyncio.TimerHandle] = set()

    def at(self, moment: float) -> None:
        """An answer is due then, in seconds of the clock. Those that are awaited stay so: each has its own moment."""

        def meet() -> None:
            self._timers.discard(timer)
            if self._clock.now() < moment:
                self.at(moment)
            else:
                self._on_due()

        left_s = max(moment - self._clock.now(), _TICK_S)
        timer = asyncio.get_running_loop().call_later(left_s, meet)
        self._timers.add(timer)

    def spare(self) -> None:
        """Nothing is awaited any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
