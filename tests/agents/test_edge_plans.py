"""Plans: the edge moves by itself if, and only if, it sees the owner dead and the target alive."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from birdctl.errors import BirdUnreachable
from dataplane.diff import ReplaceRoute
from dataplane.errors import KernelRefused
from fsm.fence import Accepted
from fsm.records import EdgePool, Plan
from orchestrator.agents import edge as edge_module
from orchestrator.agents.edge import EdgeAgent
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.plans import carried_out
from orchestrator.agents.statefile import StateFileError
from tests.agents.edge_world import EdgeWorld, command
from tests.agents.fakes import KEYS, MAIL, WEB, base, eventually

PREFIX = WEB[0]
ARMED = command("gw-a", 3, plan=(Plan("gw-b", 4, 3),))


@pytest.fixture
def world(tmp_path: Path) -> EdgeWorld:
    return EdgeWorld(tmp_path)


@asynccontextmanager
async def armed(world: EdgeWorld, told: EdgePool = ARMED, link: bool = True) -> AsyncIterator[EdgeAgent]:
    """An agent with a plan, whose sessions are both up."""
    async with world.running(link) as agent:
        world.tell(("web", told), base=base("edge", "edge-1", WEB, MAIL))
        await eventually(lambda: world.kernel.routes_to(PREFIX), "the route")
        await eventually(lambda: set(agent._tunnels.lanes) == {"gw-a", "gw-b"}, "the tunnels")
        await asyncio.sleep(0.05)
        for gateway in ("gw-a", "gw-b"):
            world.session(gateway, up=True)
        await eventually(
            lambda: {w.session for w in (agent._watch.witness(g) for g in ("gw-a", "gw-b"))} == {"up"}, "sessions up"
        )
        yield agent


def die(world: EdgeWorld, gateway: str = "gw-a") -> None:
    world.reply(gateway, passes=False)
    world.session(gateway, up=False)


async def test_the_edge_moves_at_once_and_reports_it(world: EdgeWorld) -> None:
    async with armed(world) as agent:
        mark = len(world.done)
        die(world)
        await eventually(lambda: world.kernel.routes_to(PREFIX) == ["bgplb-g1"], "the move")
        report = await world.confirmed(command("gw-b", 4))
        assert report.executed_plan == 4
        kinds = [kind for kind, _ in world.since(mark)]
        assert kinds == ["wireguard", "wireguard", "kernel", "save"], "no disk before the packets"
        assert world.senders(PREFIX) == {"gw-b"}
        assert agent._state.fence.highest_epoch == 4


async def test_what_it_sees_is_told_together_with_what_it_does(world: EdgeWorld) -> None:
    """A leader that heard of the death alone would decide the same once more, and take time from who is doing it."""
    async with armed(world):
        told: list[str] = []

        async def meanwhile() -> None:
            world.agent.on_session("gw-a")
            told.append(world.seen().gateways["gw-a"].session)

        world.kernel.before_write = meanwhile
        mark = len(world.link.order)
        die(world)
        await world.confirmed(command("gw-b", 4))
        assert set(told) == {"up"}
        await eventually(lambda: world.seen().gateways["gw-a"].session == "down", "then it is told")
        keys = [key for key, _ in world.link.order[mark:]]
        base_key, pool_key = KEYS.observed_base("edge", "edge-1"), KEYS.observed("edge", "edge-1", "pool", "web")
        assert keys.index(pool_key) < keys.index(base_key)


async def test_a_plan_that_hangs_does_not_keep_back_what_it_sees(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_module, "ACTING_S", 0.05)
    async with armed(world):
        go = asyncio.Event()

        async def hang() -> None:
            await go.wait()

        world.kernel.before_write = hang
        die(world)
        await asyncio.sleep(0.1)
        assert world.seen().gateways["gw-a"].session == "up"
        world.agent._observe()  # as with each further probe that is not answered
        assert world.seen().gateways["gw-a"].session == "down"
        go.set()
        await world.confirmed(command("gw-b", 4))


async def test_it_needs_no_store(world: EdgeWorld) -> None:
    async with armed(world):
        pass
    async with world.running(link=False) as agent:
        await eventually(lambda: set(agent._tunnels.lanes) == {"gw-a", "gw-b"}, "the tunnels")
        await asyncio.sleep(0.05)
        for gateway in ("gw-a", "gw-b"):
            world.session(gateway, up=True)
        await eventually(lambda: agent._watch.witness("gw-a").session == "up", "the session")
        die(world)
        await eventually(lambda: world.kernel.routes_to(PREFIX) == ["bgplb-g1"], "the move")


async def test_what_it_did_outlives_a_restart(world: EdgeWorld) -> None:
    async with armed(world):
        die(world)
        await world.confirmed(command("gw-b", 4))
    world.link.told.clear()
    async with world.running():
        report = await world.confirmed(command("gw-b", 4))
        assert report.executed_plan == 4
        world.tell(("web", ARMED))
        await asyncio.sleep(0.1)
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g1"], "the old command is below what it did"


async def test_it_died_between_the_kernel_and_the_disk(world: EdgeWorld) -> None:
    class Killed(Exception):
        pass

    def killed(state: EdgeState) -> None:
        raise Killed

    with pytest.raises(ExceptionGroup):
        async with armed(world) as agent:
            agent._kept.save = killed
            die(world)
            await asyncio.sleep(0.1)
    assert world.kernel.routes_to(PREFIX) == ["bgplb-g1"]
    world.link.told.clear()
    mark = len(world.done)
    async with world.running():
        report = await world.confirmed(command("gw-b", 4))
        assert report.executed_plan == 4
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g1"]
        assert world.since(mark, "kernel", "wireguard") == []


async def test_a_full_disk_keeps_no_plan_from_being_carried_out(world: EdgeWorld) -> None:
    """The plan is on disk since it was armed, and what was done by it the kernel knows."""

    def full(state: EdgeState) -> None:
        raise StateFileError("edge.json: can't be written: is the disk full?")

    async with armed(world) as agent:
        agent._kept.save = full
        die(world)
        report = await world.confirmed(command("gw-b", 4))
        assert report.executed_plan == 4
        await eventually(lambda: any("disk full" in p for p in world.seen().problems), "the problem", 5.0)
    world.link.told.clear()
    async with world.running() as again:
        await world.confirmed(command("gw-b", 4))
        assert again._state.fence.highest_epoch == 4


async def test_the_leaders_next_command_ends_it(world: EdgeWorld) -> None:
    async with armed(world):
        die(world)
        await world.confirmed(command("gw-b", 4))
        world.tell(("web", command("gw-b", 4)))
        await eventually(lambda: (r := world.report()) is not None and r.executed_plan is None, "adopted")
        world.tell(("web", command("gw-a", 9)))
        report = await world.confirmed(command("gw-a", 9))
        assert report.carried_out == ARMED.plan[:1], "it still says what it did, for a leader that looks late"
    world.link.told.clear()
    async with world.running():
        report = await world.confirmed(command("gw-a", 9))
        assert report.carried_out == ARMED.plan[:1], "over a restart, too"


async def test_each_pool_of_a_dead_gateway_moves(world: EdgeWorld) -> None:
    async with armed(world):
        world.tell(("mail", command("gw-a", 5, MAIL, plan=(Plan("gw-b", 6, 5),))))
        await world.confirmed(command("gw-a", 5), "mail")
        die(world)
        await world.confirmed(command("gw-b", 4))
        await world.confirmed(command("gw-b", 6), "mail")
        assert world.kernel.routes_to(MAIL[0]) == world.kernel.routes_to(PREFIX) == ["bgplb-g1"]


def session_only(world: EdgeWorld) -> None:
    world.session("gw-a", up=False)


def probe_only(world: EdgeWorld) -> None:
    world.reply("gw-a", passes=False)


def target_too(world: EdgeWorld) -> None:
    world.reply("gw-b", passes=False)
    die(world)


def target_without_session(world: EdgeWorld) -> None:
    world.session("gw-b", up=False)
    die(world)


def bird_is_silent(world: EdgeWorld) -> None:
    world.monitor.silent = BirdUnreachable(Path("/run/bird.ctl"), "no such file")
    world.agent._sessions._silent()
    die(world)


@pytest.mark.parametrize("happens", [session_only, probe_only, target_too, target_without_session, bird_is_silent])
async def test_less_than_dead_owner_and_living_target_moves_nothing(
    world: EdgeWorld, happens: Callable[[EdgeWorld], None]
) -> None:
    async with armed(world):
        mark = len(world.done)
        happens(world)
        world.agent._observe()
        await asyncio.sleep(0.3)
        assert world.since(mark, "kernel", "wireguard") == []
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]


@pytest.mark.parametrize(
    "told", [replace(ARMED, plan=()), replace(ARMED, plan=(Plan("gw-b", 4, 2),))], ids=["no plan", "another base"]
)
async def test_without_a_plan_that_stands_on_its_epoch_it_waits_for_the_leader(
    world: EdgeWorld, told: EdgePool
) -> None:
    async with armed(world, told):
        mark = len(world.done)
        die(world)
        await asyncio.sleep(0.2)
        assert world.since(mark, "kernel", "wireguard") == []


async def test_a_revoked_plan_is_not_carried_out(world: EdgeWorld) -> None:
    async with armed(world):
        world.tell(("web", replace(ARMED, plan=())))
        await eventually(lambda: (r := world.report()) is not None and r.armed_plan is None, "revoked")
        die(world)
        await asyncio.sleep(0.2)
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]


async def test_an_audit_in_mid_plan_does_not_bring_the_dead_owner_back(world: EdgeWorld) -> None:
    async with armed(world) as agent:
        auditing = asyncio.create_task(agent._reconcile())
        die(world)
        await world.confirmed(command("gw-b", 4))
        await auditing
        await agent._reconcile()
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g1"]
        assert world.senders(PREFIX) == {"gw-b"}


async def test_a_plan_whose_prefix_went_to_another_pool_is_refused_and_ends_nothing(world: EdgeWorld) -> None:
    async with armed(world):
        world.tell(("mail", command("gw-b", 7)))
        await world.confirmed(command("gw-b", 7), "mail")
        die(world)
        await asyncio.sleep(0.1)
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g1"], "as the other pool has it"
        world.tell(("mail", command("gw-b", 8)))
        await world.confirmed(command("gw-b", 8), "mail")
        assert not any(event == "plan carried out" for event, _ in world.said)


async def test_a_plan_that_the_kernel_refuses_is_confirmed_only_when_it_holds(world: EdgeWorld) -> None:
    async with armed(world):
        world.kernel.failing = KernelRefused(errno.EBUSY, "replace route")
        die(world)
        await eventually(lambda: (r := world.report()) is not None and "EBUSY" in r.error, "the error")
        report = world.report()
        assert report is not None
        assert (report.epoch, report.installed, report.withdrawn) == (4, False, False)
        world.kernel.failing = None
        await world.confirmed(command("gw-b", 4))


async def test_a_chain_of_which_nothing_reached_the_disk_is_found_whole(world: EdgeWorld) -> None:
    chain = replace(ARMED, plan=(Plan("gw-b", 4, 3), Plan("gw-c", 5, 4)))
    three = base("edge", "edge-1", WEB, MAIL)
    third = replace(
        three.tunnels[1], name="gw-c", public_key="key-gw-c", slot=2, port=51822,
        edge_ipv4="10.255.0.9", gateway_ipv4="10.255.0.10", probe_ipv4="10.255.64.3",
    )  # fmt: skip
    async with world.running():
        world.tell(("web", chain), base=replace(three, tunnels=(*three.tunnels, third)))
        await world.confirmed(chain)
    (route,) = (r for r in world.kernel.state.routes if r.prefix == PREFIX)
    await world.kernel.netlink.change_routes([ReplaceRoute(replace(route, device="bgplb-g2"))])
    world.link.told.clear()
    async with world.running():
        report = await world.confirmed(command("gw-c", 5))
        assert report.executed_plan == 5
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g2"]


@pytest.mark.parametrize("plan", [(Plan("gw-b", 3, 3),), (Plan("gw-b", 4, 3), Plan("gw-a", 3, 4))])
def test_a_chain_that_bites_its_own_tail_has_an_end(plan: tuple[Plan, ...]) -> None:
    held = {"web": Accepted(replace(ARMED, plan=plan), 101)}
    devices = {"gw-a": "bgplb-g0", "gw-b": "bgplb-g1"}
    assert carried_out(held, dict.fromkeys(WEB, "bgplb-g2"), devices) == []
    assert carried_out(held, dict.fromkeys(WEB, "bgplb-g1"), devices) == ["web"]


async def test_a_plan_that_can_t_be_carried_out_is_not_told_as_done(world: EdgeWorld) -> None:
    async with armed(world):
        world.kernel.failing = KernelRefused(errno.ENOSPC, "route")
        die(world)
        await eventually(lambda: (r := world.report()) is not None and r.error, "the error")
        assert "plan carried out" not in [event for event, _ in world.said]
        assert world.agent._unanswered == set(), "nothing to wait for an answer to"


async def test_a_plan_that_the_kernel_takes_later_ends_its_outage_then(world: EdgeWorld) -> None:
    """And not with the next command, which may come hours afterwards."""
    async with armed(world) as agent:
        world.kernel.failing = KernelRefused(errno.ENOSPC, "route")
        die(world)
        await eventually(lambda: (r := world.report()) is not None and r.error, "the error")
        world.kernel.failing = None
        await world.confirmed(command("gw-b", 4))
        assert agent._unanswered == {"web"}


async def test_a_base_that_bird_can_t_have_is_a_problem_and_not_the_end(world: EdgeWorld) -> None:
    async with armed(world):
        world.tell(base=replace(base("edge", "edge-1", WEB, MAIL), hold_time_s=1))
        await eventually(lambda: any("hold" in problem for problem in world.seen().problems), "the problem", 5.0)
        die(world)
        await world.confirmed(command("gw-b", 4))
