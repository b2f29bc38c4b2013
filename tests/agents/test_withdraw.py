"""`onStoreLoss: withdraw`: sessions hang on addresses that are lent as long as the lease lives."""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from dataplane.diff import AddAddress, DeleteAddress
from dataplane.errors import KernelRefused
from dataplane.model import Address
from dataplane.netlink import Netlink
from fsm.desired import MAX_EDGES, tunnel_addresses
from fsm.records import Tunnel
from fsm.types import PROFILES
from orchestrator.agents import node as node_module
from orchestrator.agents import permit as permit_module
from orchestrator.agents.node import NodeAgent
from orchestrator.agents.node_state import lasting_address
from orchestrator.agents.permit import LATE_S, LEAST_TTL_MS, MARGIN_S, Permit
from orchestrator.agents.problems import Problems
from orchestrator.config.sections import Lease
from tests.agents.fakes import base, eventually, group
from tests.agents.node_world import NodeWorld, node_pool

WEB = ("192.0.2.0/26",)
TUNNEL = Address("bgplb-e0", "10.77.0.1/31")
LASTING = Address("bgplb-e0", "10.77.0.254/32")
LEND_EVERY_S = 0.02
LONG = {"ttl_ms": 7000, "renew_every_ms": 2000}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(permit_module, "LEND_EVERY_S", LEND_EVERY_S)


@pytest.fixture
def world(tmp_path: Path) -> NodeWorld:
    made = NodeWorld(tmp_path, lease=LONG)
    made.link.lease_s = 6.9
    return made


def withdrawing(world: NodeWorld, on_store_loss: str = "withdraw") -> None:
    told = base("node", "gw-a", WEB, on_store_loss=on_store_loss)
    assert told.on_store_loss == on_store_loss
    world.tell(("web", node_pool(True, 1)), base=told)


def running(world: NodeWorld) -> AbstractAsyncContextManager[NodeAgent]:
    return world.running()


async def test_the_sessions_address_is_lent_for_less_than_the_lease_has_left(world: NodeWorld) -> None:
    async with running(world):
        withdrawing(world)
        await eventually(lambda: world.kernel.lent.get(TUNNEL) == 4, "lent for 6.9 s, whole, less the margin")
        world.link.lease_s = 3.2
        await eventually(lambda: world.kernel.lent[TUNNEL] == 1, "lent for less")
        await eventually(lambda: (r := world.seen()) is not None and r.ready, f"ready; lacking {world.failed()}")
        assert LASTING in world.kernel.state.addresses
        touched = [op for _, op in world.since(0, "kernel") if isinstance(op, AddAddress | DeleteAddress)]
        assert TUNNEL not in [op.address for op in touched], "nobody else gives or takes it"


async def test_with_little_left_nothing_is_lent_any_more_and_with_none_it_is_taken(world: NodeWorld) -> None:
    async with running(world):
        withdrawing(world)
        await eventually(lambda: TUNNEL in world.kernel.lent, "lent")
        world.link.lease_s = 2.9
        await asyncio.sleep(LEND_EVERY_S)  # one may be on its way
        lendings = world.kernel.lendings
        await asyncio.sleep(5 * LEND_EVERY_S)
        assert world.kernel.lendings == lendings, "no more lending"
        assert TUNNEL in world.kernel.state.addresses, "the kernel's own count is running"
        world.link.lease_s = 0.0
        await eventually(lambda: TUNNEL not in world.kernel.state.addresses, "taken at once by an agent that lives")
        world.link.lease_s = 6.9
        await eventually(lambda: TUNNEL in world.kernel.state.addresses, "lent again under a new lease")


async def test_an_agent_that_is_started_anew_leaves_what_was_lent_until_it_has_a_lease(world: NodeWorld) -> None:
    async with running(world):
        withdrawing(world)
        await eventually(lambda: TUNNEL in world.kernel.state.addresses, "lent")
        await eventually(lambda: LASTING in world.kernel.state.addresses, "and noted")
    world.link.lease_s = float("-inf")
    async with running(world):
        turns = world.agent.turns
        await eventually(lambda: world.agent.turns > turns + 3, "looked at by an agent without a lease")
        assert TUNNEL in world.kernel.state.addresses, "its time runs out by itself"
        lendings = world.kernel.lendings
        world.link.lease_s = 6.9
        await eventually(lambda: world.kernel.lendings > lendings, "lent again")
    assert TUNNEL not in [op.address for _, op in world.since(0, "kernel") if isinstance(op, DeleteAddress)]


