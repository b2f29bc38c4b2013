"""One suite for the kernel port: the fake and the real kernel answer alike."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from dataplane.diff import AddRoute, AddRule, CreateLink, DeleteRoute, ReplaceRoute, SetLink, SetSysctl
from dataplane.errors import Conflict, KernelError, KernelRefused
from dataplane.kernel import Kernel, LinuxKernel, converge
from dataplane.model import Address, KernelState, Link, Route, Rule
from dataplane.nft_rules import EdgeRules
from tests.contract.kernel.conftest import inside, ip, need
from tests.contract.kernel.fakes import FakeKernel

TABLES = [254, 10077, 10177]
FORWARDING = "net.ipv4.ip_forward"
LINK = Link("bgplb-p0", "veth", 1400, "bgplb:test")
FOREIGN_LINK = Link("eth9", "veth", 1500, "", up=True)
RULES = EdgeRules(("bgplb-p0",), 1280).ruleset()


@dataclass
class Subject:
    """A kernel with one foreign interface, route and rule in it, and a way to make ours."""

    kernel: Kernel
    plant: Callable[[KernelState], Awaitable[None]]


@pytest.fixture(params=["fake", "real"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake = FakeKernel(
            KernelState(
                links=frozenset({FOREIGN_LINK}),
                addresses=frozenset({Address("eth9", "10.9.0.1/24")}),
                sysctls={FORWARDING: "0"},
            )
        )

        async def plant_in_fake(state: KernelState) -> None:
            fake.state = replace(
                fake.state, routes=fake.state.routes | state.routes, rules=fake.state.rules | state.rules
            )

        yield Subject(fake, plant_in_fake)
        return
    need("ip", "nft")
    namespace = request.getfixturevalue("namespace")
    ip("-n", namespace, "link", "add", "eth9", "type", "veth", "peer", "name", "eth9p")
    ip("-n", namespace, "link", "set", "eth9p", "up")
    ip("-n", namespace, "link", "set", "eth9", "up")
    ip("-n", namespace, "addr", "add", "10.9.0.1/24", "dev", "eth9")

    async def make_link(link: Link) -> None:
        await real.netlink.create_veth(link, "p0")
        ip("-n", namespace, "link", "set", "p0", "up")

    async def plant(state: KernelState) -> None:
        await real.netlink.apply(AddRoute(route) for route in state.routes)
        await real.netlink.apply(AddRule(rule) for rule in state.rules)

    real = LinuxKernel.of(namespace, make_link)
    real.sysctls.write(FORWARDING, "0")
    yield Subject(real, plant)
    await real.close()


def desired(**changes: object) -> KernelState:
    state = KernelState(
        links=frozenset({LINK}),
        addresses=frozenset({Address("bgplb-p0", "10.77.0.0/31"), Address("bgplb-p0", "fd77::/127")}),
        routes=frozenset(
            {
                Route("192.0.2.0/26", 254, "bgplb-p0", mtu_lock=1280),
                Route("0.0.0.0/0", 10077, "bgplb-p0", via="10.77.0.1"),
                Route("10.0.0.0/8", 10077, kind="blackhole"),
                Route("10.1.0.0/16", 10077, kind="unreachable", metric=50),
                Route("2001:db8:2::/64", 10077, "bgplb-p0", mtu_lock=1280),
                Route("::/0", 10077, "bgplb-p0", via="fd77::1"),
            }
        ),
        rules=frozenset(
            {
                Rule("ipv4", 10077, 10077, source="192.0.2.0/26"),
                Rule("ipv4", 10078, 10077, fwmark=0x1000, fwmask=0xF000),
                Rule("ipv6", 10077, 10077, source="2001:db8:2::/64"),
                Rule("ipv6", 10079, 254, to="fd78::/64"),
            }
        ),
        sysctls={FORWARDING: "1"},
        nft=RULES,
    )
    return replace(state, **changes)  # type: ignore[arg-type]


async def test_what_is_wished_for_is_read_back(subject: Subject) -> None:
    wanted = desired()
    await converge(subject.kernel, wanted, TABLES)
    found = await subject.kernel.read(TABLES, [FORWARDING])
    assert {link for link in found.links if link.ours} == wanted.links
    assert {a for a in found.addresses if a.device == "bgplb-p0"} == wanted.addresses
    assert {route for route in found.routes if route.ours} == wanted.routes
    assert {rule for rule in found.rules if rule.ours} == wanted.rules
    assert found.sysctls == {FORWARDING: "1"}
    assert found.nft == RULES


async def test_the_second_time_there_is_nothing_to_do(subject: Subject) -> None:
    assert await converge(subject.kernel, desired(), TABLES) != ()
    assert await converge(subject.kernel, desired(), TABLES) == ()


async def test_a_changed_wish_changes_only_that(subject: Subject) -> None:
    await converge(subject.kernel, desired(), TABLES)
    moved = Route("192.0.2.0/26", 254, "bgplb-p0", via="10.77.0.1", mtu_lock=1300)
    others = frozenset(route for route in desired().routes if route.prefix != moved.prefix)
    assert await converge(subject.kernel, desired(routes=others | {moved}), TABLES) == (ReplaceRoute(moved),)
    assert await converge(subject.kernel, desired(routes=others), TABLES) == (DeleteRoute(moved),)


async def test_an_empty_wish_removes_ours_and_leaves_look_alikes(subject: Subject) -> None:
    look_alikes = KernelState(
        routes=frozenset(
            {
                Route("192.0.2.64/26", 10077, "eth9", protocol=4),
                Route("192.0.2.128/26", 10177, "eth9", protocol=12),
                Route("192.0.2.192/28", 10177, kind="blackhole", protocol=78),
            }
        ),
        rules=frozenset(
            {
                Rule("ipv4", 10080, 10077, source="192.0.2.64/26", protocol=4),
                Rule("ipv4", 10100, 10077, source="192.0.2.0/26", protocol=77),
                Rule("ipv4", 9999, 10077, source="192.0.2.0/26", protocol=77),
            }
        ),
    )
    await subject.plant(look_alikes)
    await converge(subject.kernel, desired(), TABLES)
    await converge(subject.kernel, KernelState(), TABLES)
    found = await subject.kernel.read(TABLES)
    assert FOREIGN_LINK in found.links
    assert not any(link.ours for link in found.links)
    assert Address("eth9", "10.9.0.1/24") in found.addresses
    assert look_alikes.routes <= found.routes
    assert look_alikes.rules <= found.rules
    assert not any(route.ours for route in found.routes) and not any(rule.ours for rule in found.rules)
    assert found.nft is None


async def test_a_foreign_route_in_our_place_is_refused_and_stays(subject: Subject) -> None:
    foreign = Route("192.0.2.0/26", 254, "eth9", protocol=4)
    await subject.plant(KernelState(routes=frozenset({foreign})))
    with pytest.raises(Conflict, match=r"192\.0\.2\.0/26 in table 254"):
        await converge(subject.kernel, desired(), TABLES)
    if isinstance(subject.kernel, LinuxKernel):
        assert await subject.kernel.netlink.route("192.0.2.0/26", 254, protocol=4) == foreign
        assert await subject.kernel.netlink.route("192.0.2.0/26", 254) is None


async def test_a_foreign_interface_of_our_name_is_named(subject: Subject) -> None:
    with pytest.raises(Conflict, match="interface eth9 exists but is not ours"):
        await converge(subject.kernel, KernelState(links=frozenset({Link("eth9", "veth", 1400, "bgplb:x")})), TABLES)
    assert FOREIGN_LINK in (await subject.kernel.read(TABLES)).links


async def test_what_the_kernel_refuses_is_an_error_that_names_it(subject: Subject) -> None:
    with pytest.raises(KernelRefused, match="nosuch") as caught:
        await subject.kernel.apply([ReplaceRoute(Route("192.0.2.0/26", 254, "nosuch"))])
    assert "192.0.2.0/26" in str(caught.value)
    with pytest.raises(KernelError):
        await subject.kernel.apply([SetSysctl("net.ipv4.no_such_thing", "1")])


async def test_a_deleted_thing_may_be_deleted_again(subject: Subject) -> None:
    await subject.kernel.apply([CreateLink(LINK), SetLink(LINK)])
    route = Route("192.0.2.0/26", 254, "bgplb-p0")
    await subject.kernel.apply([AddRoute(route), DeleteRoute(route), DeleteRoute(route)])
    assert route not in (await subject.kernel.read(TABLES)).routes


async def test_the_default_make_of_a_link_says_what_to_do(namespace: str) -> None:
    kernel = LinuxKernel.of(namespace)
    with pytest.raises(KernelError, match="create it before"):
        await kernel.apply([CreateLink(LINK)])
    await kernel.close()


def nft(namespace: str, *arguments: str) -> str:
    done = inside(namespace, "nft", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_foreign_nft_table_survives(namespace: str) -> None:
    need("nft", "ip")
    kernel = LinuxKernel.of(namespace)
    nft(namespace, "add", "table", "inet", "bgplb-like")
    nft(namespace, "add", "chain", "inet", "bgplb-like", "prerouting")
    nft(namespace, "add", "rule", "inet", "bgplb-like", "prerouting", "iifname", "bgplb-p0", "accept")
    before = nft(namespace, "list", "table", "inet", "bgplb-like")
    assert await kernel.nft.ensure(RULES)
    assert not await kernel.nft.ensure(RULES)
    await kernel.nft.apply(None)
    assert nft(namespace, "list", "table", "inet", "bgplb-like") == before
    assert nft(namespace, "list", "tables").split("\n") == ["table inet bgplb-like", ""]
    await kernel.close()


async def test_a_tampered_nft_table_is_noticed_and_made_whole(namespace: str) -> None:
    need("nft", "ip")
    kernel = LinuxKernel.of(namespace)
    await kernel.nft.apply(RULES)
    nft(namespace, "flush", "chain", "inet", "bgplb", "postrouting")
    assert await kernel.nft.read() != RULES
    assert await kernel.nft.ensure(RULES)
    assert await kernel.nft.read() == RULES
    await kernel.close()


async def test_a_refused_ruleset_leaves_the_old_one(namespace: str) -> None:
    need("nft", "ip")
    kernel = LinuxKernel.of(namespace)
    await kernel.nft.apply(RULES)
    with pytest.raises(KernelRefused, match="nft"):
        await kernel.nft.apply(RULES.replace('"maxseg"', '"no-such-option"'))
    assert await kernel.nft.read() == RULES
    await kernel.close()
