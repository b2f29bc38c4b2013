"""Whether other machines on the cluster LAN answer: echo requests to a set of addresses, a stamp for each answer."""

import asyncio
from collections.abc import Iterable

from dataplane.errors import KernelRefused
from dataplane.icmp import EchoSocket
from fsm.ports import Clock


class Reach:
    """Asks each address once an interval. It judges nothing: stamps are for whoever compares machines."""

    def __init__(
        self,
        clock: Clock,
        interval_ms: int = 200,
        source: str | None = None,
        device: str | None = None,
        namespace: str | None = None,
    ) -> None:
        """Questions leave from `source` and only through `device`, where given: not around by another network."""
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._source = source
        self._device = device
        self._namespace = namespace
        self._addresses: tuple[str, ...] = ()
        self._answered: dict[str, float] = {}
        self._sockets: dict[bool, EchoSocket] = {}
        self._number = 0

    def watch(self, addresses: Iterable[str]) -> None:
        """Ask these from now on; the stamps of others are forgotten."""
        self._addresses = tuple(addresses)
        self._answered = {a: stamp for a, stamp in self._answered.items() if a in self._addresses}

    def last_answered(self) -> dict[str, float]:
        """When each address answered last, on our clock; one that never did is absent."""
        self._collect()
        return dict(self._answered)

    def reachable(self, within_s: float) -> frozenset[str]:
        """The addresses that answered within that time."""
        limit = self._clock.now() - within_s
        return frozenset(address for address, stamp in self.last_answered().items() if stamp >= limit)

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                for address in self._addresses:
                    self._ask(address)
                await self._clock.sleep(self._interval_s)
        finally:
            for v6 in list(self._sockets):
                self._drop(v6)

    def _ask(self, address: str) -> None:
        self._number += 1
        v6 = ":" in address
        try:
            if v6 not in self._sockets:
                self._sockets[v6] = EchoSocket(self._source, address, self._device, self._namespace)
                asyncio.get_running_loop().add_reader(self._sockets[v6].fileno(), self._collect)
            if self._sockets[v6].send(address, self._number):
                self._drop(v6)
        except KernelRefused:
            return  # no such device or address at present: nothing is reached, which is what the stamps will say

    def _drop(self, v6: bool) -> None:
        gone = self._sockets.pop(v6)
        asyncio.get_running_loop().remove_reader(gone.fileno())
        gone.close()

    def _collect(self) -> None:
        for sock in self._sockets.values():
            sock.receive(self._take)

    def _take(self, _number: int, sender: str) -> None:
        if sender in self._addresses:
            self._answered[sender] = self._clock.now()
