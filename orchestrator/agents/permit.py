"""`onStoreLoss: withdraw`: a gateway's sessions hang on addresses that the kernel takes away before its lease can end.

They are lent for a while, again and again, as long as the lease is known to live. Whoever is frozen, dead or cut off
from the store lends no more; nothing of ours has to run for the address to go, and with it BGP and BFD, and with those
all that the gateway announces.
"""

import math
from collections.abc import Callable

from dataplane.diff import DeleteAddress
from dataplane.errors import DataplaneError
from dataplane.model import Address
from dataplane.netlink import Netlink
from fsm.ports import Clock
from orchestrator.agents.problems import Problems

LEND_EVERY_S = 0.5
MARGIN_S = 2
"""One second that the kernel may be late, since it looks for addresses whose time is over once a second at most and
each new address anywhere on the machine has it look (net/ipv4/devinet.c, check_lifetime); one for the edge's BFD."""
STOOD_STILL_S = 0.5
"""An agent that takes so long for one address was stopped in between, and has lent it for too long by as much."""
LEAST_TTL_MS = 6000
"""With a shorter lease an address would be lent for too short a time to outlive one renewal that is late."""


class Permit:
    """Lends addresses. `left_s` gives the seconds for which the lease is certainly alive, 0 or less for none.

    `ttl_s` is how long a lease lives, in seconds: what a former life of this agent lent has gone by then.
    """

    def __init__(
        self, netlink: Netlink, clock: Clock, problems: Problems, left_s: Callable[[], float], ttl_s: float
    ) -> None:
        self._netlink, self._clock, self._problems, self._left_s = netlink, clock, problems, left_s
        self._former_until_s = clock.now() + ttl_s
        """Until then an address that is there may have been lent under the lease of a former life."""
        self._had_lease = False
        self._for_good: frozenset[Address] = frozenset()
        """Those that were given for good in this life."""

    async def run(self, ends: Callable[[], frozenset[Address]], lent: Callable[[], frozenset[Address]]) -> None:
        """Lend, for ever; cancel it to stop."""
        while True:
            await self.look(ends(), lent())
            await self._clock.sleep(LEND_EVERY_S)

    async def look(self, ends: frozenset[Address], lent: frozenset[Address]) -> None:
        """Lend once those of the tunnels' ends that are `lent`. The others are the tunnels' own.

        Those may have been lent before, also by a former life, and then their time is running: it is made endless.
        """
        try:
            self._for_good &= ends - lent
            for address in sorted(ends - lent - self._for_good, key=str):
                await self._netlink.lend(address, None)
                self._for_good |= {address}
            for address in sorted(lent, key=str):
                await self._lend(address)
            self._problems.clear("permit")
        except DataplaneError as error:
            self._problems.set("permit", error)

    async def _lend(self, address: Address) -> None:
        """Lend it for what the lease has left now: others were lent before it, and each may have taken its time."""
        stood_still = False
        while (left_s := self._left_s()) >= MARGIN_S + 1:
            self._had_lease = True
            await self._netlink.lend(address, math.floor(left_s) - MARGIN_S)
            stood_still = left_s - self._left_s() >= STOOD_STILL_S
            if not stood_still:
                return
        # What a former life lent runs out by itself: a restart costs no session. What it left for good does not.
        over = left_s <= 0 and (self._had_lease or self._clock.now() >= self._former_until_s)
        if stood_still or over:
            await self._netlink.apply([DeleteAddress(address)])
