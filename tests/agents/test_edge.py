"""The edge agent: fence before kernel, the order of a move, restarts that disturb nothing, and other hands."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from birdctl.errors import BirdUnreachable
from dataplane.diff import AddRoute, DeleteLink, DeleteRoute, ReplaceRoute
from dataplane.errors import KernelRefused, KernelTimeout
from dataplane.model import TABLE_MAIN, Link, Route
from dataplane.wireguard import PeerUpdate
from orchestrator.agents import edge as edge_module
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.statefile import StateFileError
from tests.agents.edge_world import EdgeWorld, command, serving
from tests.agents.fakes import KEYS, MAIL, PARKING, WEB, base, eventually, order

PREFIX = WEB[0]


@pytest.fixture
def world(tmp_path: Path) -> EdgeWorld:
    return EdgeWorld(tmp_path)


def is_route(event: tuple[str, Any], device: str) -> bool:
    return event[0] == "kernel" and isinstance(event[1], AddRoute | ReplaceRoute) and event[1].route.device == device


def gives(event: tuple[str, Any], device: str, peer: str) -> bool:
    """Whether it lets this peer send from the pool's prefix."""
    return event[0] == "wireguard" and event[1][0] == device and any(
        update.public_key == peer and PREFIX in update.add_allowed_ips for update in event[1][1]
    )  # fmt: skip


async def test_an_unplanned_move_takes_gives_and_turns_the_route_in_this_order(world: EdgeWorld) -> None:
    async with serving(world):
        mark = len(world.done)
        world.tell(("web", command("gw-b", 2)))
        report = await world.confirmed(command("gw-b", 2))
        steps = world.since(mark)
        assert steps[0][0] == "save", "on disk before the kernel is touched"
        assert steps[0][1].fence.pools["web"].command.owner == "gw-b"
        assert gives(steps[1], "bgplb-g0", PARKING)
        assert gives(steps[2], "bgplb-g1", "key-gw-b")
        assert is_route(steps[3], "bgplb-g1")
        assert len(steps) == 4
        assert report.withdrawn
        assert {"withdraw", "peer_move"} <= set(report.phases_ms)
        assert world.senders(PREFIX) == {"gw-b"}
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g1"]


async def test_a_planned_move_gives_turns_waits_and_takes(world: EdgeWorld) -> None:
    async with serving(world):
        mark = len(world.done)
        world.tell(("web", command("gw-b", 2, planned=True)))
        report = await world.confirmed(command("gw-b", 2))
        assert report.lingering
        assert world.senders(PREFIX) == {"gw-a", "gw-b"}, "answers under way may still come"
        await eventually(lambda: world.senders(PREFIX) == {"gw-b"}, "the linger ends")
        steps = world.since(mark)
        assert [step[0] for step in steps] == ["save", "wireguard", "kernel", "wireguard"]
        assert gives(steps[1], "bgplb-g1", "key-gw-b")
        assert is_route(steps[2], "bgplb-g1")
        assert gives(steps[3], "bgplb-g0", PARKING)


async def test_an_unplanned_move_in_mid_linger_wins(world: EdgeWorld) -> None:
    async with serving(world):
        world.tell(("web", command("gw-b", 2, planned=True)))
        await world.confirmed(command("gw-b", 2))
        world.tell(("web", command("gw-a", 3)))
        await world.confirmed(command("gw-a", 3))
        assert world.senders(PREFIX) == {"gw-a"}
        await asyncio.sleep(0.06)
        assert world.senders(PREFIX) == {"gw-a"}, "the old linger must not end the new one"


async def test_an_old_number_is_refused_and_leaves_the_kernel_alone(world: EdgeWorld) -> None:
    async with serving(world, epoch=5):
        mark = len(world.done)
        world.tell(("other", command("gw-b", 4)))
        await eventually(lambda: any(event == "command refused" for event, _ in world.said), "a refusal")
        world.tell(("web", command("gw-b", 4)))
        await asyncio.sleep(0.05)
        assert world.since(mark) == []
        assert world.senders(PREFIX) == {"gw-a"}


