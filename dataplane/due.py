"""Moments at which something is due, as the next question or the answer to the last one."""

import asyncio
from collections.abc import Callable

from fsm.ports import Clock

_TICK_S = 0.001
"""uvloop's timers count milliseconds, and may be early by as much: a turn of the loop for nothing."""


class Due:
    """`on_due` is called from the event loop at each such moment, never before and up to two milliseconds after.

    It must not block or raise.
    """

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def at(self, moment: float) -> None:
        """Then, in seconds of the clock. Others that are awaited stay so: each has its own moment."""
        if moment not in self._timers:
            left_s = max(moment - self._clock.now(), 0.0) + _TICK_S
            self._timers[moment] = asyncio.get_running_loop().call_later(left_s, self._meet, moment)

    def _meet(self, moment: float) -> None:
        del self._timers[moment]
        if self._clock.now() < moment:
            self.at(moment)
        else:
            self._on_due()

    def cancel(self) -> None:
        """None of them comes any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
