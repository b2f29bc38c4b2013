"""The data-path probe of one gateway: numbered echo requests through its tunnel to a responder behind it.

For the probe to walk as a client's packets do, `source` must be an address that the gateway's *main* table would not
send into the tunnel: with the tunnel's own address the answer comes back also when the gateway's marks are broken.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

from dataplane.due import Due
from dataplane.errors import KernelRefused
from dataplane.icmp import EchoSocket
from dataplane.probe_window import Judgement, ProbeWindow, Word, following
from fsm.ports import Clock

FULL_SIZE_INTERVAL_S = 1.0
TOLD_MISSES = 5
"""Up to this many misses in a row each further one is told."""
RENEW_AFTER_MISSED = 10
"""After so many misses in a row the questions change their ICMP identifier, again and again, for as long as nobody
answers (see EchoSocket.renew_identifier)."""

_PASSING_ERRORS = frozenset({errno.EMSGSIZE, errno.ENOBUFS, errno.EAGAIN, errno.EPERM})
"""After these the socket is as good as before, and answers may still be on their way to it."""

FullSizeWord = Literal["passing", "failing", "unknown"]

_Told = tuple[Word, FullSizeWord, int, bool]
"""Words of both sizes, misses, whether it is settled."""
_ALL_WELL: _Told = ("passing", "passing", 0, True)


@dataclass(frozen=True)
class ProbeState:
    """The probe's word and what it rests on. ``full_size`` is judged by itself: it tells an MTU fault from a dead path.

    ``send_errno``: why the last question could not even leave, 0 if it did.
    """

    judgement: Judgement
    full_size: FullSizeWord
    send_errno: int

    @property
    def word(self) -> Word:
        """The word of the small questions."""
        return self.judgement.word


class Prober:
    """Asks all the time; :meth:`evaluate` gives its word at any instant, also in the middle of a callback."""

    def __init__(
        self,
        device: str,
        source: str,
        destination: str,
        interval_ms: int,
        clock: Clock,
        on_change: Callable[[ProbeState], None],
        mtu: int = 1280,
        namespace: str | None = None,
    ) -> None:
        """`on_change` is called from the event loop when a word, the first misses or `settled` change.

        It must not block or raise.

        `mtu`: bytes of the whole IP packet of a full-size question.
        """
        self._device = device
        self._source = source
        self._destination = destination
        self._interval_s = interval_ms / 1000
        # Those into one tunnel ask together, so that one turn of the loop does for them and one for their answers;
        # those into different tunnels apart, so that none makes others late.
        self._phase_s = crc32(device.encode()) / 2**32 * self._interval_s
        self._clock = clock
        self._on_change = on_change
        self._mtu = mtu
        self._namespace = namespace
        self._small = ProbeWindow(self._interval_s)
        self._large = ProbeWindow(FULL_SIZE_INTERVAL_S)
        self._full_size: FullSizeWord = "unknown"
        self._number = 0
        self._send_errno = 0
        self._socket: EchoSocket | None = None
        self._pace = Due(clock, self._beat)
        self._due = Due(clock, self._look)
        self._next_large_s = 0.0
        self._last_told: _Told | None = ("unknown", "unknown", 0, False)
        """None when `evaluate` said something else to somebody since: then what is true next is told in any case."""

    def evaluate(self) -> ProbeState:
        """The word right now, with all answers that have reached the machine taken in first."""
        self._collect()
        state = self._state(self._clock.now())
        if _words(state) != self._last_told:
            self._last_told = None
        return state

    def start(self) -> None:
        """Ask until closed. A missing device or address is not an error: the questions are then unanswered."""
        self._beat()

    def close(self) -> None:
        """Neither ask nor listen any more."""
        self._pace.cancel()
        self._due.cancel()
        self._shut()

    def _beat(self) -> None:
        now = self._clock.now()
        missing = self._small.unanswered or self._large.unanswered
        # After a delay of our own the rhythm goes on where it would be by now: no burst to catch up.
        self._pace.at(following(now, self._interval_s, self._phase_s))
        if now >= self._next_large_s:
            self._next_large_s = now + FULL_SIZE_INTERVAL_S
            self._ask(self._large, self._mtu)
        due = self._ask(self._small, None)
        # While all is well a missing answer is noticed here, and only from then on when it is due: a timer for each
        # would cost more than to note its answer, and the first one that is missing says nothing (`FAILING_AFTER`).
        if missing:
            self._look()
        if missing or self._last_told != _ALL_WELL:
            self._due.at(due)

    def _shut(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, window: ProbeWindow, packet_bytes: int | None) -> float:
        self._number += 1
        due = window.sent(self._number, self._clock.now())
        try:
            if self._socket is None:
                self._open()
            assert self._socket is not None
            self._send_errno = self._socket.send(self._destination, self._number, packet_bytes)
        except KernelRefused as error:
            self._send_errno = error.errno
        if self._send_errno and self._send_errno not in _PASSING_ERRORS:
            self._shut()  # it is bound to an interface's index: after the interface was made anew it would be deaf
        elif window is self._small and self._socket is not None and self._long_silent():
            self._socket.renew_identifier()
        return due

    def _long_silent(self) -> bool:
        due = self._number % RENEW_AFTER_MISSED == 0
        return due and self._small.evaluate(self._clock.now()).missed >= RENEW_AFTER_MISSED

    def _open(self) -> None:
        opened = EchoSocket(self._source, self._destination, self._device, self._namespace)
        opened.listen(self._readable)
        self._socket = opened

    def _readable(self) -> None:
        self._collect()
        if self._last_told != _ALL_WELL:  # an answer makes nothing worse
            self._tell()

    def _look(self) -> None:
        self._collect()
        self._tell()

    def _collect(self) -> None:
        if self._socket is not None:
            self._socket.receive(self._answered)

    def _answered(self, number: int, _sender: str) -> bool:
        """Whether no other answer is awaited."""
        now = self._clock.now()
        if not self._small.answered(number, now):
            self._large.answered(number, now)
        return not self._small.unanswered and not self._large.unanswered

    def _state(self, now: float) -> ProbeState:
        word = self._large.evaluate(now).word
        if word != "doubtful":  # one loss in a second says little: the last clear word stands
            self._full_size = word
        return ProbeState(self._small.evaluate(now), self._full_size, self._send_errno)

    def _tell(self) -> None:
        state = self._state(self._clock.now())
        if (words := _words(state)) != self._last_told:
            self._last_told = words
            self._on_change(state)


def _words(state: ProbeState) -> _Told:
    judgement = state.judgement
    return state.word, state.full_size, min(judgement.missed, TOLD_MISSES), judgement.settled