async def test_one_that_is_started_anew_to_hold_gives_for_good_what_its_former_life_lent(
    world: NodeWorld, tmp_path: Path
) -> None:
    """By its configuration alone: with a shorter lease it can't withdraw. What was lent would run out under it."""
    async with running(world):
        withdrawing(world)
        await eventually(lambda: world.kernel.lent.get(TUNNEL) == 4, "lent")
        await eventually(lambda: LASTING in world.kernel.state.addresses, "and noted")
    world.config = world.config.model_copy(update={"lease": Lease()})
    async with running(world):
        await eventually(lambda: world.kernel.lent[TUNNEL] is None, "for good")


async def test_a_session_that_bird_gave_up_as_its_address_came_is_enabled_again(world: NodeWorld) -> None:
    async with running(world):
        withdrawing(world)
        world.applier.given_up = {"edge-1"}
        await eventually(lambda: not world.applier.given_up, "enabled")
        said = "sessions that BIRD had given up are enabled again"
        await eventually(lambda: said in [event for event, _ in world.said], "and told of")


async def test_a_group_that_holds_again_gives_the_address_for_good(world: NodeWorld) -> None:
    async with running(world):
        withdrawing(world, "hold")
        await eventually(lambda: TUNNEL in world.kernel.lent, "its own")
        withdrawing(world)
        await eventually(lambda: world.kernel.lent.get(TUNNEL) == 4, "lent")
        withdrawing(world, "hold")
        await eventually(lambda: world.kernel.lent[TUNNEL] is None, "for good")
        await eventually(lambda: LASTING not in world.kernel.state.addresses, "of no use any more")
        assert TUNNEL in world.kernel.state.addresses
        assert TUNNEL not in [op.address for _, op in world.since(0, "kernel") if isinstance(op, DeleteAddress)]


async def test_a_lease_that_is_too_short_holds_and_says_so(tmp_path: Path) -> None:
    world = NodeWorld(tmp_path)
    async with running(world):
        withdrawing(world)
        await eventually(lambda: "store-loss" in world.failed(), "not ready")
        assert "lease.ttl_ms" in world.failed()["store-loss"]
        await eventually(lambda: world.kernel.lent == {TUNNEL: None}, "given for good")
        assert TUNNEL in world.kernel.state.addresses


async def test_a_group_that_holds_lends_nothing_for_a_time(world: NodeWorld) -> None:
    async with running(world):
        withdrawing(world, "hold")
        await eventually(lambda: (r := world.seen()) is not None and r.ready, f"ready; lacking {world.failed()}")
        await eventually(lambda: world.kernel.lent == {TUNNEL: None}, "given for good")
        assert LASTING not in world.kernel.state.addresses


class Kernel:
    """A kernel with a clock that a test turns, which takes lent addresses away as late as Linux may."""

    LATEST_S = 1.0

    def __init__(self) -> None:
        self.now_s, self.lease_until_s = 100.0, float("-inf")
        self.until_s: dict[Address, float] = {}
        self.problems = Problems(lambda *_, **__: None)
        self.stands_still_s = 0.0
        """How long the agent is stopped once it has said for how long it lends, and before the kernel hears it."""

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    def left_s(self) -> float:
        return self.lease_until_s - self.now_s

    async def lend(self, address: Address, seconds: int | None) -> None:
        self.now_s, self.stands_still_s = self.now_s + self.stands_still_s, 0.0
        self.until_s[address] = float("inf") if seconds is None else self.now_s + seconds + self.LATEST_S

    async def apply(self, ops: Iterable[DeleteAddress]) -> None:
        for op in ops:
            self.until_s.pop(op.address, None)

    def permit(self, ttl_s: float = 6.0) -> Permit:
        return Permit(cast(Netlink, self), self, self.problems, self.left_s, ttl_s)


LENT = frozenset({TUNNEL})
SLOWEST_BFD_S = max(profile.interval_ms * profile.multiplier for profile in PROFILES.values()) / 1000


@pytest.mark.parametrize("stopped_s", [0.0, 0.4, 1.0, 2.5, 4.0, 5.9, 30.0])
@pytest.mark.parametrize("left_s", [3.0, 3.99, 4.5, 6.0, 60.0])
async def test_stopped_while_it_lends_it_lends_for_no_longer_than_the_lease_lives(
    left_s: float, stopped_s: float
) -> None:
    kernel = Kernel()
    kernel.lease_until_s = kernel.now_s + left_s
    kernel.stands_still_s = stopped_s
    await kernel.permit().look(LENT, LENT)
    assert kernel.until_s.get(TUNNEL, 0.0) + SLOWEST_BFD_S <= kernel.lease_until_s or TUNNEL not in kernel.until_s


