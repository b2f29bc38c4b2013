"""The WireGuard port: one shape for the kernel's implementation and for wireguard-go.

Moving a prefix from a gateway's peer to another peer of the *same* device is one :class:`PeerUpdate` on the receiver:
WireGuard keeps one owner per allowed IP, so adding it there takes it from the other in the same step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dataplane.model import WireGuardDevice


@dataclass(frozen=True)
class PeerState:
    """A peer as read back. ``last_handshake_s``: seconds since the Unix epoch, None when there was none yet."""

    allowed_ips: frozenset[str]
    endpoint: str | None
    last_handshake_s: float | None
    rx_bytes: int
    tx_bytes: int
    keepalive_s: int | None = None


@dataclass(frozen=True)
class DeviceState:
    """A device as read back; ``peers`` by base64 public key, ``public_key`` None when it has no private key yet."""

    listen_port: int
    peers: Mapping[str, PeerState]
    public_key: str | None = None


@dataclass(frozen=True)
class PeerUpdate:
    """A change of one peer; the peer is created when it does not exist.

    What is None is left as it is: the endpoint that the kernel learnt from a peer behind a NAT must survive every
    update that does not name one.

    ``add_allowed_ips`` adds (and takes from the other peers of the device); ``replace_allowed_ips`` sets the whole
    list; ``remove`` removes the peer and must stand alone; ``keepalive_s`` 0 turns it off.
    """

    public_key: str
    add_allowed_ips: frozenset[str] = frozenset()
    replace_allowed_ips: frozenset[str] | None = None
    remove: bool = False
    endpoint: str | None = None
    keepalive_s: int | None = None


class WireGuard(Protocol):
    """What agents may ask of WireGuard. Every method has a deadline and raises errors of :mod:`dataplane.errors`."""

    async def ensure_device(
        self, name: str, private_key_file: Path, listen_port: int | None, mtu: int, alias: str
    ) -> None:
        """Make the interface exist, up, with this key, port, MTU and alias; change only what differs.

        Raises Conflict when an interface of that name is not ours or the UDP port is taken, KeyFileError when the key
        can't be used.
        """
        ...

    async def read(self, name: str) -> DeviceState:
        """The device as it is now. Raises KernelRefused(ENODEV) when there is none."""
        ...

    async def update(self, name: str, peers: Sequence[PeerUpdate]) -> None:
        """Apply all updates, in order, in one call to the implementation."""
        ...

    async def close(self) -> None:
        """Close our connections; devices and their peers stay."""
        ...


def peer_updates(actual: DeviceState, desired: WireGuardDevice, parking_key: str | None = None) -> list[PeerUpdate]:
    """The updates that make the device's peers as desired, without disturbing what is right: pure.

    A peer that exists keeps the endpoint it has, whatever the wish says (it may have been learnt through a NAT); the
    endpoint is set only with the peer's creation. Allowed IPs that a living peer must lose go to the parking peer when
    there is one: its whole list is never replaced, since that would leave a moment without any.
    """
    updates: list[PeerUpdate] = []
    for key, peer in sorted(desired.peers.items()):
        present = actual.peers.get(key)
        if present is None:
            updates.append(PeerUpdate(key, peer.allowed_ips, endpoint=peer.endpoint, keepalive_s=peer.keepalive_s))
            continue
        missing = peer.allowed_ips - present.allowed_ips
        keepalive = peer.keepalive_s or 0
        changed = keepalive != (present.keepalive_s or 0)
        surplus = present.allowed_ips - peer.allowed_ips
        wanted_elsewhere = frozenset[str]().union(*(p.allowed_ips for k, p in desired.peers.items() if k != key))
        leaving = surplus - wanted_elsewhere
        if leaving and (parking_key is None or key == parking_key):
            updates.append(PeerUpdate(key, replace_allowed_ips=peer.allowed_ips))
        elif leaving:
            assert parking_key is not None
            updates.append(PeerUpdate(parking_key, leaving))
        if missing or changed:
            updates.append(PeerUpdate(key, missing, keepalive_s=keepalive if changed else None))
    gone = [key for key in sorted(actual.peers) if key not in desired.peers and key != parking_key]
    return updates + [PeerUpdate(key, remove=True) for key in gone]
