"""Route events against the real kernel: what it says, what it does not say, and overruns."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dataplane.diff import AddAddress
from dataplane.errors import KernelRefused
from dataplane.events import REPLACED_WITHIN_S, RouteChange, RouteEvents
from dataplane.model import Address, Link, Route
from dataplane.netlink import Netlink
from tests.contract.kernel.conftest import eventually, inside, ip

TABLE = 10177
PREFIX = "10.78.0.1/32"
MANY = 10_000


@dataclass
class Told:
    """What the callbacks were told, in order."""

    changes: list[RouteChange] = field(default_factory=list)
    resyncs: int = 0

    def resynced(self) -> None:
        self.resyncs += 1

    def has(self, prefix: str, added: bool) -> bool:
        return any(change.prefix == prefix and change.added is added for change in self.changes)


@dataclass
class Bench:
    """A namespace with one link up, and events of one table."""

    namespace: str
    netlink: Netlink
    events: RouteEvents
    told: Told


@pytest.fixture
async def bench(namespace: str) -> AsyncIterator[Bench]:
    netlink = Netlink(namespace)
    await netlink.create_veth(Link("bgplb-p0", "veth", 1400, "bgplb:test"), "p0")
    ip("-n", namespace, "link", "set", "p0", "up")
    await netlink.apply([AddAddress(Address("bgplb-p0", "10.77.0.0/31"))])
    told = Told()
    events = RouteEvents(TABLE, told.changes.append, told.resynced, namespace)
    await events.start()
    yield Bench(namespace, netlink, events, told)
    events.close()
    await netlink.close()


async def test_a_route_s_life_is_told_in_order(bench: Bench) -> None:
    route = Route(PREFIX, TABLE, "bgplb-p0", via="10.77.0.1")
    await bench.netlink.replace_route(route)
    await bench.netlink.replace_route(Route(PREFIX, 10178, "bgplb-p0", via="10.77.0.1"))
    await bench.netlink.delete_route(route)
    await eventually(lambda: bench.told.has(PREFIX, added=False), "the removal")
    assert bench.told.changes == [
        RouteChange(PREFIX, TABLE, True, "bgplb-p0", "10.77.0.1"),
        RouteChange(PREFIX, TABLE, False, "bgplb-p0", "10.77.0.1"),
    ]
    assert bench.events.routes == {}


IPV6 = "2001:db8:2::/64"


async def test_an_ipv6_route_that_is_deleted_and_added_again_was_replaced(bench: Bench) -> None:
    """As BIRD replaces one: no end is told, and the new route is."""
    await bench.netlink.replace_route(Route(IPV6, TABLE, "bgplb-p0"))
    await eventually(lambda: bench.told.has(IPV6, added=True), "the route")
    await bench.netlink.delete_route(Route(IPV6, TABLE, "bgplb-p0"))
    bench.events.poll()
    await bench.netlink.replace_route(Route(IPV6, TABLE, "bgplb-p0", mtu_lock=1280))
    await eventually(lambda: len(bench.told.changes) == 2, "the new route")
    await asyncio.sleep(5 * REPLACED_WITHIN_S)
    assert [change.added for change in bench.told.changes] == [True, True]
    assert IPV6 in bench.events.routes


async def test_an_ipv6_route_that_stays_away_has_ended(bench: Bench) -> None:
    await bench.netlink.replace_route(Route(IPV6, TABLE, "bgplb-p0"))
    await eventually(lambda: bench.told.has(IPV6, added=True), "the route")
    await bench.netlink.delete_route(Route(IPV6, TABLE, "bgplb-p0"))
    await eventually(lambda: bench.told.has(IPV6, added=False), "the end")
    assert [change.added for change in bench.told.changes] == [True, False]
    assert IPV6 not in bench.events.routes


async def test_an_ending_that_a_new_reading_has_told_is_not_told_again(bench: Bench) -> None:
    await bench.netlink.replace_route(Route(IPV6, TABLE, "bgplb-p0"))
    await eventually(lambda: bench.told.has(IPV6, added=True), "the route")
    await bench.netlink.delete_route(Route(IPV6, TABLE, "bgplb-p0"))
    bench.events.poll()
    bench.events.resync()
    await bench.events.in_step()
    await asyncio.sleep(5 * REPLACED_WITHIN_S)
    assert [change.added for change in bench.told.changes] == [True, False]


async def test_routes_from_before_are_told_at_the_start(bench: Bench) -> None:
    await bench.netlink.replace_route(Route(PREFIX, TABLE, "bgplb-p0"))
    await bench.netlink.replace_route(Route("fd78::1/128", TABLE, "bgplb-p0"))
    await bench.netlink.replace_route(Route("192.0.2.0/24", 10178, "bgplb-p0"))
    told = Told()
    late = RouteEvents(TABLE, told.changes.append, told.resynced, bench.namespace)
    await late.start()
    assert {change.prefix for change in told.changes} == {PREFIX, "fd78::1/128"}
    assert all(change.added and change.device == "bgplb-p0" for change in told.changes)
    assert told.resyncs == 1
    late.close()


@pytest.mark.parametrize(
    "loss",
    [
        ("link", "set", "bgplb-p0", "down"),
        ("link", "del", "bgplb-p0"),
        ("addr", "del", "10.77.0.0/31", "dev", "bgplb-p0"),
    ],
    ids=["link down", "link deleted", "address deleted"],
)
async def test_routes_that_the_kernel_drops_in_silence_are_told(bench: Bench, loss: tuple[str, ...]) -> None:
    await bench.netlink.replace_route(Route(PREFIX, TABLE, "bgplb-p0", via="10.77.0.1"))
    await eventually(lambda: bench.told.has(PREFIX, added=True), "the route")
    ip("-n", bench.namespace, *loss)
    await eventually(lambda: bench.told.has(PREFIX, added=False), "the removal")
    assert bench.events.routes == {}


async def test_poll_takes_in_what_is_there_without_a_turn_of_the_loop(bench: Bench) -> None:
    ip("-n", bench.namespace, "route", "add", PREFIX, "dev", "bgplb-p0", "table", str(TABLE))
    assert bench.told.changes == []
    bench.events.poll()
    assert bench.told.has(PREFIX, added=True)


def write_batch(path: Path) -> None:
    lines = (f"route add 10.{n >> 8}.{n & 255}.0/24 dev bgplb-p0 table {TABLE}" for n in range(MANY))
    path.write_text("\n".join(lines) + "\n")


async def test_ten_thousand_routes_at_once_are_all_told(bench: Bench, tmp_path: Path) -> None:
    write_batch(tmp_path / "batch")
    # Blocking on purpose: the event loop reads nothing until all have been made.
    ip("-n", bench.namespace, "-batch", str(tmp_path / "batch"))
    await eventually(lambda: len(bench.told.changes) == MANY, "all routes")
    assert bench.events.overruns == 0
    assert len(bench.events.routes) == MANY


async def test_an_overrun_loses_nothing_in_the_end(bench: Bench, tmp_path: Path) -> None:
    told = Told()
    small = RouteEvents(TABLE, told.changes.append, told.resynced, bench.namespace, rcvbuf_bytes=4096)
    await small.start()
    write_batch(tmp_path / "batch")
    ip("-n", bench.namespace, "-batch", str(tmp_path / "batch"))
    await eventually(lambda: small.overruns > 0, "an overrun")
    await eventually(lambda: len(small.routes) == MANY, "all routes, by reading the table anew", 30)
    await small.in_step()
    assert told.resyncs >= 2
    inside(bench.namespace, "ip", "route", "flush", "table", str(TABLE))
    await eventually(lambda: small.routes == {}, "all gone", 30)
    small.close()


async def test_a_closed_reader_tells_nothing(bench: Bench) -> None:
    bench.events.close()
    await bench.netlink.replace_route(Route(PREFIX, TABLE, "bgplb-p0"))
    await asyncio.sleep(0.05)
    assert bench.told.changes == []


async def test_a_reader_that_can_t_go_on_says_so(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.events.until_broken())
    await asyncio.sleep(0)
    assert bench.events._socket is not None
    os.dup2(os.open(os.devnull, os.O_RDONLY), bench.events._socket.fileno())
    bench.events.poll()
    with pytest.raises(KernelRefused, match="route events"):
        await asyncio.wait_for(waiting, 5)
