"""What the outside world must offer to code that also has to run in virtual time."""

from typing import Protocol


class Clock(Protocol):
    """A clock that never jumps: CLOCK_BOOTTIME on a real machine, the simulator's own in a test.

    Stamps of two hosts are never compared with each other.
    """

    def now(self) -> float:
        """Seconds since an arbitrary origin, rising also while the machine is suspended."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that many seconds of this clock."""
        ...
