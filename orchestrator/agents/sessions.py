"""The edge's word on each BGP and BFD session, from the signal table and from BIRD itself.

A gateway always announces its probe address, so the route to it in the signal table is there exactly while BGP is
Established. Its going is the signal, told by the kernel; BIRD is asked only for what makes the word doubtful.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from birdctl.commands import Bird
from birdctl.errors import BirdError
from dataplane.events import RouteChange
from fsm.ports import Clock
from fsm.records import Tunnel
from fsm.types import Session

POLL_S = 0.2
TOGETHER_S = 0.05
"""Sessions that fall within this many seconds of each other fell in one instant."""


@dataclass(slots=True)
class _Line:
    neighbor: str
    probe: str
    routed: bool = False
    bfd_up: bool = False
    was_up: bool = False
    """In the BIRD process that runs now."""
    fell_s: float | None = None


class Sessions:
    """One line a gateway. `on_change` is called synchronously, from inside the netlink reader when a session falls."""

    def __init__(self, bird: Bird, clock: Clock, on_change: Callable[[str], None]) -> None:
        self._bird, self._clock, self._on_change = bird, clock, on_change
        self._lines: dict[str, _Line] = {}
        self._process: str | None = None
        self.bird_answers = False

    def follow(self, tunnels: Iterable[Tunnel], routes: Iterable[str]) -> None:
        """Follow these tunnels; `routes`: prefixes that are in the signal table now."""
        present = set(routes)
        lines: dict[str, _Line] = {}
        for tunnel in tunnels:
            line = self._lines.get(tunnel.name)
            probe = f"{tunnel.probe_ipv4}/32"
            if line is None or line.probe != probe or line.neighbor != tunnel.gateway_ipv4:
                line = _Line(tunnel.gateway_ipv4, probe, routed=probe in present)
            lines[tunnel.name] = line
        self._lines = lines

    def on_route(self, change: RouteChange) -> None:
        """A route of the signal table appeared or went."""
        for gateway, line in self._lines.items():
            if line.probe == change.prefix and line.routed != change.added:
                line.routed = change.added
                line.was_up = line.was_up or (change.added and line.bfd_up)
                line.fell_s = None if change.added else self._clock.now()
                self._on_change(gateway)

    def fell_s(self, gateway: str) -> float | None:
        """When the session fell, if it is down."""
        line = self._lines.get(gateway)
        return line.fell_s if line else None

    def word(self, gateway: str, probes_pass: Callable[[str], bool]) -> tuple[Session, str]:
        """The session's state and, where it is unknown, why. `probes_pass` tells whether a gateway's probe passes."""
        line = self._lines.get(gateway)
        if line is None:
            return Session.UNKNOWN, "no tunnel"
        if not self.bird_answers:
            return Session.UNKNOWN, "BIRD is silent"
        if line.routed:
            return (Session.UP, "") if line.bfd_up else (Session.UNKNOWN, "BFD is not up")
        if not line.was_up:
            return Session.UNKNOWN, "never up in this BIRD process"
        if self._all_fell(line) and all(probes_pass(name) for name in self._lines):
            return Session.UNKNOWN, "all sessions fell at once while probes pass"
        return Session.DOWN, ""

    def _all_fell(self, line: _Line) -> bool:
        fallen = [other.fell_s for other in self._lines.values() if other.was_up]
        stamps = [stamp for stamp in fallen if stamp is not None]
        if line.fell_s is None or len(stamps) < 2 or len(stamps) < len(fallen):
            return False
        return max(stamps) - min(stamps) <= TOGETHER_S

    async def run(self) -> None:
        """Ask BIRD again and again."""
        while True:
            await self.poll()
            await self._clock.sleep(POLL_S)

    async def poll(self) -> None:
        """Ask BIRD once: is it there, is it the same process, which BFD sessions are up."""
        try:
            up = {str(session.address) for session in await self._bird.bfd_sessions() if session.up}
        except BirdError:
            self._silent()
            return
        before = {name: self._key(line) for name, line in self._lines.items()}
        process = self._bird.process
        if self._process is not None and process != self._process:
            for line in self._lines.values():
                line.was_up = False
        self._process, self.bird_answers = process, True
        for line in self._lines.values():
            line.bfd_up = line.neighbor in up
            line.was_up = line.was_up or (line.routed and line.bfd_up)
        for name, line in self._lines.items():
            if before[name] != self._key(line):
                self._on_change(name)

    def _silent(self) -> None:
        changed, self.bird_answers = self.bird_answers, False
        for line in self._lines.values():
            line.bfd_up = line.was_up = False
        if changed:
            for name in self._lines:
                self._on_change(name)

    def _key(self, line: _Line) -> tuple[bool, bool, bool, bool]:
        return (self.bird_answers, line.routed, line.bfd_up, line.was_up)
