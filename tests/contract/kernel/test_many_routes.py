"""A thousand routes: written in few calls, read in one, and one that fails keeps none of the others back."""

from collections.abc import AsyncIterator

import pytest

from dataplane.diff import AddRoute, DeleteRoute, ReplaceRoute
from dataplane.errors import Conflict, KernelRefused
from dataplane.model import TABLE_MAIN, Route
from dataplane.netlink import Netlink
from tests.contract.kernel.conftest import ip, need, wire

PREFIXES = [f"198.18.{n // 256}.{n % 256}/32" for n in range(900)]
PREFIXES += [f"2001:db8:{n:x}::/64" for n in range(1, 101)]


@pytest.fixture
async def netlink(namespace: str) -> AsyncIterator[Netlink]:
    need("ip")
    wire(namespace, "left", "right")
    made = Netlink(namespace)
    yield made
    await made.close()


async def ours(netlink: Netlink) -> dict[str, Route]:
    return {route.prefix: route for route in await netlink.routes(TABLE_MAIN, 77)}


async def test_a_thousand_are_added_turned_and_taken_away(netlink: Netlink) -> None:
    wanted = {prefix: Route(prefix, TABLE_MAIN, "left", mtu_lock=1280) for prefix in PREFIXES}
    await netlink.change_routes([AddRoute(route) for route in wanted.values()])
    assert await ours(netlink) == wanted
    turned = {prefix: Route(prefix, TABLE_MAIN, "right", mtu_lock=1280) for prefix in PREFIXES}
    await netlink.change_routes([ReplaceRoute(route) for route in turned.values()])
    assert await ours(netlink) == turned
    await netlink.change_routes([DeleteRoute(route) for route in turned.values()])
    assert await ours(netlink) == {}


async def test_one_that_fails_is_named_and_the_others_are_done(netlink: Netlink, namespace: str) -> None:
    ip("-n", namespace, "route", "add", PREFIXES[500], "dev", "left", "proto", "4")
    with pytest.raises(Conflict, match=r"198\.18\.1\.244/32 in table 254 was made by somebody else"):
        await netlink.change_routes([AddRoute(Route(prefix, TABLE_MAIN, "left")) for prefix in PREFIXES])
    assert set(await ours(netlink)) == set(PREFIXES) - {PREFIXES[500]}
    mixed = [
        ReplaceRoute(Route(PREFIXES[0], TABLE_MAIN, "gone")),
        ReplaceRoute(Route(PREFIXES[1], TABLE_MAIN, "right")),
    ]
    with pytest.raises(KernelRefused, match="ENODEV"):
        await netlink.change_routes(mixed)
    found = await ours(netlink)
    assert (found[PREFIXES[0]].device, found[PREFIXES[1]].device) == ("left", "right")


async def test_taking_away_what_is_gone_is_no_error(netlink: Netlink) -> None:
    route = Route(PREFIXES[0], TABLE_MAIN, "left")
    await netlink.change_routes([DeleteRoute(route), AddRoute(route), DeleteRoute(route), DeleteRoute(route)])
    await netlink.change_routes([DeleteRoute(Route(PREFIXES[0], TABLE_MAIN, "gone"))])
    assert await ours(netlink) == {}
