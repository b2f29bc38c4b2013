"""What only two real BIRDs and a kernel can show."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from birdctl.apply import Applier
from birdctl.client import BirdClient
from birdctl.commands import BfdSession, Bird
from birdctl.render import Announcements, PoolAnnouncement, edge_text, gateway_text
from dataplane.diff import DeleteAddress
from dataplane.model import Address
from dataplane.namespace import entered
from dataplane.netlink import Netlink
from tests.contract.bird.gateways import LoopClock, RealGateway, same_moment, until_seen, until_up
from tests.contract.bird.pair import (
    EDGE_SESSION,
    GATEWAY_SESSION,
    LOCAL_4,
    LOCAL_6,
    POOL_4,
    POOL_6,
    POOL_B,
    PROBES,
    START_S,
    Pair,
    Side,
)

pytestmark = pytest.mark.root
WEB = PoolAnnouncement("web-1", (POOL_4, POOL_6), announced=True)


@pytest.fixture
async def real(pair: Pair) -> AsyncIterator[RealGateway]:
    """Both BIRDs run, the session is up."""
    pair.start("edge")
    gateway = RealGateway(pair)
    await gateway.start()
    await until_seen(gateway, set(PROBES))
    yield gateway
    await gateway.close()


@pytest.fixture
async def edge(pair: Pair, real: RealGateway) -> AsyncIterator[Bird]:
    client = BirdClient(pair.socket_path("edge"), timeout_s=10)
    yield Bird(client)
    await client.close()


@pytest.fixture
async def applier(pair: Pair, real: RealGateway) -> AsyncIterator[Applier]:
    client = BirdClient(pair.socket_path("gw"), timeout_s=10)
    yield Applier(
        Bird(client), LoopClock(), config_file=real.config_file, announce_file=real.announce_file, settle_s=10.0
    )
    await client.close()


def signals(pair: Pair) -> set[str]:
    """Destinations in the edge's signal table, both IP versions."""
    found: set[str] = set()
    for version in ("-4", "-6"):
        # a table without a route does not exist for `ip`: list all and choose
        rows = json.loads(pair.ip("edge", "-json", version, "route", "show", "table", "all") or "[]")
        found |= {row["dst"] for row in rows if row.get("table") == "10177"}
    return found


async def until_signals(pair: Pair, present: set[str], absent: set[str]) -> None:
    async with asyncio.timeout(START_S):
        while True:
            now = signals(pair)
            if present <= now and not absent & now:
                return
            await asyncio.sleep(0.05)


async def until_bfd(bird: Bird) -> BfdSession:
    async with asyncio.timeout(START_S):
        while True:
            for session in await bird.bfd_sessions():
                if session.up:
                    return session
            await asyncio.sleep(0.05)


async def test_signals_reach_the_kernel_and_only_the_signal_table(pair: Pair, edge: Bird, applier: Applier) -> None:
    own = pair.ip("edge", "route", "show", "table", "main")
    await until_signals(pair, {"10.78.0.1", "fd78::1"}, {str(POOL_4), str(POOL_6)})
    await applier.announce(Announcements((WEB,)))
    await until_signals(pair, {"10.78.0.1", "fd78::1", str(POOL_4), str(POOL_6)}, set())
    await applier.announce(Announcements((replace(WEB, announced=False),)))
    await until_signals(pair, {"10.78.0.1", "fd78::1"}, {str(POOL_4), str(POOL_6)})
    pair.kill("gw")
    await until_signals(pair, set(), {"10.78.0.1", "fd78::1"})
    assert pair.ip("edge", "route", "show", "table", "main") == own


async def test_the_operators_hooks_and_nothing_else(real: RealGateway, edge: Bird) -> None:
    """`local_*` statics leave the gateway, others do not; the edge takes them by its import hook, in both versions."""
    await until_seen(real, {*PROBES, LOCAL_4, LOCAL_6})
    assert set(await edge.routes(EDGE_SESSION)) == {*PROBES, LOCAL_4, LOCAL_6}
    assert await edge.exported(EDGE_SESSION) == ()


async def test_the_edge_refuses_what_is_not_on_its_list(pair: Pair, real: RealGateway, applier: Applier) -> None:
    stranger = PoolAnnouncement("stranger", (POOL_4.supernet(new_prefix=25),), announced=True)
    applied = await applier.announce(Announcements((WEB, stranger)))
    assert [pool.complete for pool in applied.pools] == [(GATEWAY_SESSION,)] * 2
    await until_seen(real, {POOL_4, POOL_6}, set(stranger.prefixes))


