"""One lease for one process, renewed only while the process does its work."""

import asyncio
import math
from collections.abc import Callable

from fsm.ports import Clock
from orchestrator.store.port import Indeterminate, LeaseLost, Refused, Store, Unavailable

_RETRY_SHARE = 0.25
"""After a renewal that failed or was withheld, the next try comes after this share of the renewal interval."""


class Session:
    """The lease that all keys of one process hang on: registration, heartbeat, leadership.

    - The time left is counted from the moment the last successful renewal was *sent*: the server's own count starts no
      earlier, so the deadline here never lies after the server's (no synchronised clocks are needed for that).
    - **Zombie rule**: it renews only if ``progress()`` has changed since the last renewal. A process whose loop hangs
      must not go on claiming to be alive only because its timer still runs.
    - ``lost`` says that the *server* no longer knows the lease. A deadline that has passed while no server could be
      reached is doubt, not loss: etcd extends leases over its own elections, so after an outage the renewal may well
      succeed and everything goes on. Whoever needs certainty asks `deadline`.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ttl_ms: int,
        renew_every_ms: int,
        progress: Callable[[], int],
        on_renewed: Callable[[float], None] | None = None,
    ) -> None:
        """``ttl_ms`` is rounded up to seconds; ``on_renewed`` gets the seconds left after each grant and renewal."""
        if not 0 < renew_every_ms * 3 <= ttl_ms:
            raise ValueError(f"renewal every {renew_every_ms} ms must be at most a third of the lease's {ttl_ms} ms")
        self._store = store
        self._clock = clock
        self._ttl_s = math.ceil(ttl_ms / 1000)
        self._renew_every_s = renew_every_ms / 1000
        self._progress = progress
        self._on_renewed = on_renewed
        self._lease_id = 0
        self._granted_ttl_s = 0
        self._valid_until = -math.inf
        self._renewed_progress = 0
        self.lost = asyncio.Event()
        """Set when the server has no such lease any more, until `open` grants another."""
        self.renewals = 0
        """Renewals that succeeded."""
        self.withheld = 0
        """Renewals not sent because there was no progress."""
        self.failures = 0
        """Renewals that got no answer."""

    @property
    def lease_id(self) -> int:
        """Id of the lease, 0 before `open` and after a loss."""
        return self._lease_id

    @property
    def granted_ttl_s(self) -> int:
        """Seconds that the server granted; etcd raises short ones (2 s is the least by default)."""
        return self._granted_ttl_s

    def deadline(self, now: float) -> float:
        """Seconds for which the lease is certainly alive; zero or less once that can't be said any more."""
        return self._valid_until - now

    async def open(self) -> int:
        """Grant a lease, at the start or again after a loss; returns its id. Raises what `Store.grant` raises."""
        sent = self._clock.now()
        progress = self._progress()
        grant = await self._store.grant(self._ttl_s)
        self._lease_id = grant.lease_id
        self._granted_ttl_s = grant.ttl_s
        self._renewed_progress = progress
        self.lost.clear()
        self._extend(sent, grant.ttl_s)
        return grant.lease_id

    async def run(self) -> None:
        """Renew for ever; cancel it to stop. Idle while there is no lease."""
        delay_s = self._renew_every_s
        while True:
            await self._clock.sleep(delay_s)
            ok = await self.renew()
            delay_s = self._renew_every_s if ok else self._renew_every_s * _RETRY_SHARE

    async def renew(self) -> bool:
        """Renew once if there was progress; returns whether the lease was renewed."""
        lease_id = self._lease_id
        if lease_id == 0:
            return False
        progress = self._progress()
        if progress == self._renewed_progress:
            self.withheld += 1
            return False
        sent = self._clock.now()
        try:
            ttl_s = await self._store.keepalive(lease_id)
        except LeaseLost:
            self.report_lost(lease_id)
            return False
        except Unavailable:
            self.failures += 1
            return False
        if lease_id != self._lease_id:
            return False
        self._renewed_progress = progress
        self.renewals += 1
        self._extend(sent, ttl_s)
        return True

    def report_lost(self, lease_id: int) -> None:
        """Tell the session that the server refused this lease as unknown; ignored if it is not the present one."""
        if lease_id != 0 and lease_id == self._lease_id:
            self._lease_id = 0
            self._valid_until = -math.inf
            self.lost.set()

    async def close(self) -> None:
        """Revoke the lease, so that its keys go at once; if nobody answers they go when it expires, and likewise if
        etcd refuses because a stranger hung a key on it.
        """
        lease_id, self._lease_id = self._lease_id, 0
        self._valid_until = -math.inf
        if lease_id == 0:
            return
        try:
            await self._store.revoke(lease_id)
        except (Unavailable, Indeterminate, Refused):
            self.failures += 1

    def _extend(self, sent: float, ttl_s: int) -> None:
        self._valid_until = max(self._valid_until, sent + ttl_s)
        if self._on_renewed is not None:
            self._on_renewed(self.deadline(self._clock.now()))