async def test_each_of_many_is_lent_for_what_is_left_when_its_turn_comes() -> None:
    """The kernel takes its time for one: the next ones are lent for less."""
    kernel, many = Kernel(), frozenset(Address(f"bgplb-e{n}", f"10.77.0.{2 * n + 1}/31") for n in range(20))
    kernel.lease_until_s = kernel.now_s + 8.0

    async def slow(address: Address, seconds: int | None) -> None:
        kernel.now_s += 0.4
        await Kernel.lend(kernel, address, seconds)

    kernel.lend = slow  # type: ignore[method-assign]
    await kernel.permit().look(many, many)
    assert kernel.until_s and max(kernel.until_s.values()) + SLOWEST_BFD_S <= kernel.lease_until_s


async def test_one_address_that_is_refused_keeps_no_other_from_being_lent_and_is_tried_again() -> None:
    kernel, many = Kernel(), frozenset(Address(f"bgplb-e{n}", f"10.77.0.{2 * n + 1}/31") for n in range(3))
    kernel.lease_until_s = kernel.now_s + 8.0
    first = min(many, key=str)
    refused = {first}

    async def lend(address: Address, seconds: int | None) -> None:
        if address in refused:
            raise KernelRefused(22, "lend")
        await Kernel.lend(kernel, address, seconds)

    kernel.lend = lend  # type: ignore[method-assign]
    permit = kernel.permit()
    await permit.look(many, many)
    assert set(kernel.until_s) == many - {first} and "permit" in kernel.problems
    kernel.until_s.clear()
    await permit.look(many, frozenset())
    assert set(kernel.until_s) == many - {first} and "permit" in kernel.problems
    kernel.until_s.clear()
    refused.clear()
    await permit.look(many, frozenset())
    assert set(kernel.until_s) == {first} and not kernel.problems, "the others were given for good already"


async def test_the_end_of_a_tunnel_that_was_away_is_given_for_good_once_more() -> None:
    kernel = Kernel()
    permit = kernel.permit()
    for ends in (LENT, frozenset[Address](), LENT):
        kernel.until_s.clear()
        await permit.look(ends, frozenset())
        assert kernel.until_s == dict.fromkeys(ends, float("inf"))


@pytest.mark.parametrize("left_s", [0.1, 2.99])
async def test_with_too_little_left_it_neither_lends_nor_takes(left_s: float) -> None:
    kernel = Kernel()
    kernel.lease_until_s = kernel.now_s + 6.0
    permit = kernel.permit()
    await permit.look(LENT, LENT)
    running = dict(kernel.until_s)
    kernel.now_s = kernel.lease_until_s - left_s
    await permit.look(LENT, LENT)
    assert kernel.until_s == running and TUNNEL in running, "the kernel counts"


async def test_what_was_left_for_good_is_taken_once_a_former_lease_must_have_ended() -> None:
    kernel = Kernel()
    await kernel.lend(TUNNEL, None)
    permit = kernel.permit(ttl_s=6.0)
    kernel.now_s += 5.9
    await permit.look(LENT, LENT)
    assert TUNNEL in kernel.until_s, "it may be of a former life, whose lease may live"
    kernel.now_s += 0.2
    await permit.look(LENT, LENT)
    assert TUNNEL not in kernel.until_s


async def test_after_the_whole_machine_slept_it_is_taken_at_once() -> None:
    """The kernel's count stands still then; the clock that the lease is judged by does not."""
    kernel = Kernel()
    kernel.lease_until_s = kernel.now_s + 6.0
    permit = kernel.permit()
    await permit.look(LENT, LENT)
    kernel.now_s += 60.0
    kernel.until_s[TUNNEL] += 60.0
    await permit.look(LENT, LENT)
    assert TUNNEL not in kernel.until_s


def test_the_margin_is_the_kernels_second_and_the_slowest_bfd() -> None:
    assert SLOWEST_BFD_S + Kernel.LATEST_S <= LATE_S < MARGIN_S
    assert LEAST_TTL_MS / 1000 - LEAST_TTL_MS / 3000 >= MARGIN_S + 1, "with a renewal that is just due, it is lent"


def test_lasting_addresses_are_apart_from_each_other_and_from_all_ends_of_tunnels() -> None:
    spec = group()
    told = base("node", "gw-a", WEB).tunnels[0]
    taken: set[str] = set()
    for slot in (0, 1, 254):
        for number in range(MAX_EDGES):
            edge, gateway, _ = tunnel_addresses(spec, slot, number)
            tunnel: Tunnel = replace(told, slot=slot, edge_ipv4=edge, gateway_ipv4=gateway, edge_index=number)
            taken |= {edge, gateway, lasting_address(tunnel)}
    assert len(taken) == 3 * MAX_EDGES * 3
