"""The prober between a socket that a test answers and a clock that it moves: what is told, and when."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

import pytest

import dataplane.probe as probe_module
from dataplane.probe import Prober, ProbeState
from dataplane.probe_window import SETTLED_AFTER
from fsm.ports import Clock
from orchestrator.clock import BootClock
from tests.contract.store.clocks import VirtualClock

INTERVAL_MS = 20


class Wire:
    """The socket of a prober: keeps what is asked, and has the answers that a test put there."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.small = 0
        """Small questions so far."""
        self.answers: deque[int] = deque()
        self.readable: Callable[[], None] = lambda: None

    def listen(self, on_readable: Callable[[], None]) -> None:
        self.readable = on_readable

    def send(self, _destination: str, number: int, packet_bytes: int | None) -> int:
        self.asked.append(number)
        self.small += packet_bytes is None
        return 0

    def receive(self, on_answer: Callable[[int, str], bool | None]) -> None:
        while self.answers:
            if on_answer(self.answers.popleft(), ""):
                return

    def renew_identifier(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    made = Wire()
    monkeypatch.setattr(probe_module, "EchoSocket", lambda *_: made)
    yield made


def a_prober(clock: Clock, hear: Callable[[ProbeState], None]) -> Prober:
    return Prober("wg0", "10.0.0.1", "10.0.0.2", INTERVAL_MS, clock, hear)


async def well(prober: Prober, wire: Wire, clock: VirtualClock, told: list[ProbeState]) -> None:
    """Every question is answered until nothing more can be said."""
    prober.start()
    for _ in range(2 * SETTLED_AFTER):
        wire.answers.extend(wire.asked)
        wire.asked.clear()
        wire.readable()
        clock._now += INTERVAL_MS / 1000
        prober._beat()
    assert told[-1].judgement.settled and told[-1].full_size == "passing"
    wire.answers.extend(wire.asked)
    wire.readable()
    wire.asked.clear()


async def test_after_standing_still_all_answers_are_taken_in_first(wire: Wire) -> None:
    """Whoever asks for the word then must not hear of answers that lie in the socket as of lost ones."""
    clock, told = VirtualClock(), list[ProbeState]()
    prober = a_prober(clock, told.append)
    await well(prober, wire, clock, told)
    for _ in range(3):
        clock._now += INTERVAL_MS / 1000
        prober._beat()
    wire.answers.extend(wire.asked)
    clock._now += 5 * INTERVAL_MS / 1000
    state = prober.evaluate()
    prober.close()
    assert (state.word, state.judgement.missed, list(wire.answers)) == ("passing", 0, [])


async def test_who_heard_of_a_doubt_hears_that_it_is_over(wire: Wire) -> None:
    clock, told = VirtualClock(), list[ProbeState]()
    prober = a_prober(clock, told.append)
    await well(prober, wire, clock, told)
    clock._now += INTERVAL_MS / 1000
    prober._beat()
    clock._now += INTERVAL_MS / 2000
    assert prober.evaluate().word == "doubtful", "its answer is due, and somebody asked just then"
    before = len(told)
    wire.answers.extend(wire.asked)
    wire.readable()
    prober.close()
    assert [state.word for state in told[before:]] == ["passing"]


async def test_a_path_that_dies_is_told_at_the_second_missing_answer_however_long_it_is(wire: Wire) -> None:
    """Where an answer takes half an interval it is due when the next question goes, to within what timers are late."""
    told = list[ProbeState]()
    answered = asked = 0

    def hear(state: ProbeState) -> None:
        nonlocal asked
        told.append(state)
        asked = wire.small

    async def answer() -> None:
        nonlocal answered
        while True:
            await asyncio.sleep(0.001)
            if new := wire.asked[:]:
                wire.asked.clear()
                small = wire.small
                await asyncio.sleep(INTERVAL_MS / 2000)
                wire.answers.extend(new)
                wire.readable()
                answered = small

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.001)

    prober = a_prober(BootClock(), hear)
    prober.start()
    in_vain: list[int] = []
    for _ in range(8):
        answering = asyncio.create_task(answer())
        await until(lambda: bool(told) and told[-1].word == "passing" and told[-1].judgement.settled)
        answering.cancel()
        await until(lambda: told[-1].word == "failing")
        in_vain.append(asked - answered)
        wire.asked.clear()
    prober.close()
    assert max(in_vain) <= 3, f"questions asked in vain before it was told: {in_vain}"