async def test_bfd_ends_a_silent_neighbour_long_before_the_hold_time(pair: Pair, real: RealGateway, edge: Bird) -> None:
    bfd = await until_bfd(edge)
    assert bfd.interface == pair.interface("edge")
    assert (bfd.interval_ms, bfd.timeout_ms) == (100, 300)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    real.freeze()
    await until_signals(pair, set(), {"10.78.0.1"})
    assert loop.time() - begin < 10  # BGP's hold time is 15 s
    real.thaw()
    await until_seen(real, set(PROBES))


async def test_the_edge_grows_a_pool_and_a_session_without_losing_one(pair: Pair, edge: Bird) -> None:
    before = await until_up(edge, EDGE_SESSION)
    config = pair.edge_config()
    (session,) = config.sessions
    fewer = replace(session, accept=(*PROBES, POOL_B))
    other = replace(session, name="gw-b", interface="absent0")
    applier = Applier(
        edge, LoopClock(), config_file=pair.config_file("edge"), announce_file=pair.folder / "edge" / "none"
    )
    for sessions in ((fewer,), (session, other), (session,)):
        assert (await applier.configure(edge_text(replace(config, sessions=sessions)))).changed
        assert await until_up(edge, EDGE_SESSION) == before


async def test_a_changed_accept_list_takes_what_was_refused_before(
    pair: Pair, real: RealGateway, edge: Bird, applier: Applier
) -> None:
    """The gateway announced first: the edge must ask again, without losing the session. And the other way round."""
    config = pair.edge_config()
    (session,) = config.sessions
    on_edge = Applier(
        edge, LoopClock(), config_file=pair.config_file("edge"), announce_file=pair.folder / "edge" / "none"
    )
    await on_edge.configure(edge_text(replace(config, sessions=(replace(session, accept=PROBES),))))
    await applier.announce(Announcements((WEB,)))
    await until_seen(real, set(PROBES), {POOL_4})
    before = await until_up(edge, EDGE_SESSION)
    await on_edge.configure(edge_text(config))
    await until_seen(real, {*PROBES, POOL_4, POOL_6})
    await on_edge.configure(edge_text(replace(config, sessions=(replace(session, accept=PROBES),))))
    await until_seen(real, set(PROBES), {POOL_4, POOL_6})
    assert await until_up(edge, EDGE_SESSION) == before


OPERATOR = """\
log stderr all;
router id 203.0.113.1;
protocol device operator_device { scan time 10; }
protocol bfd operator_bfd { interface "*" { interval 100 ms; multiplier 3; }; }
protocol bgp operator_transit {
    local 10.77.9.0 as 64512;
    neighbor 10.77.9.1 as 64601;
    bfd on;
    connect delay time 1; connect retry time 1; error wait time 1, 2;
    ipv4 { import all; export none; };
}
"""
TRANSIT = """\
protocol bgp local_transit {
    local 10.77.9.1 as 64601;
    neighbor 10.77.9.0 as 64512;
    strict bind on;
    bfd on;
    connect delay time 1; connect retry time 1; error wait time 1, 2;
    ipv4 { import none; export none; };
}
"""


def operators_bird(pair: Pair) -> None:
    """The operator's BIRD on the edge, with a transit session over a link of its own."""
    near, far = f"t{pair.run}", f"u{pair.run}"
    pair.ip("edge", "link", "add", near, "type", "veth", "peer", "name", far, "netns", pair.netns("gw"))
    ends: tuple[tuple[Side, str, int], ...] = (("edge", near, 0), ("gw", far, 1))
    for side, link, host in ends:
        pair.ip(side, "address", "add", f"10.77.9.{host}/31", "dev", link)
        pair.ip(side, "link", "set", link, "up")
    pair.config_file("other").write_text(OPERATOR)
    with pair.local_include.open("a") as include:
        include.write(TRANSIT)
        # the transit's end lives in the gateway's BIRD; its BFD needs the interface there
        include.write(f'protocol bfd local_bfd {{ strict bind on; interface "{far}" {{ interval 100 ms; }}; }}\n')


