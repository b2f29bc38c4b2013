"""When a silent tunnel is begun anew: soon, often for as long as a machine boots, and then with time to finish."""

from collections.abc import Sequence

import pytest

from dataplane.errors import KernelRefused
from dataplane.wireguard import DeviceState, PeerState, PeerUpdate
from orchestrator.agents.revive import AGAIN_S, OFTEN_S, SELDOM_S, SILENT_S, Reviver

LOOK_S = 0.25
WHOLE = [PeerUpdate("edge", frozenset({"0.0.0.0/0"}), endpoint="203.0.113.1:51820", keepalive_s=25)]


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def now(self) -> float:
        return self.s

    async def sleep(self, seconds: float) -> None:
        self.s += seconds


class Tunnel:
    """One device with one peer. `heard`: bytes it has received; `begun`: when its peer was made anew."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.heard, self.present = clock, 1000, True
        self.there = True
        self.begun: list[float] = []
        self.done: list[PeerUpdate] = []

    async def read(self, name: str) -> DeviceState:
        if not self.there:
            raise KernelRefused(19, f"to read {name}")
        peer = PeerState(frozenset(), None, None, self.heard, 0)
        return DeviceState(51820, {"edge": peer} if self.present else {})

    async def update(self, name: str, updates: Sequence[PeerUpdate]) -> None:
        self.done += updates
        if updates[0].remove:
            assert len(updates) == 1, "in one call with its return it would keep its session"
            self.present = False
        else:
            self.present, self.heard = True, 0
            self.begun.append(self.clock.now())


async def looks(reviver: Reviver, clock: Clock, seconds: float) -> None:
    end = clock.now() + seconds
    while clock.now() < end:
        await reviver.look({"bgplb-e0": WHOLE})
        await clock.sleep(LOOK_S)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tunnel(clock: Clock) -> Tunnel:
    return Tunnel(clock)


@pytest.fixture
def reviver(clock: Clock, tunnel: Tunnel) -> Reviver:
    return Reviver(tunnel, clock)  # type: ignore[arg-type]


async def test_a_tunnel_that_is_heard_is_left_alone(clock: Clock, tunnel: Tunnel, reviver: Reviver) -> None:
    for _ in range(20):
        await looks(reviver, clock, LOOK_S)
        tunnel.heard += 1
    assert tunnel.done == []


async def test_a_silent_one_is_begun_anew_whole_and_often_at_first(
    clock: Clock, tunnel: Tunnel, reviver: Reviver
) -> None:
    began_s = clock.now()
    await looks(reviver, clock, SILENT_S + 5 * AGAIN_S + LOOK_S / 2)
    since = [at - began_s for at in tunnel.begun]
    assert since == [SILENT_S + n * AGAIN_S for n in range(6)]
    assert tunnel.done[:2] == [PeerUpdate("edge", remove=True), *WHOLE]
    assert reviver.revived == 6


async def test_after_a_while_a_handshake_is_given_time(clock: Clock, tunnel: Tunnel, reviver: Reviver) -> None:
    await looks(reviver, clock, OFTEN_S + SELDOM_S)
    tunnel.begun.clear()
    await looks(reviver, clock, 4 * SELDOM_S)
    assert [b - a for a, b in zip(tunnel.begun, tunnel.begun[1:], strict=False)] == [SELDOM_S] * 3


async def test_once_it_is_heard_again_it_is_over(clock: Clock, tunnel: Tunnel, reviver: Reviver) -> None:
    await looks(reviver, clock, SILENT_S + LOOK_S)
    assert reviver.revived == 1
    for _ in range(20):
        tunnel.heard += 100
        await looks(reviver, clock, LOOK_S)
    assert reviver.revived == 1


async def test_a_device_that_is_gone_is_somebody_elses_trouble(clock: Clock, tunnel: Tunnel, reviver: Reviver) -> None:
    tunnel.there = False
    await looks(reviver, clock, 3 * SILENT_S)
    assert tunnel.done == []
    tunnel.there = True
    await looks(reviver, clock, SILENT_S - LOOK_S)
    assert tunnel.done == [], "made anew, it has just begun to listen"


async def test_silent_are_also_those_without_a_peer_and_those_that_can_not_be_read(
    tunnel: Tunnel, reviver: Reviver
) -> None:
    async def silent() -> frozenset[str]:
        await reviver.look({"bgplb-e0": WHOLE})
        return reviver.silent

    assert await silent() == frozenset()
    tunnel.present = False
    assert await silent() == {"bgplb-e0"}
    tunnel.present = True
    assert await silent() == frozenset()
    tunnel.there = False
    assert await silent() == {"bgplb-e0"}
    assert tunnel.done == []
