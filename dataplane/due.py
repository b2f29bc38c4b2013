"""The moment at which an answer is due: a turn of the event loop that is spared when the answer is there before."""

import asyncio
from collections.abc import Callable


class Due:
    """One such moment at a time. `on_due` is called from the event loop; it must not block or raise."""

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float) -> None:
        """An answer is due in so many seconds; that of the question before it is due now at the latest."""
        self.meet()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.meet)

    def meet(self) -> None:
        """The moment has come, unless it was spared."""
        if self._timer is not None:
            self.spare()
            self._on_due()

    def spare(self) -> None:
        """Nothing is awaited any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
