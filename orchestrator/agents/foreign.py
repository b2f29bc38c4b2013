"""Foreign rules that are in the way of a gateway's, looked for now and then."""

from contextlib import suppress

from dataplane.errors import DataplaneError
from dataplane.nft import Nft
from dataplane.nft_foreign import ForeignRule, Ours
from fsm.ports import Clock

LOOK_EVERY_S = 30.0
"""All rules of the machine are listed for it, which may be many thousands."""


class ForeignRules:
    """What nft was last seen to hold against us."""

    def __init__(self, nft: Nft, clock: Clock) -> None:
        self._nft, self._clock = nft, clock
        self._found: tuple[ForeignRule, ...] = ()
        self._asked: Ours | None = None
        self._due_s = 0.0

    async def look(self, ours: Ours) -> tuple[ForeignRule, ...]:
        """Those found at most LOOK_EVERY_S ago, as long as what is ours stays the same; found ones are looked for
        each time, so that their removal shows at once.

        A listing that fails or takes too long finds nothing new: whether nft works at all shows by our own table.
        """
        now_s = self._clock.now()
        if self._found or ours != self._asked or now_s >= self._due_s:
            self._asked, self._due_s = ours, now_s + LOOK_EVERY_S
            with suppress(DataplaneError):
                self._found = await self._nft.in_the_way(ours)
        return self._found