@pytest.mark.parametrize("ours_first", [True, False])
async def test_the_operators_bird_with_wildcard_bfd_keeps_its_sessions(pair: Pair, ours_first: bool) -> None:
    """Strict bind: both BIRDs of the edge hold BGP and BFD, whichever starts first, and over restarts."""
    operators_bird(pair)
    order: tuple[Side, ...] = ("edge", "other", "gw") if ours_first else ("other", "edge", "gw")
    for side in order:
        pair.start(side)
    ours = Bird(BirdClient(pair.socket_path("edge"), timeout_s=10))
    theirs = Bird(BirdClient(pair.socket_path("other"), timeout_s=10))
    try:
        await until_up(ours, EDGE_SESSION)
        since = await until_up(theirs, "operator_transit")
        assert str((await until_bfd(ours)).address) == "10.77.0.1"
        assert str((await until_bfd(theirs)).address) == "10.77.9.1"
        pair.kill("edge")
        pair.start("edge")
        await until_up(ours, EDGE_SESSION)
        bfd = await until_bfd(ours)
        await asyncio.sleep(2)  # several detection times of both
        assert same_moment(await until_up(theirs, "operator_transit"), since)
        assert [session.up for session in await theirs.bfd_sessions()] == [True]
        (again,) = await ours.bfd_sessions()
        assert same_moment(again.since, bfd.since)
    finally:
        await ours.client.close()
        await theirs.client.close()


async def test_a_changed_hold_time_is_the_only_thing_that_drops_the_session(
    pair: Pair, real: RealGateway, applier: Applier
) -> None:
    bird = Bird(BirdClient(real.socket_path, timeout_s=10))
    before = await until_up(bird, GATEWAY_SESSION)
    await applier.configure(gateway_text(replace(pair.gateway_config(), local_include=None)))
    assert await until_up(bird, GATEWAY_SESSION) == before
    await applier.configure(gateway_text(replace(pair.gateway_config(), hold_time_s=20)))
    async with asyncio.timeout(START_S):
        while True:
            if await until_up(bird, GATEWAY_SESSION) != before:
                break
            await asyncio.sleep(0.05)
    await until_seen(real, set(PROBES))
    await bird.client.close()


async def test_sessions_hang_on_an_address_that_is_lent(pair: Pair, real: RealGateway) -> None:
    """Nobody renews it: kernel and BIRDs end the session by themselves. Lent again, it is back."""
    netlink = Netlink(pair.netns("gw"))
    end = Address(pair.interface("gw"), "10.77.0.1/31")
    try:
        await netlink.lend(end, None)  # as each start of an agent that holds does
        await netlink.lend(end, 3)
        await asyncio.sleep(1.0)
        assert "10.78.0.1" in signals(pair), "as long as it is lent, nothing changes"
        await netlink.lend(end, 3)
        await until_signals(pair, set(), {"10.78.0.1", "fd78::1"})
        assert end.cidr not in pair.ip("gw", "address", "show", "dev", end.device)
        await netlink.lend(end, 30)
        await until_seen(real, set(PROBES))
    finally:
        await netlink.close()


async def test_a_session_that_bird_gave_up_for_good_is_enabled_again(
    pair: Pair, real: RealGateway, applier: Applier
) -> None:
    """It can't bind as its address is given: another's socket is in the way here, elsewhere the kernel is not ready."""
    netlink, bird = Netlink(pair.netns("gw")), Bird(BirdClient(pair.socket_path("gw"), timeout_s=10))
    end = Address(pair.interface("gw"), "10.77.0.1/31")

    async def until_state(wanted: str) -> None:
        async with asyncio.timeout(START_S):
            while [row.state for row in await bird.protocols() if row.name == GATEWAY_SESSION] != [wanted]:
                await asyncio.sleep(0.02)

    try:
        assert await applier.enable_sessions("edge-1") == (), "nothing is wrong"
        await netlink.apply([DeleteAddress(end)])
        await until_signals(pair, set(), {"10.78.0.1", "fd78::1"})
        await until_state("start")
        with entered(pair.netns("gw")):
            in_the_way = socket.create_server(("0.0.0.0", 1179))
        with in_the_way:
            await netlink.lend(end, None)
            await until_state("down")
        await asyncio.sleep(2.5)  # longer than it waits before it tries again to connect, or after an error
        await until_state("down")
        assert await applier.enable_sessions("edge-1") == ("edge-1",)
        await until_seen(real, set(PROBES))
    finally:
        await netlink.close()
        await bird.client.close()
