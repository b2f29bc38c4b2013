"""The comparison as properties: idempotent, complete, and blind to what is not ours."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.diff import (
    AddAddress,
    AddRoute,
    AddRule,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    DeleteRule,
    Op,
    ReplaceNft,
    ReplaceRoute,
    SetLink,
    diff,
)
from dataplane.errors import Conflict
from dataplane.model import Address, KernelState, Link, Route, Rule
from tests.contract.kernel.fakes import FakeKernel

OURS = ("bgplb-g0", "bgplb-g1", "bgplb-e0")
FOREIGN = ("eth0", "eth1")
PREFIXES = ("192.0.2.0/26", "192.0.2.64/26", "2001:db8:2::/64", "0.0.0.0/0")
TABLES = [254, 10077]


def our_links() -> st.SearchStrategy[frozenset[Link]]:
    link = st.builds(
        Link, st.sampled_from(OURS), st.just("wireguard"), st.integers(1280, 1420), st.just("bgplb:x"), st.just(True)
    )
    return st.lists(link, unique_by=lambda link: link.name, max_size=3).map(frozenset)


@st.composite
def wishes(draw: st.DrawFn) -> KernelState:
    """A state that could be asked for: addresses and routes only on interfaces that it names."""
    links = draw(our_links())
    names = sorted(link.name for link in links)
    addresses: list[Address] = []
    routes: list[Route] = []
    if names:
        device = st.sampled_from(names)
        addresses = draw(st.lists(st.builds(Address, device, st.sampled_from(("10.77.0.0/31", "fd77::/127")))))
        route = st.builds(Route, st.sampled_from(PREFIXES), st.sampled_from(TABLES), device, mtu_lock=st.just(1280))
        routes = draw(st.lists(route, unique_by=lambda route: route.key))
    rule = st.builds(
        Rule,
        st.just("ipv4"),
        st.integers(10077, 10099),
        st.just(10077),
        st.sampled_from((None, "192.0.2.0/26")),
        st.sampled_from((None, 0x1000)),
    )
    return KernelState(
        links=links,
        addresses=frozenset(addresses),
        routes=frozenset(routes),
        rules=frozenset(draw(st.lists(rule, max_size=4))),
        sysctls=draw(st.dictionaries(st.just("net.ipv4.ip_forward"), st.sampled_from("01"))),
        nft=draw(st.sampled_from((None, "a", "b"))),
    )


@st.composite
def surroundings(draw: st.DrawFn) -> KernelState:
    """What others keep in the same kernel: nothing in it is in our way, all of it looks like ours in something."""
    links = frozenset(Link(name, "veth", 1500) for name in FOREIGN)
    addresses = frozenset(draw(st.sets(st.sampled_from([Address(name, "10.77.0.0/31") for name in FOREIGN]))))
    route = st.builds(
        Route,
        st.sampled_from(("198.51.100.0/24", "192.0.2.128/26")),
        st.just(10077),
        st.sampled_from(FOREIGN),
        protocol=st.sampled_from((4, 12, 78)),
    )
    rule = st.one_of(
        st.builds(Rule, st.just("ipv4"), st.integers(10077, 10099), st.just(10077), protocol=st.just(4)),
        st.builds(Rule, st.just("ipv4"), st.sampled_from((10076, 10100, 5)), st.just(10077), protocol=st.just(77)),
    )
    return KernelState(
        links=links,
        addresses=addresses,
        routes=frozenset(draw(st.lists(route, unique_by=lambda route: route.key))),
        rules=frozenset(draw(st.lists(rule, max_size=3))),
        sysctls={"net.ipv4.ip_forward": "0"},
    )


def together(one: KernelState, other: KernelState) -> KernelState:
    return KernelState(
        links=one.links | other.links,
        addresses=one.addresses | other.addresses,
        routes=one.routes | other.routes,
        rules=one.rules | other.rules,
        sysctls={**one.sysctls, **other.sysctls},
        nft=other.nft,
    )


def applied(state: KernelState, ops: tuple[Op, ...]) -> KernelState:
    kernel = FakeKernel(state)
    asyncio.run(kernel.apply(ops))
    return kernel.state


@given(wishes())
def test_a_state_differs_from_itself_in_nothing(state: KernelState) -> None:
    assert diff(state, state) == ()


@given(wishes(), wishes(), surroundings())
def test_what_it_asks_for_leads_there_and_leaves_the_surroundings(
    before: KernelState, wanted: KernelState, around: KernelState
) -> None:
    start = together(around, before)
    end = applied(start, diff(start, wanted))
    assert diff(end, wanted) == ()
    assert around.links <= end.links
    assert around.addresses <= end.addresses
    assert around.routes <= end.routes
    assert around.rules <= end.rules
    assert {link for link in end.links if link.ours} == wanted.links
    assert {route for route in end.routes if route.ours} == wanted.routes
    assert {rule for rule in end.rules if rule.ours} == wanted.rules
    assert {a for a in end.addresses if a.device in OURS} == wanted.addresses
    assert end.nft == wanted.nft


@given(wishes(), wishes())
def test_a_rule_never_selects_a_table_before_its_routes_are_there(before: KernelState, wanted: KernelState) -> None:
    kinds = [type(op) for op in diff(before, wanted)]
    order = [SetLink, AddAddress, ReplaceNft, (AddRoute, ReplaceRoute), AddRule, DeleteRule, DeleteRoute,
             DeleteAddress, DeleteLink]  # fmt: skip
    flat = [kind for entry in order for kind in (entry if isinstance(entry, tuple) else (entry,))]
    ranks = [flat.index(kind) for kind in kinds if kind in flat and kind is not ReplaceRoute]
    assert ranks == sorted(ranks)


def test_a_moved_route_is_one_replace_without_a_gap() -> None:
    links = frozenset(Link(name, "wireguard", 1280, "bgplb:x") for name in OURS)
    old = Route("192.0.2.0/26", 254, "bgplb-g0", mtu_lock=1280)
    new = replace(old, device="bgplb-g1")
    before = KernelState(links=links, routes=frozenset({old}))
    assert diff(before, replace(before, routes=frozenset({new}))) == (ReplaceRoute(new),)


def test_a_route_moves_off_an_interface_that_goes_before_it_goes() -> None:
    stays, goes = Link("bgplb-g0", "wireguard", 1280, "bgplb:a"), Link("bgplb-g1", "wireguard", 1280, "bgplb:b")
    old = Route("192.0.2.0/26", 254, "bgplb-g1")
    new = replace(old, device="bgplb-g0")
    before = KernelState(links=frozenset({stays, goes}), routes=frozenset({old}))
    wanted = KernelState(links=frozenset({stays}), routes=frozenset({new}))
    assert diff(before, wanted) == (ReplaceRoute(new), DeleteLink("bgplb-g1"))


def test_all_conflicts_are_named_at_once() -> None:
    actual = KernelState(
        links=frozenset({Link("bgplb-g0", "veth", 1500, "somebody")}),
        routes=frozenset({Route("192.0.2.0/26", 10077, "eth0", protocol=4)}),
    )
    wanted = KernelState(
        links=frozenset({Link("bgplb-g0", "wireguard", 1280, "bgplb:gw-a")}),
        routes=frozenset({Route("192.0.2.0/26", 10077, "bgplb-g0")}),
    )
    with pytest.raises(Conflict) as caught:
        diff(actual, wanted)
    assert len(caught.value.problems) == 2
    assert "bgplb-g0" in caught.value.problems[0] and "192.0.2.0/26" in caught.value.problems[1]


def test_host_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="host bits"):
        Route("192.0.2.1/26", 254, "bgplb-g0")
