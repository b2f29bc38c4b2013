"""Hundreds of pools at one edge: what is due together costs few calls, in the order of a single move."""

import asyncio
import errno
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dataplane.errors import KernelRefused, KernelTimeout
from dataplane.events import RouteChange
from dataplane.model import TABLE_MAIN, Route
from fsm.records import EdgePool, Plan
from orchestrator.agents.edge import EdgeAgent
from tests.agents.edge_world import EdgeWorld, command
from tests.agents.fakes import KEYS, MAIL, PARKING, WEB, base, eventually

MANY = 400
POOLS: dict[str, tuple[str, ...]] = {f"pool-{n:04d}": (f"198.18.{n // 256}.{n % 256}/32",) for n in range(MANY)}
FEW = dict(list(POOLS.items())[:6])


@pytest.fixture
def world(tmp_path: Path) -> EdgeWorld:
    return EdgeWorld(tmp_path)


def orders(pools: dict[str, tuple[str, ...]], owner: str, epoch: int, **fields: Any) -> list[tuple[str, EdgePool]]:
    return [(name, command(owner, epoch, prefixes, **fields)) for name, prefixes in pools.items()]


@asynccontextmanager
async def carrying(world: EdgeWorld, pools: dict[str, tuple[str, ...]], **fields: Any) -> AsyncIterator[EdgeAgent]:
    """An agent at rest that has all these pools on gw-a, with both sessions up."""
    async with world.running() as agent:
        world.tell(*orders(pools, "gw-a", 3, **fields), base=base("edge", "edge-1", WEB, MAIL))
        await owned(world, pools, "gw-a", 3)
        await eventually(lambda: set(agent._tunnels.lanes) == {"gw-a", "gw-b"}, "the tunnels")
        await agent._reconcile()
        for gateway in ("gw-a", "gw-b"):
            world.session(gateway, up=True)
        await eventually(lambda: agent._watch.witness("gw-b").session == "up", "sessions up")
        yield agent


async def owned(world: EdgeWorld, pools: dict[str, tuple[str, ...]], owner: str, epoch: int) -> None:
    def done() -> bool:
        reports = [world.report(pool) for pool in pools]
        return all(r is not None and r.installed and (r.owner, r.epoch) == (owner, epoch) for r in reports)

    await eventually(done, f"all on {owner}", within_s=30.0)


