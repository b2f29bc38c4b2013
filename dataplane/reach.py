"""Whether the cluster LAN carries packets: echo requests to other machines on it, judged round by round."""

from collections.abc import Callable, Iterable

from dataplane.due import Due
from dataplane.errors import KernelRefused
from dataplane.icmp import EchoSocket
from dataplane.probe_window import ProbeWindow
from fsm.ports import Clock

LOST_AFTER = 3
"""So many rounds in a row in which nobody answered mean that the LAN is lost: as many packets as BFD lets go by."""

ASKED_AT_ONCE = 3
"""Addresses that one round asks; more take turns, so that the cost does not grow with the number of nodes."""


class Reach:
    """Asks other machines on the LAN, many times a second, and tells when that ends or begins to be answered.

    It counts questions, not time: after standing still itself it takes in what was answered meanwhile, and blames
    nobody. What a machine that reaches nobody means is for whoever compares machines.
    """

    def __init__(
        self,
        clock: Clock,
        source: str | None = None,
        device: str | None = None,
        namespace: str | None = None,
    ) -> None:
        """Questions leave from `source` and only through `device`, where given: not around by another network."""
        self._clock = clock
        self._source = source
        self._device = device
        self._namespace = namespace
        self.on_change: Callable[[], None] = lambda: None
        """Called from the event loop when `reached` or `judged` differ from what they were; must not block or raise."""
        self._addresses: tuple[str, ...] = ()
        self._interval_s = 0.05
        self._rounds = ProbeWindow(self._interval_s)
        self._missed: dict[str, int] = {}
        """Questions to each address since its last answer; one that never answered is absent."""
        self._sockets: dict[bool, EchoSocket] = {}
        self._due = Due(clock, self._tell)
        self._round = 0
        self._told: tuple[bool, frozenset[str]] = (False, frozenset())

    def watch(self, addresses: Iterable[str], interval_ms: int) -> None:
        """Ask these from now on, a round every so many milliseconds; what others answered is forgotten."""
        self._addresses = tuple(addresses)
        self._missed = {a: missed for a, missed in self._missed.items() if a in self._addresses}
        if self._interval_s != interval_ms / 1000:
            self._interval_s = interval_ms / 1000
            self._rounds = ProbeWindow(self._interval_s)

    def reached(self) -> frozenset[str]:
        """The addresses that answer; none once the last rounds went by without any answer."""
        self._collect()
        if self._rounds.evaluate(self._clock.now()).missed >= LOST_AFTER:
            return frozenset()
        # The newest question may still be on its way.
        return frozenset(address for address, missed in self._missed.items() if missed <= LOST_AFTER)

    def judged(self) -> bool:
        """Whether `reached` says something yet: somebody has answered, or enough rounds went by."""
        self._collect()
        return bool(self._missed) or self._rounds.evaluate(self._clock.now()).missed >= LOST_AFTER

    async def run(self) -> None:
        """Ask until cancelled. A missing device or address is no error: the questions are then unanswered."""
        due_next = self._clock.now()
        try:
            while True:
                due = self._ask_round()
                due_next = max(due_next + self._interval_s, self._clock.now())
                self._due.at(due)
                await self._clock.sleep(max(0.0, due_next - self._clock.now()))
        finally:
            self._due.spare()
            for v6 in list(self._sockets):
                self._sockets.pop(v6).close()

    def _ask_round(self) -> float:
        """Put one question to some addresses; when its answer is due. Without addresses nothing is asked."""
        now = self._clock.now()
        if not self._addresses:
            return now
        self._collect()
        self._round += 1
        due = self._rounds.sent(self._round, now)
        turn = self._addresses[:ASKED_AT_ONCE]
        if len(turn) < len(self._addresses):
            first = self._round * ASKED_AT_ONCE % len(self._addresses)
            turn = (self._addresses[first:] + self._addresses[:first])[:ASKED_AT_ONCE]
        for address in turn:
            if address in self._missed:
                self._missed[address] += 1
            self._ask(address)
        return due

    def _ask(self, address: str) -> None:
        v6 = ":" in address
        try:
            if v6 not in self._sockets:
                opened = EchoSocket(self._source, address, self._device, self._namespace)
                opened.listen(self._readable)
                self._sockets[v6] = opened
            if self._sockets[v6].send(address, self._round):
                self._sockets.pop(v6).close()
        except KernelRefused:
            return  # no such device or address at present: nothing is reached, which is what the rounds will say

    def _readable(self) -> None:
        self._collect()
        self._tell()
        if self._rounds.all_answered:
            self._due.spare()

    def _collect(self) -> None:
        for sock in self._sockets.values():
            sock.receive(self._answered)

    def _answered(self, number: int, sender: str) -> None:
        if sender in self._addresses:
            self._missed[sender] = 0
            self._rounds.answered(number, self._clock.now())

    def _tell(self) -> None:
        now = (self.judged(), self.reached())
        if now != self._told:
            self._told = now
            self.on_change()
