"""The edge's word on each session: up only with BGP and BFD, down only if it was up and fell, else unknown."""

from collections.abc import Callable
from pathlib import Path

import pytest

from birdctl.errors import BirdUnreachable
from dataplane.events import RouteChange
from fsm.types import Session
from orchestrator.agents.sessions import TOGETHER_S, Sessions
from tests.agents.fakes import FakeMonitor, base

SILENT = BirdUnreachable(Path("/run/bgplb/bird.ctl"), "no such file")
TUNNELS = base("edge", "edge-1").tunnels
PROBES = {tunnel.name: f"{tunnel.probe_ipv4}/32" for tunnel in TUNNELS}


class Clock:
    """Moved by hand."""

    seconds = 50.0

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


class Wire:
    """Two gateways and the edge's BIRD."""

    def __init__(self) -> None:
        self.clock, self.monitor = Clock(), FakeMonitor(up={t.gateway_ipv4 for t in TUNNELS})
        self.changed: list[str] = []
        self.sessions = Sessions(self.monitor, self.clock, self.changed.append)  # type: ignore[arg-type]
        self.sessions.follow(TUNNELS, PROBES.values())
        self.passing = {"gw-a", "gw-b"}

    def route(self, gateway: str, added: bool) -> None:
        self.sessions.on_route(RouteChange(PROBES[gateway], 10177, added, "bgplb-g0", None))

    def word(self, gateway: str = "gw-a") -> Session:
        return self.sessions.word(gateway, self.passing.__contains__)[0]

    def reason(self, gateway: str = "gw-a") -> str:
        return self.sessions.word(gateway, self.passing.__contains__)[1]


@pytest.fixture
async def wire() -> Wire:
    made = Wire()
    await made.sessions.poll()
    assert made.word("gw-a") == made.word("gw-b") == Session.UP
    return made


async def test_a_session_that_falls_is_down_at_once(wire: Wire) -> None:
    wire.changed.clear()
    wire.route("gw-a", added=False)
    assert (wire.word(), wire.changed) == (Session.DOWN, ["gw-a"])
    assert wire.sessions.fell_s("gw-a") == 50.0
    assert wire.word("gw-b") == Session.UP
    wire.route("gw-a", added=True)
    assert wire.word() == Session.UP
    assert wire.sessions.fell_s("gw-a") is None


async def test_a_session_that_was_up_for_less_than_a_look_and_fell_is_down(wire: Wire) -> None:
    never_up(wire)
    await wire.sessions.poll()
    wire.route("gw-a", added=True)
    assert wire.word() == Session.UP
    wire.route("gw-a", added=False)
    assert wire.word() == Session.DOWN


def never_up(wire: Wire) -> None:
    wire.sessions = Sessions(wire.monitor, wire.clock, wire.changed.append)  # type: ignore[arg-type]
    wire.sessions.follow(TUNNELS, [])


def new_process(wire: Wire) -> None:
    wire.route("gw-a", added=False)
    wire.monitor.process = "second"


def silent(wire: Wire) -> None:
    wire.monitor.silent = SILENT
    wire.route("gw-a", added=False)


def no_bfd(wire: Wire) -> None:
    wire.monitor.up.discard(TUNNELS[0].gateway_ipv4)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (never_up, "never up in this BIRD process"),
        (new_process, "never up in this BIRD process"),
        (silent, "BIRD is silent"),
        (no_bfd, "BFD is not up"),
    ],
)
async def test_unknown_is_never_taken_for_down(wire: Wire, happens: Callable[[Wire], None], reason: str) -> None:
    happens(wire)
    await wire.sessions.poll()
    assert (wire.word(), wire.reason()) == (Session.UNKNOWN, reason)


async def test_all_that_fall_at_once_while_probes_pass_are_unknown(wire: Wire) -> None:
    for gateway in PROBES:
        wire.route(gateway, added=False)
    assert {wire.word(gateway) for gateway in PROBES} == {Session.UNKNOWN}
    wire.passing.clear()
    assert {wire.word(gateway) for gateway in PROBES} == {Session.DOWN}, "nothing passes: then it is so"


async def test_one_after_the_other_is_not_at_once(wire: Wire) -> None:
    wire.route("gw-a", added=False)
    wire.clock.seconds += TOGETHER_S * 2
    wire.route("gw-b", added=False)
    assert {wire.word(gateway) for gateway in PROBES} == {Session.DOWN}


async def test_after_bird_was_silent_a_session_has_to_come_up_first(wire: Wire) -> None:
    wire.monitor.silent = SILENT
    await wire.sessions.poll()
    assert wire.word() == Session.UNKNOWN
    wire.monitor.silent = None
    wire.route("gw-a", added=False)
    await wire.sessions.poll()
    assert wire.word() == Session.UNKNOWN, "that it went while nobody could ask says nothing"
    wire.route("gw-a", added=True)
    await wire.sessions.poll()
    assert wire.word() == Session.UP
    wire.route("gw-a", added=False)
    assert wire.word() == Session.DOWN


async def test_a_tunnel_that_is_made_anew_starts_unknown(wire: Wire) -> None:
    wire.sessions.follow(TUNNELS[1:], PROBES.values())
    assert (wire.word("gw-a"), wire.reason("gw-a")) == (Session.UNKNOWN, "no tunnel")
    wire.sessions.follow(TUNNELS, [PROBES["gw-b"]])
    assert wire.word("gw-a") == Session.UNKNOWN
    assert wire.word("gw-b") == Session.UP, "the other is not disturbed"


async def test_foreign_routes_of_the_table_say_nothing(wire: Wire) -> None:
    wire.changed.clear()
    wire.sessions.on_route(RouteChange("192.0.2.0/26", 10177, False, "bgplb-g0", None))
    assert (wire.changed, wire.word()) == ([], Session.UP)
