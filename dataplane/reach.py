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
        self._addresses: dict[str, None] = {}
        self._awaited: set[str] = set()
        """Those of the newest round that have not answered."""
        self._news = False
        """Whether what was told may not hold any more, by an answer or by one that is missing too often."""
        self._interval_s = 0.05
        self._rounds = ProbeWindow(self._interval_s)
        self._missed: dict[str, int] = {}
        """Questions to each address since its last answer; one that never answered is absent."""
        self._sockets: dict[bool, EchoSocket] = {}
        self._pace, self._due = Due(clock, self._beat), Due(clock, self._tell)
        self._next_s = 0.0
        self._round = 0
        self._told: tuple[bool, frozenset[str]] = (False, frozenset())

    def watch(self, addresses: Iterable[str], interval_ms: int) -> None:
        """Ask these from now on, a round every so many milliseconds; what others answered is forgotten."""
        self._addresses = dict.fromkeys(addresses)
        self._missed = {a: missed for a, missed in self._missed.items() if a in self._addresses}
        self._news = True
        if self._interval_s != interval_ms / 1000:
            self._interval_s = interval_ms / 1000
            self._rounds = ProbeWindow(self._interval_s)

    def reached(self) -> frozenset[str]:
        """The addresses that answer; none once the last rounds went by without any answer."""
        self._collect()
        return self._now()[1]

    def judged(self) -> bool:
        """Whether `reached` says something yet: somebody has answered, or enough rounds went by."""
        self._collect()
        return self._now()[0]

    def _now(self) -> tuple[bool, frozenset[str]]:
        """What is `judged` and `reached` with the answers that were taken in."""
        if self._rounds.evaluate(self._clock.now()).missed >= LOST_AFTER:
            return True, frozenset()
        # The newest question may still be on its way.
        return bool(self._missed), frozenset(a for a, missed in self._missed.items() if missed <= LOST_AFTER)

    def start(self) -> None:
        """Ask until closed. A missing device or address is no error: the questions are then unanswered."""
        self._next_s = self._clock.now()
        self._beat()

    def close(self) -> None:
        """Neither ask nor listen any more."""
        self._pace.cancel()
        self._due.cancel()
        for v6 in list(self._sockets):
            self._sockets.pop(v6).close()

    def _beat(self) -> None:
        now = self._clock.now()
        self._next_s = max(self._next_s + self._interval_s, now)
        self._pace.at(self._next_s)
        # One round that nobody answered says nothing: it is noticed at the next, and only from then on when it is due.
        missing = self._rounds.unanswered
        due = self._ask_round()
        if missing or self._news or not self._told[1]:
            self._due.at(due)

    def _ask_round(self) -> float:
        """Put one question to some addresses; when its answer is due. Without addresses nothing is asked."""
        now = self._clock.now()
        if not self._addresses:
            return now
        self._collect()
        self._round += 1
        due = self._rounds.sent(self._round, now)
        turn = list(self._addresses)
        if len(turn) > ASKED_AT_ONCE:
            first = self._round * ASKED_AT_ONCE % len(turn)
            turn = (turn[first:] + turn[:first])[:ASKED_AT_ONCE]
        self._awaited = set(turn)
        for address in turn:
            if address in self._missed:
                self._missed[address] += 1
                self._news = self._news or self._missed[address] == LOST_AFTER + 1
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
        if self._news:
            self._tell()

    def _collect(self) -> None:
        for sock in self._sockets.values():
            sock.receive(self._answered)

    def _answered(self, number: int, sender: str) -> bool:
        """Whether no other answer is awaited."""
        if sender in self._addresses:
            self._missed[sender] = 0
            if number == self._round:
                self._awaited.discard(sender)
            self._news = self._news or sender not in self._told[1]
            self._rounds.answered(number, self._clock.now())
        return not self._awaited

    def _tell(self) -> None:
        self._collect()
        self._news = False
        now = self._now()
        if now != self._told:
            self._told = now
            self.on_change()
