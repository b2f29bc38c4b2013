"""The text protocol of userspace WireGuard's control socket: values to text and back, no IO.

Source: https://www.wireguard.com/xplatform/ ("set=1" and "get=1", keys in hexadecimal, "errno=0" ends an answer).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dataplane.keys import PrivateKey, public_key_bytes, public_key_text
from dataplane.model import canonical
from dataplane.wireguard import DeviceState, PeerState, PeerUpdate

GET = "get=1\n\n"


def set_device(private_key: PrivateKey | None = None, listen_port: int | None = None) -> str:
    """A request that sets only what is not None."""
    lines = ["set=1"]
    if private_key is not None:
        lines.append(f"private_key={private_key.secret_hex()}")
    if listen_port is not None:
        lines.append(f"listen_port={listen_port}")
    return "\n".join(lines) + "\n\n"


def set_peers(updates: Sequence[PeerUpdate]) -> str:
    """One request for all updates, performed in order. Endpoints must be numeric. Raises ValueError on a bad key."""
    return "\n".join(["set=1", *(line for update in updates for line in _peer_lines(update))]) + "\n\n"


def _peer_lines(update: PeerUpdate) -> Iterator[str]:
    yield f"public_key={public_key_bytes(update.public_key).hex()}"
    if update.remove:
        if update != PeerUpdate(update.public_key, remove=True):
            raise ValueError(f"peer {update.public_key}: removed and changed in one update")
        yield "remove=true"
        return
    if update.endpoint is not None:
        yield f"endpoint={update.endpoint}"
    if update.keepalive_s is not None:
        yield f"persistent_keepalive_interval={update.keepalive_s}"
    if update.replace_allowed_ips is not None:
        yield "replace_allowed_ips=true"
    for prefix in sorted(update.add_allowed_ips | (update.replace_allowed_ips or frozenset())):
        yield f"allowed_ip={canonical(prefix)[0]}"


def answer_errno(answer: str) -> int:
    """The positive errno of an answer, 0 for success. Raises ValueError when it has none."""
    for line in reversed(answer.splitlines()):
        name, _, value = line.partition("=")
        if name == "errno":
            return abs(int(value))
    raise ValueError("an answer of the WireGuard socket has no errno line")


@dataclass
class _PeerDraft:
    allowed_ips: set[str] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)
    endpoint: str | None = None

    def state(self) -> PeerState:
        seconds = self.numbers.get("last_handshake_time_sec", 0)
        nanoseconds = self.numbers.get("last_handshake_time_nsec", 0)
        return PeerState(
            allowed_ips=frozenset(self.allowed_ips),
            endpoint=self.endpoint,
            last_handshake_s=seconds + nanoseconds / 1e9 if seconds or nanoseconds else None,
            rx_bytes=self.numbers.get("rx_bytes", 0),
            tx_bytes=self.numbers.get("tx_bytes", 0),
            keepalive_s=self.numbers.get("persistent_keepalive_interval") or None,
        )


def parse_device(answer: str) -> DeviceState:
    """The device in an answer to GET. Lines that a newer implementation adds are ignored."""
    peers: dict[str, _PeerDraft] = {}
    current: _PeerDraft | None = None
    public_key: str | None = None
    listen_port = 0
    for line in answer.splitlines():
        name, _, value = line.partition("=")
        if name == "private_key":
            raw = bytes.fromhex(value)
            public_key = PrivateKey(raw).public if any(raw) else None
        elif name == "listen_port":
            listen_port = int(value)
        elif name == "public_key":
            current = peers.setdefault(public_key_text(bytes.fromhex(value)), _PeerDraft())
        elif current is None:
            continue
        elif name == "allowed_ip":
            current.allowed_ips.add(canonical(value)[0])
        elif name == "endpoint":
            current.endpoint = value
        elif name.startswith(("last_handshake", "rx_", "tx_", "persistent_")):
            current.numbers[name] = int(value)
    return DeviceState(listen_port, {key: draft.state() for key, draft in peers.items()}, public_key)
