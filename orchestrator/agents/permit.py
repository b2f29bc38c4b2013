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
"""What is lent is shorter than the lease by so much, in seconds: `LATE_S`, and what the kernel takes to hear of it."""
LATE_S = 1.9
"""A session may outlive what was lent by so much, in seconds. One is the kernel's, which looks for addresses whose time
is over once a second at most, and each new address anywhere on the machine has it look (net/ipv4/devinet.c,
check_lifetime); the rest is the edge's BFD in its slowest profile."""
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
        self._for_good &= ends - lent
        trouble: list[DataplaneError] = []
        for address in sorted((ends - self._for_good) | lent, key=str):
            try:
                if address in lent:
                    await self._lend(address)
                else:
                    await self._netlink.lend(address, None)
                    self._for_good |= {address}
            except DataplaneError as error:
                trouble.append(error)  # one that is refused must not keep the others' time from going on
        if trouble:
            self._problems.set("permit", trouble[0])
        else:
            self._problems.clear("permit")

    async def _lend(self, address: Address) -> None:
        """Lend it for what the lease has left now: others were lent before it, and each may have taken its time.

        What took so long that the kernel counts from too late an instant is lent once more for less, or taken back.
        """
        too_long = False
        while (left_s := self._left_s()) >= MARGIN_S + 1:
            self._had_lease = True
            lent_s = math.floor(left_s) - MARGIN_S
            await self._netlink.lend(address, lent_s)
            too_long = lent_s + LATE_S > self._left_s()
            if not too_long:
                return
        # What a former life lent runs out by itself: a restart costs no session. What it left for good does not.
        over = left_s <= 0 and (self._had_lease or self._clock.now() >= self._former_until_s)
        if too_long or over:
            await self._netlink.apply([DeleteAddress(address)])