async def test_a_restart_with_the_store_dead_starts_from_disk_and_disturbs_nothing(world: EdgeWorld) -> None:
    async with serving(world):
        pass
    mark = len(world.done)
    async with world.running(link=False):
        await asyncio.sleep(0.1)
        assert world.since(mark) == [], "all is as it should be: not one operation"
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]


async def test_after_a_boot_with_the_store_dead_everything_is_made_from_disk(world: EdgeWorld, tmp_path: Path) -> None:
    async with serving(world):
        pass
    anew = EdgeWorld(tmp_path)
    async with anew.running(link=False):
        await eventually(lambda: anew.kernel.routes_to(PREFIX) == ["bgplb-g0"], "the route")
        await eventually(lambda: anew.senders(PREFIX) == {"gw-a"}, "AllowedIPs")


async def test_the_fence_outlives_a_restart(world: EdgeWorld) -> None:
    async with serving(world, epoch=7):
        pass
    async with world.running():
        mark = len(world.done)
        world.tell(("web", command("gw-b", 6)))
        await asyncio.sleep(0.1)
        assert world.since(mark) == []
        assert world.seen().highest_epoch == 7


async def test_a_lost_state_directory_does_not_tear_down_what_carries_traffic(world: EdgeWorld) -> None:
    async with serving(world):
        pass
    (world.path / "edge.json").unlink()
    mark = len(world.done)
    async with world.running():
        await asyncio.sleep(0.1)
        assert world.since(mark, "kernel", "wireguard", "nft") == [], "it knows nothing yet, so it tidies nothing"
        world.tell(("web", command("gw-a", 1)), base=base("edge", "edge-1", WEB, MAIL))
        await world.confirmed(command("gw-a", 1))
        await asyncio.sleep(0.05)
        gone = [op for _, op in world.since(mark, "kernel") if isinstance(op, DeleteRoute | DeleteLink)]
        assert gone == []
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]


async def test_a_key_that_is_gone_without_an_order_changes_nothing(world: EdgeWorld) -> None:
    async with serving(world) as agent:
        mark = len(world.done)
        world.tell(("web", None))
        agent.on_desired((replace(order("x", None, 200), key=KEYS.desired_base("edge", "edge-1")),))
        await asyncio.sleep(0.05)
        await agent._reconcile()
        assert world.since(mark) == []
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]


async def test_deletion_leaves_nothing_and_keeps_the_number(world: EdgeWorld) -> None:
    async with serving(world) as agent:
        gone = command(None, 1, deleted=True)
        world.tell(("web", gone))
        await world.confirmed(gone)
        assert world.kernel.routes_to(PREFIX) == []
        assert world.senders(PREFIX) == set()
        world.tell(("web", None))
        assert world.report() is None
        await agent._reconcile()
        for device in ("bgplb-g0", "bgplb-g1"):
            assert PREFIX not in world.wireguard.allowed(device, PARKING), "nothing left over, parked neither"
        assert agent._state.fence.highest_epoch == 1


async def test_a_deletion_that_ended_while_the_agent_was_away_is_not_reported_for_ever(world: EdgeWorld) -> None:
    async with serving(world):
        gone = command(None, 1, deleted=True)
        world.tell(("web", gone))
        await world.confirmed(gone)
    world.link.told.clear()
    async with world.running() as agent:
        world.link.keys.clear()
        world.link.ready.set()
        await agent._reconcile()
        assert world.report() is None
        assert "web" not in agent._state.fence.pools


