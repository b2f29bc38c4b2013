"""BIRD's commands as typed calls, decided by reply code.

Every call raises BirdUnreachable, BirdTimeout and ProtocolError as the client does, and BirdRefused
when BIRD says no. All orders are idempotent: after an indeterminate failure they may be given again.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path

from birdctl.client import BirdClient
from birdctl.errors import BirdRefused, ProtocolError
from birdctl.names import reference
from birdctl.protocol import Reply
from birdctl.replies import Code

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# `Since` holds a space when BIRD's `timeformat protocol` is `iso long`; ours is a single word.
_PROTOCOL_ROW = re.compile(
    r"(?P<name>\S+)\s+(?P<kind>\S+)\s+(?P<table>\S+)\s+(?P<state>\S+)"
    r"\s+(?P<since>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*|\S+)\s*(?P<info>.*)"
)
_BFD_ROW_WORDS = 6


class Reconfigure(Enum):
    """How far `configure` has come when it answers. All three are a yes."""

    DONE = "done"
    IN_PROGRESS = "in progress"
    """Accepted; protocols that stop are still being flushed."""
    QUEUED = "queued"
    """Accepted; begins after the one in progress."""


@dataclass(frozen=True, slots=True)
class BirdStatus:
    """`show status`, and which process said so (`BirdClient.process`).

    `last_reconfiguration` is BIRD's own text, of the wall clock: the same text means the same configuration, another
    may mean no more than that BIRD reckoned the same instant a little differently.
    """

    version: str
    router_id: str
    process: str
    last_reconfiguration: str


@dataclass(frozen=True, slots=True)
class ProtocolState:
    """A row of `show protocols`. `since` is the instant of the last state change, for equality only.

    `up` is BIRD's protocol state; of a BGP session it means Established. `info` is free text, for people.
    """

    name: str
    kind: str
    table: str
    up: bool
    state: str
    since: str
    info: str


@dataclass(frozen=True, slots=True)
class BfdSession:
    """A row of `show bfd sessions`. `state` is AdminDown, Down, Init or Up (RFC 5880 section 4.1).

    `interval_ms` is the transmit interval in force, `timeout_ms` the detection time (0 until negotiated).
    `interface` is None for a multihop session.
    """

    address: Address
    interface: str | None
    state: str
    since: str
    interval_ms: float
    timeout_ms: float

    @property
    def up(self) -> bool:
        """Whether the session is Up."""
        return self.state == "Up"


class Bird:
    """What we ask of one BIRD."""

    def __init__(self, client: BirdClient) -> None:
        self.client = client

    @property
    def process(self) -> str:
        """Which process answered last, see `BirdClient.process`."""
        return self.client.process

    async def check(self, path: Path | None = None) -> None:
        """Read and verify a configuration, the one BIRD was started with by default; changes nothing.

        Raises BirdRefused (8002) with BIRD's FILE:LINE:COLUMN text when it is wrong.
        """
        command = "configure check" if path is None else f"configure check {_quoted(str(path))}"
        _accepted(command, await self.client.command(command))

    async def configure(self) -> Reconfigure:
        """Load the configuration file; where a filter changed, routes are asked for or sent again.

        Sessions whose own settings did not change stay up (route refresh, RFC 2918). Any protocol that was
        enabled or disabled by command goes back to what the file says.
        """
        return await self._configure("configure")

    async def configure_soft(self) -> Reconfigure:
        """As `configure`, but a changed filter serves for later routes only."""
        return await self._configure("configure soft")

    async def _configure(self, command: str) -> Reconfigure:
        reply = _accepted(command, await self.client.command(command))
        if reply.has(Code.RECONFIGURATION_QUEUED):
            return Reconfigure.QUEUED
        return Reconfigure.IN_PROGRESS if reply.has(Code.RECONFIGURATION_IN_PROGRESS) else Reconfigure.DONE

    async def enable(self, *names: str) -> tuple[bool, ...]:
        """Enable protocols, many at a time; true where this call changed it. Refused (8003) if unknown.

        Lasts until the next `configure`: the file is the truth.
        """
        return await self.switch(enable=names, disable=())

    async def disable(self, *names: str) -> tuple[bool, ...]:
        """Disable protocols, many at a time; true where this call changed it. Refused (8003) if unknown.

        Lasts until the next `configure`: the file is the truth.
        """
        return await self.switch(enable=(), disable=names)

    async def switch(self, *, enable: tuple[str, ...], disable: tuple[str, ...]) -> tuple[bool, ...]:
        """Disable, then enable, many at a time. One bool per name, the disabled ones first.

        All commands are given also when one of them is refused; then the first refusal is raised.
        """
        # A quoted name is answered 8003 when unknown, a bare one 9001 like any syntax error.
        commands = [f"disable {_quoted(name)}" for name in disable] + [f"enable {_quoted(name)}" for name in enable]
        replies = await self.client.commands(commands)
        for command, reply in zip(commands, replies, strict=True):
            _accepted(command, reply)
        return tuple(reply.has(Code.ENABLED) or reply.has(Code.DISABLED) for reply in replies)

    async def status(self) -> BirdStatus:
        """Version, router id, and when this process and its configuration began."""
        reply = _accepted("show status", await self.client.command("show status"))
        facts = reply.texts(Code.UPTIME)
        return BirdStatus(
            version=" ".join(reply.texts(Code.VERSION)).removeprefix("BIRD").strip(),
            router_id=_after("Router ID is ", facts),
            process=self.process,
            last_reconfiguration=_after("Last reconfiguration on ", facts),
        )

    async def protocols(self) -> tuple[ProtocolState, ...]:
        """All protocols, in BIRD's order."""
        reply = _accepted("show protocols", await self.client.command("show protocols"))
        return tuple(_protocol_row(text) for text in reply.texts(Code.PROTOCOL_ROW))

    async def bfd_sessions(self) -> tuple[BfdSession, ...]:
        """All BFD sessions of all BFD protocols; () when no BFD protocol runs."""
        reply = await self.client.command("show bfd sessions")
        if reply.code == Code.PARSE_ERROR:
            # 2.0.12 answers 9001 "There is no BFD protocol running" to a command that has no other fault.
            return ()
        rows = _accepted("show bfd sessions", reply).texts(Code.BFD_ROW)
        return tuple(session for row in rows if (session := _bfd_row(row)) is not None)

    async def exported(self, protocol: str) -> tuple[Network, ...]:
        """The prefixes that this protocol's neighbour has been sent now; () when its session is down.

        Refused (9001) when there is no such protocol.
        """
        command = f"show route exported {reference(protocol)}"
        reply = await self.client.command(command)
        if reply.code == Code.PARSE_ERROR and await self._exists(protocol):
            return ()
        return _networks(command, reply)

    async def routes(self, protocol: str) -> tuple[Network, ...]:
        """The prefixes that came from this protocol, selected or not; refused (9001) if there is none such."""
        command = f"show route protocol {reference(protocol)}"
        return _networks(command, await self.client.command(command))

    async def _exists(self, protocol: str) -> bool:
        # 9001 is the answer for a session that is down and for an unknown name alike.
        return any(row.name == protocol for row in await self.protocols())


