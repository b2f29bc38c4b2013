"""Tunnels that fell silent are begun anew: a peer that lost its session is a stranger until a new handshake.

WireGuard by itself begins one after 15 s without an answer (its REKEY_TIMEOUT and KEEPALIVE_TIMEOUT), which is how long
a rebooted edge would be without its gateways. The edge's probes and BFD arrive many times a second while all is well.
The edge can't begin by itself: a NAT box lets through only what comes from the address that the gateway called, and the
edge's packets to a stranger bear that of the interface by which they leave.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dataplane.errors import DataplaneError
from dataplane.wireguard import PeerUpdate, WireGuard
from fsm.ports import Clock

SILENT_S = 1.0
"""Nothing received for so long means that the tunnel is silent."""
AGAIN_S = 0.5
"""Time between two new beginnings of one tunnel, at first: a machine that boots is to be called as soon as it hears."""
OFTEN_S = 15.0
"""For so long: most machines are back by then."""
SELDOM_S = 2.0
"""From then on: a handshake must have time to end, also on a path of more than half a second to and fro."""


@dataclass(slots=True)
class _Heard:
    rx_bytes: int
    at_s: float
    begun_s: float


class Reviver:
    """Looks at what each tunnel received, and begins those anew that are silent."""

    def __init__(self, wireguard: WireGuard, clock: Clock) -> None:
        self._wireguard, self._clock = wireguard, clock
        self._heard: dict[str, _Heard] = {}
        self.revived = 0
        """Times that a tunnel was begun anew."""
        self.handshakes: dict[str, float | None] = {}
        """Unix seconds of each device's last handshake, as last read."""
        self.silent: frozenset[str] = frozenset()
        """Devices on which nothing came lately, or that can't be read."""

    async def look(self, peers: Mapping[str, Sequence[PeerUpdate]]) -> None:
        """One look. `peers`: for each device what makes its peer anew, whole; a device that can't be read is passed."""
        self.handshakes = {device: self.handshakes.get(device) for device in peers}
        silent: set[str] = set()
        for device, updates in peers.items():
            key = updates[0].public_key
            try:
                state = (await self._wireguard.read(device)).peers.get(key)
                self.handshakes[device] = state.last_handshake_s if state is not None else None
                if state is None or self._is_silent(device, state.rx_bytes):
                    silent.add(device)
                if state is not None and device in silent and self._is_due(device):
                    # In two calls: in one, the peer would keep the session that it has.
                    await self._wireguard.update(device, [PeerUpdate(key, remove=True)])
                    await self._wireguard.update(device, updates)
                    self._heard[device].rx_bytes = 0
                    self.revived += 1
            except DataplaneError:
                self._heard.pop(device, None)  # reconciliation sees it too, and says so
                silent.add(device)
        self.silent = frozenset(silent)

    def _is_silent(self, device: str, rx_bytes: int) -> bool:
        now = self._clock.now()
        heard = self._heard.setdefault(device, _Heard(rx_bytes, now, now))
        if heard.rx_bytes != rx_bytes:
            heard.rx_bytes, heard.at_s = rx_bytes, now
        return now - heard.at_s >= SILENT_S

    def _is_due(self, device: str) -> bool:
        """Whether it may be begun anew at this moment; then it counts as done."""
        heard, now = self._heard[device], self._clock.now()
        if now - heard.begun_s < (AGAIN_S if now - heard.at_s < OFTEN_S else SELDOM_S):
            return False
        heard.begun_s = now
        return True