async def test_another_hands_changes_are_put_right_and_foreign_things_left_alone(world: EdgeWorld) -> None:
    async with serving(world) as agent:
        foreign = Route("198.51.100.0/24", TABLE_MAIN, "bgplb-g0", protocol=4)
        world.kernel.add(routes=[foreign], links=[Link("eth0", "ether", 1500)])
        await world.wireguard.update("bgplb-g1", [PeerUpdate("key-gw-b", add_allowed_ips=frozenset({PREFIX}))])
        await world.wireguard.update(
            "bgplb-g0", [PeerUpdate("key-stranger", add_allowed_ips=frozenset({"10.0.0.0/8"}))]
        )
        await world.kernel.kernel.apply([DeleteRoute(Route(PREFIX, TABLE_MAIN, "bgplb-g0", mtu_lock=1280))])
        await agent._reconcile()
        assert world.senders(PREFIX) == {"gw-a"}
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]
        assert foreign in world.kernel.state.routes
        assert world.wireguard.allowed("bgplb-g0", "key-stranger") == frozenset()
        assert any(link.name == "eth0" for link in world.kernel.state.links)


async def test_a_foreign_route_in_the_pools_place_is_never_replaced(world: EdgeWorld) -> None:
    foreign = Route(MAIL[0], TABLE_MAIN, "bgplb-g0", protocol=4)
    async with serving(world):
        world.kernel.add(routes=[foreign])
        world.tell(("mail", command("gw-b", 2, MAIL)))
        await eventually(lambda: (r := world.report("mail")) is not None and r.error, "an error is reported")
        assert foreign in world.kernel.state.routes
        report = world.report("mail")
        assert report is not None
        assert not report.installed
        assert "somebody else" in report.error or "exists" in report.error
        world.tell(("web", command("gw-b", 3)))
        await world.confirmed(command("gw-b", 3))


async def test_what_is_taken_from_a_pool_leaves_also_when_the_kernel_failed_meanwhile(world: EdgeWorld) -> None:
    both = (PREFIX, "192.0.2.128/26")
    async with serving(world) as agent:
        world.tell(("web", command("gw-a", 2, both)))
        await world.confirmed(command("gw-a", 2, both))
        world.wireguard.broken["bgplb-g0"] = KernelTimeout("set peers", 2.0)
        world.tell(("web", command("gw-a", 3)))
        await eventually(lambda: (r := world.report()) is not None and r.error, "an error")
        del world.wireguard.broken["bgplb-g0"]
        await world.confirmed(command("gw-a", 3))
        await agent._reconcile()
        assert world.kernel.routes_to(both[1]) == []
        assert world.senders(both[1]) == set()


async def test_a_prefix_that_changes_pools_stays_in_place_whichever_comes_first(world: EdgeWorld) -> None:
    both = (PREFIX, "192.0.2.128/26")
    async with serving(world):
        world.tell(("web", command("gw-a", 2, both)))
        await world.confirmed(command("gw-a", 2, both))
        world.tell(("mail", command("gw-b", 3, both[1:])), ("web", command("gw-a", 4)))
        await world.confirmed(command("gw-b", 3), "mail")
        await world.confirmed(command("gw-a", 4))
        assert world.kernel.routes_to(both[1]) == ["bgplb-g1"]
        assert world.senders(both[1]) == {"gw-b"}


async def test_an_audit_that_waited_for_its_turn_does_not_bring_the_old_owner_back(world: EdgeWorld) -> None:
    async with serving(world) as agent:
        world.tell(("mail", command("gw-a", 2, MAIL)))
        await world.confirmed(command("gw-a", 2), "mail")
        # The audit looks at one pool after the other; a command for a later one comes while it is at the first.
        await world.kernel.kernel.apply([DeleteRoute(Route(PREFIX, TABLE_MAIN, "bgplb-g0", mtu_lock=1280))])

        async def meanwhile() -> None:
            world.tell(("mail", command("gw-b", 3, MAIL)))
            for _ in range(50):
                await asyncio.sleep(0)

        world.kernel.before_write = meanwhile
        await agent._audit()
        await world.confirmed(command("gw-b", 3), "mail")
        await asyncio.sleep(0.05)
        assert world.kernel.routes_to(MAIL[0]) == ["bgplb-g1"]
        assert world.senders(MAIL[0]) == {"gw-b"}