def _accepted(command: str, reply: Reply) -> Reply:
    if reply.refused:
        raise BirdRefused(reply.code, reply.text, command)
    return reply


def _quoted(text: str) -> str:
    if '"' in text:
        raise ValueError(f"BIRD's commands cannot carry a double quote: {text!r}")
    return f'"{text}"'


def _after(beginning: str, texts: tuple[str, ...]) -> str:
    return next((text.removeprefix(beginning) for text in texts if text.startswith(beginning)), "")


def _protocol_row(text: str) -> ProtocolState:
    match = _PROTOCOL_ROW.fullmatch(text.rstrip())
    if match is None:
        raise ProtocolError(f"not a row of `show protocols`: {text!r}")
    row = match.groupdict()
    return ProtocolState(
        name=row["name"],
        kind=row["kind"],
        table=row["table"],
        up=row["state"] == "up",
        state=row["state"],
        since=row["since"],
        info=row["info"].strip(),
    )


def _bfd_row(text: str) -> BfdSession | None:
    words = text.split()
    if len(words) < _BFD_ROW_WORDS:
        return None
    try:
        address = ip_address(words[0])
    except ValueError:
        return None  # the protocol's name, or the heading
    try:
        interval_s, timeout_s = float(words[-2]), float(words[-1])
    except ValueError as error:
        raise ProtocolError(f"not a row of `show bfd sessions`: {text!r}") from error
    return BfdSession(
        address=address,
        interface=None if words[1] == "---" else words[1],
        state=words[2],
        since=" ".join(words[3:-2]),
        interval_ms=round(interval_s * 1000, 3),
        timeout_ms=round(timeout_s * 1000, 3),
    )


@lru_cache(maxsize=65536)
def network(word: str) -> Network:
    """A prefix as BIRD writes it. Remembered: the same come by all day. Raises ValueError."""
    return ip_network(word)


def _networks(command: str, reply: Reply) -> tuple[Network, ...]:
    if reply.code == Code.ROUTE_NOT_FOUND:
        return ()
    found: dict[Network, None] = {}
    for text in _accepted(command, reply).texts(Code.ROUTE_ROW):
        # Further routes of one network, and next hops, begin with white space; a table's name is no network.
        word = text.split(" ", 1)[0]
        try:
            found[network(word)] = None
        except ValueError:
            continue
    return tuple(found)