class Counted:
    """How often the kernel and WireGuard are asked, and told."""

    def __init__(self, world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        for owner, names in (
            (world.kernel, ("routes", "route", "change_routes", "read")),
            (world.wireguard, ("read", "update")),
        ):
            for name in names:
                self._count(owner, name, monkeypatch)

    def _count(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)
        what = f"{'wireguard' if owner.__class__.__name__ == 'RecordingWireGuard' else 'kernel'} {name}"

        async def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[what] += 1
            return await real(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)


async def not_now() -> None:
    """In place of a reconciliation: on a machine that is slow it would begin while the calls of a move are counted."""


def die(world: EdgeWorld) -> None:
    world.reply("gw-a", passes=False)
    world.session("gw-a", up=False)


async def test_hundreds_of_commands_are_one_sync_and_a_handful_of_calls(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(world, POOLS) as agent:
        monkeypatch.setattr(agent, "_reconcile", not_now)
        mark, counted = len(world.done), Counted(world, monkeypatch)
        world.tell(*orders(POOLS, "gw-b", 4))
        await owned(world, POOLS, "gw-b", 4)
        assert len(world.since(mark, "save")) == 1
        assert counted.calls == {
            "wireguard update": 2,
            "kernel change_routes": 1,
            "kernel routes": 1,
            "wireguard read": 2,
        }
        steps = [kind for kind, _ in world.since(mark)]
        assert steps == ["save", "wireguard", "wireguard", *["kernel"] * MANY]
        parked, given = (event[1] for event in world.since(mark, "wireguard"))
        assert (parked[0], parked[1][0].public_key) == ("bgplb-g0", PARKING)
        assert (given[0], given[1][0].public_key) == ("bgplb-g1", "key-gw-b")
        assert len(parked[1][0].add_allowed_ips) == len(given[1][0].add_allowed_ips) == MANY


async def test_hundreds_of_plans_are_as_few_calls_and_the_disk_comes_last(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(world, POOLS, plan=(Plan("gw-b", 4, 3),)) as agent:
        monkeypatch.setattr(agent, "_reconcile", not_now)
        mark, counted = len(world.done), Counted(world, monkeypatch)
        die(world)
        await owned(world, POOLS, "gw-b", 4)
        assert counted.calls == {
            "wireguard update": 2,
            "kernel change_routes": 1,
            "kernel routes": 1,
            "wireguard read": 2,
        }
        assert [kind for kind, _ in world.since(mark)] == ["wireguard", "wireguard", *["kernel"] * MANY, "save"]
        assert {world.report(pool).executed_plan for pool in POOLS} == {4}  # type: ignore[union-attr]


async def test_an_audit_of_hundreds_reads_each_thing_once(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async with carrying(world, POOLS) as agent:
        mark, counted = len(world.done), Counted(world, monkeypatch)
        await agent._audit()
        assert counted.calls == {"kernel routes": 1, "wireguard read": 2}
        assert world.since(mark) == []


async def test_a_restart_recovers_plans_with_one_reading(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async with carrying(world, FEW, plan=(Plan("gw-b", 4, 3),)) as agent:
        agent._kept.save = lambda _state: None  # killed before the disk had it
        die(world)
        await owned(world, FEW, "gw-b", 4)
    world.link.told.clear()
    counted = Counted(world, monkeypatch)
    async with world.running() as agent:
        await owned(world, FEW, "gw-b", 4)
        assert {a.executed for a in agent._state.fence.pools.values()} == {True}
        assert counted.calls["kernel route"] == 0


async def test_planned_moves_of_many_linger_and_end_together(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async with carrying(world, FEW):
        mark = len(world.done)
        world.tell(*orders(FEW, "gw-b", 4, planned=True))
        await owned(world, FEW, "gw-b", 4)
        assert all(world.report(pool).lingering for pool in FEW)  # type: ignore[union-attr]
        await eventually(lambda: not any(world.report(pool).lingering for pool in FEW), "the linger ends")  # type: ignore[union-attr]
        kinds = [kind for kind, _ in world.since(mark)]
        assert kinds == ["save", "wireguard", *["kernel"] * len(FEW), "wireguard"]


async def test_one_pool_of_a_linger_that_moves_on_is_left_alone_when_the_others_end(world: EdgeWorld) -> None:
    async with carrying(world, FEW):
        world.tell(*orders(FEW, "gw-b", 4, planned=True))
        await owned(world, FEW, "gw-b", 4)
        back = dict(list(FEW.items())[:1])
        world.tell(*orders(back, "gw-a", 5))
        await owned(world, back, "gw-a", 5)
        rest = {pool: prefixes for pool, prefixes in FEW.items() if pool not in back}
        await eventually(lambda: not any(world.report(p).lingering for p in rest), "the linger ends")  # type: ignore[union-attr]
        for pool, (prefix,) in FEW.items():
            assert world.senders(prefix) == ({"gw-a"} if pool in back else {"gw-b"})


async def test_one_that_the_kernel_refuses_does_not_hold_up_the_rest(world: EdgeWorld) -> None:
    foreign = Route(FEW["pool-0003"][0], TABLE_MAIN, "bgplb-g0", protocol=4)
    async with carrying(world, {}):
        world.kernel.add(routes=[foreign])
        world.tell(*orders(FEW, "gw-b", 4))
        rest = {pool: prefixes for pool, prefixes in FEW.items() if pool != "pool-0003"}
        await owned(world, rest, "gw-b", 4)
        await eventually(lambda: (r := world.report("pool-0003")) is not None and r.error, "its error")
        report = world.report("pool-0003")
        assert report is not None and not report.installed
        assert foreign in world.kernel.state.routes


async def test_a_tunnel_that_hangs_is_waited_for_a_few_times_not_once_a_pool(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(world, POOLS):
        world.wireguard.broken["bgplb-g0"] = KernelTimeout("set peers", 2.0)
        counted = Counted(world, monkeypatch)
        world.tell(*orders(POOLS, "gw-b", 4))
        await eventually(lambda: all((r := world.report(p)) is not None and r.error for p in POOLS), "the errors", 20.0)
        assert counted.calls["wireguard update"] < 20
        del world.wireguard.broken["bgplb-g0"]
        await owned(world, POOLS, "gw-b", 4)


@pytest.mark.parametrize("by_plan", [True, False], ids=["by plan", "by command"])
async def test_a_tunnel_whose_process_hangs_keeps_no_pool_from_leaving_it(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch, by_plan: bool
) -> None:
    whole = world.wireguard.update

    async def update(name: str, updates: Any) -> None:
        if name == "bgplb-g0" and name in world.wireguard.broken:
            await asyncio.sleep(1.0)
        await whole(name, updates)

    async with carrying(world, FEW, plan=(Plan("gw-b", 4, 3),)):
        monkeypatch.setattr(world.wireguard, "update", update)
        world.wireguard.broken["bgplb-g0"] = KernelTimeout("set peers", 1.0)
        if by_plan:
            die(world)
        else:
            world.tell(*orders(FEW, "gw-b", 4))
        prefixes = [prefix for found in FEW.values() for prefix in found]
        await eventually(
            lambda: all(world.kernel.routes_to(prefix) == ["bgplb-g1"] for prefix in prefixes), "the routes", 0.7
        )
        await eventually(lambda: all((r := world.report(p)) is not None and r.error for p in FEW), "no confirmation")
        assert not any((r := world.report(p)) is not None and r.installed and r.epoch == 4 for p in FEW)
        del world.wireguard.broken["bgplb-g0"]
        await owned(world, FEW, "gw-b", 4)


async def test_a_refused_plan_keeps_none_of_the_others_back(world: EdgeWorld) -> None:
    async with carrying(world, FEW, plan=(Plan("gw-b", 4, 3),)):
        taken = FEW["pool-0002"]
        world.tell(("thief", command("gw-b", 9, taken)))
        await world.confirmed(command("gw-b", 9, taken), "thief")
        die(world)
        rest = {pool: prefixes for pool, prefixes in FEW.items() if prefixes != taken}
        await owned(world, rest, "gw-b", 4)
        report = world.report("pool-0002")
        assert report is not None and report.epoch == 3


async def test_two_commands_for_one_prefix_hold_in_their_order(world: EdgeWorld) -> None:
    prefix = FEW["pool-0001"]
    async with carrying(world, FEW):
        world.tell(("pool-0001", command("gw-b", 4, prefix)), ("other", command("gw-a", 5, prefix)))
        await world.confirmed(command("gw-a", 5, prefix), "other")
        assert world.kernel.routes_to(prefix[0]) == ["bgplb-g0"]
        assert world.senders(prefix[0]) == {"gw-a"}


async def test_it_dies_between_the_disk_and_the_kernel(world: EdgeWorld) -> None:
    """All that was fenced together is carried out by the next life, store or not."""
    async with carrying(world, FEW):
        world.kernel.failing = KernelRefused(errno.EBUSY, "replace route")
        world.tell(*orders(FEW, "gw-b", 4))
        await eventually(lambda: all((r := world.report(p)) is not None and r.error for p in FEW), "the errors")
    world.kernel.failing = None
    async with world.running(link=False):
        await eventually(lambda: all(world.kernel.routes_to(p) == ["bgplb-g1"] for (p,) in FEW.values()), "the routes")
        assert all(world.senders(p) == {"gw-b"} for (p,) in FEW.values())


async def test_a_dead_sessions_routes_are_reported_together(world: EdgeWorld) -> None:
    async with carrying(world, POOLS) as agent:
        on_route = agent._events._on_route
        for (prefix,) in POOLS.values():
            agent._events.routes[prefix] = RouteChange(prefix, 10177, True, "bgplb-g0", None)
            on_route(agent._events.routes[prefix])
        await eventually(lambda: all(world.report(p).announced_by == ("gw-a",) for p in POOLS), "announced")  # type: ignore[union-attr]
        before = len(world.link.order)
        for (prefix,) in POOLS.values():
            on_route(RouteChange(prefix, 10177, False, "bgplb-g0", None))
            agent._events.routes.pop(prefix)
        assert len(world.link.order) == before, "nothing is reported from inside the netlink reader"
        await eventually(lambda: not any(world.report(p).announced_by for p in POOLS), "withdrawn")  # type: ignore[union-attr]
        pools = {KEYS.observed("edge", "edge-1", "pool", pool) for pool in POOLS}
        assert Counter(key for key, _ in world.link.order[before:] if key in pools).most_common(1)[0][1] <= 2