async def test_reconciliation_in_mid_command_does_not_turn_the_route_before_the_gateway_may_send(
    world: EdgeWorld,
) -> None:
    async with serving(world) as agent:
        mark = len(world.done)
        reconciling = asyncio.create_task(agent._reconcile())
        world.tell(("web", command("gw-b", 2, planned=True)))
        await world.confirmed(command("gw-b", 2))
        await reconciling
        steps = world.since(mark)
        route = next(i for i, step in enumerate(steps) if is_route(step, "bgplb-g1"))
        given = next(i for i, step in enumerate(steps) if gives(step, "bgplb-g1", "key-gw-b"))
        assert given < route


async def test_one_pool_whose_command_fails_does_not_hold_up_the_others(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(world):
        world.tell(("mail", command("gw-c", 2, MAIL)))
        await eventually(lambda: (r := world.report("mail")) is not None and r.error, "no tunnel to gw-c")
        monkeypatch.setattr(edge_module, "RETRY_S", 30.0)  # were the retry waited for, the next one would be late
        await asyncio.sleep(0.25)
        world.tell(("web", command("gw-b", 3)))
        await world.confirmed(command("gw-b", 3))
        report = world.report("mail")
        assert report is not None
        assert "gw-c" in report.error


@pytest.mark.parametrize("killed", ["gone", "hung"])
async def test_a_move_away_from_a_gateway_whose_tunnel_died_on_the_edge(world: EdgeWorld, killed: str) -> None:
    async with serving(world):
        if killed == "gone":
            world.wireguard.vanish("bgplb-g0")
            world.wireguard.broken["bgplb-g0"] = KernelRefused(errno.ENODEV, "get on bgplb-g0")
            world.tell(("web", command("gw-b", 2)))
            await world.confirmed(command("gw-b", 2))
            assert world.kernel.routes_to(PREFIX) == ["bgplb-g1"]
            return
        world.wireguard.broken["bgplb-g0"] = KernelTimeout("get on bgplb-g0", 2.0)
        world.tell(("web", command("gw-b", 2)))
        await eventually(lambda: (r := world.report()) is not None and r.error, "nobody knows who may send: no success")
        report = world.report()
        assert report is not None
        assert not report.installed


async def test_a_tunnel_that_was_killed_comes_back(world: EdgeWorld) -> None:
    async with serving(world) as agent:
        world.wireguard.vanish("bgplb-g0")
        await agent._reconcile()
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]
        assert world.senders(PREFIX) == {"gw-a"}


async def test_one_port_that_is_taken_leaves_the_other_tunnels_in_use(tmp_path: Path) -> None:
    world = EdgeWorld(tmp_path, taken_ports=(51821,))
    async with serving(world):
        world.tell(("mail", command("gw-b", 2, MAIL)))
        await eventually(lambda: any("51821" in p for p in world.seen().problems), "the problem is told")
        assert set(world.seen().gateways) == {"gw-a"}
        await eventually(lambda: (r := world.report("mail")) is not None and "gw-b" in r.error, "no tunnel to gw-b")
    lines = [fields for event, fields in world.said if event == "problem" and "51821" in str(fields)]
    assert len(lines) == 1, "said once, not at each try"


async def test_an_interface_of_our_name_that_is_not_ours(world: EdgeWorld) -> None:
    stranger = Link("bgplb-g1", "dummy", 1500, "somebody's")
    world.kernel.add(links=[stranger])
    async with serving(world):
        await eventually(lambda: any("not ours" in p for p in world.seen().problems), "the problem is told")
        assert stranger in world.kernel.state.links
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]


async def test_trouble_with_one_tunnel_sweeps_nothing(world: EdgeWorld) -> None:
    """At a start nobody knows what the silent tunnel carries: its routes stay."""
    async with serving(world):
        pass
    mark = len(world.done)
    world.wireguard.broken["bgplb-g0"] = KernelTimeout("get on bgplb-g0", 2.0)
    async with world.running():
        await eventually(lambda: world.link.told and world.seen().problems, "the problem is told")
        gone = [op for _, op in world.since(mark, "kernel") if isinstance(op, DeleteRoute | DeleteLink)]
        assert gone == []
        assert world.kernel.routes_to(PREFIX) == ["bgplb-g0"]


async def test_without_bird_the_edge_steers_all_the_same(world: EdgeWorld) -> None:
    world.applier.failing = BirdUnreachable(Path("/run/bird.ctl"), "no such file")
    world.monitor.silent = world.applier.failing
    async with serving(world):
        assert any("bird" in problem for problem in world.seen().problems)
        assert world.seen().bird == "silent"
        assert {w.session for w in world.seen().gateways.values()} == {"unknown"}
        world.tell(("web", command("gw-b", 2)))
        await world.confirmed(command("gw-b", 2))


async def test_a_session_that_bird_gave_up_is_enabled_again(world: EdgeWorld) -> None:
    world.applier.given_up = {"gw-b"}
    async with serving(world):
        await eventually(lambda: not world.applier.given_up, "enabled")


def full(state: EdgeState) -> None:
    raise StateFileError("edge.json: can't be written: No space left on device; is the disk full?")


async def test_what_a_full_disk_does_not_take_is_neither_obeyed_nor_acknowledged(world: EdgeWorld) -> None:
    async with serving(world) as agent:
        mark = len(world.done)
        agent._kept.save = full
        world.tell(("web", command("gw-b", 2)))
        await eventually(lambda: (r := world.report()) is not None and "disk full" in r.error, "the reason")
        report = world.report()
        assert report is not None
        assert (report.epoch, report.owner) == (1, "gw-a")
        assert world.since(mark, "kernel", "wireguard") == []
        await eventually(lambda: any("disk full" in p for p in world.seen().problems), "the problem", 5.0)
        agent._kept.save = world._save
        report = await world.confirmed(command("gw-b", 2))
        assert report.error == ""
    async with world.running() as again:
        assert again._state.fence.pools["web"].command == command("gw-b", 2)


async def test_what_a_full_disk_does_not_take_and_may_be_told_again_is_written_later(world: EdgeWorld) -> None:
    async with serving(world) as agent:
        agent._kept.save = full
        world.tell(base=replace(base("edge", "edge-1", WEB, MAIL), mtu=1400))
        await eventually(lambda: any("disk full" in p for p in world.seen().problems), "the problem")
        assert agent._state.base.mtu == 1400
        agent._kept.save = world._save
        await eventually(lambda: not world.seen().problems, "no problem", 5.0)
    async with world.running() as again:
        assert again._state.base.mtu == 1400


async def test_a_record_that_can_not_be_read_is_reported_and_nothing_else_changes(world: EdgeWorld) -> None:
    async with serving(world) as agent:
        mark = len(world.done)
        agent.on_desired((replace(order("web", command("gw-b", 9), 300), value=b'{"schema": 99}'),))
        await agent._reconcile()
        assert any("schema" in problem for problem in world.seen().problems)
        assert world.since(mark) == []


async def test_a_failed_kernel_call_is_tried_again_until_it_holds(world: EdgeWorld) -> None:
    async with serving(world):
        world.kernel.failing = KernelRefused(errno.EBUSY, "replace route")
        world.tell(("web", command("gw-b", 2)))
        await eventually(lambda: (r := world.report()) is not None and r.error, "an error")
        world.kernel.failing = None
        report = await world.confirmed(command("gw-b", 2))
        assert report.error == ""
