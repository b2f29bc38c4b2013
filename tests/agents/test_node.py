"""The node agent: answers on every gateway, announcements only by order, preconditions, and leaving."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from birdctl.apply import Applied
from birdctl.errors import BirdUnreachable
from birdctl.render import Announcements
from dataplane.diff import AddAddress, DeleteLink, DeleteRoute, DeleteRule
from dataplane.errors import DataplaneError
from dataplane.model import Link
from fsm.records import AgentBase
from orchestrator.agents import node as node_module
from orchestrator.agents import node_state as project
from orchestrator.agents.node_state import NodeState
from orchestrator.agents.statefile import StateFileError
from tests.agents.fakes import base, change, eventually
from tests.agents.node_world import BASE_KEY, NodeWorld, gateway, node_pool

SILENT = BirdUnreachable(Path("/run/bgplb/bird.ctl"), "no such file")


@pytest.fixture
def world(tmp_path: Path) -> NodeWorld:
    return NodeWorld(tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks come often."""
    monkeypatch.setattr(node_module, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(node_module, "RETRY_S", 0.02)


async def test_a_gateway_is_ready_with_everything_in_place(world: NodeWorld) -> None:
    async with gateway(world):
        state = world.kernel.state
        assert {(r.prefix, r.table, r.device, r.mtu_lock) for r in state.routes} == {
            ("0.0.0.0/0", 10077, "bgplb-e0", 1280)
        }
        assert {(r.priority, r.source, r.table) for r in state.rules} == {
            (10077, None, 10077),
            (10078, "192.0.2.0/26", 10077),
        }
        assert world.kernel.ruleset is not None
        assert state.sysctls["net.ipv4.ip_forward"] == "1"
        assert world.wireguard.allowed("bgplb-e0", "key-edge") == {"0.0.0.0/0"}
        report = world.report()
        assert report is not None
        assert (report.epoch, report.announcing, report.answers, report.error) == (1, True, True, "")


async def test_a_standby_prepares_answers_and_announces_nothing(world: NodeWorld) -> None:
    async with gateway(world, announce=False):
        assert any(rule.source == "192.0.2.0/26" for rule in world.kernel.state.rules)
        assert world.announced() == set()


async def test_nothing_is_announced_before_the_store_has_spoken(world: NodeWorld) -> None:
    async with gateway(world):
        pass
    anew = NodeWorld(world.path)  # a boot: kernel and tmpfs are empty, the disk is not
    async with anew.running(link=False):
        await eventually(lambda: anew.kernel.state.routes, "tunnel and answers are made from disk")
        await asyncio.sleep(0.1)
        assert anew.applier.announced is None


async def test_an_agents_restart_keeps_the_announcement_and_disturbs_nothing(world: NodeWorld) -> None:
    async with gateway(world):
        pass
    mark = len(world.done)
    async with world.running():
        await asyncio.sleep(0.1)
        assert world.announced() == {"web"}
        world.tell(("web", node_pool(True, 1)), base=base("node", "gw-a", ("192.0.2.0/26",)))
        await asyncio.sleep(0.1)
        assert world.announced() == {"web"}
        assert world.since(mark) == [], "not one operation on what is right"


async def test_a_lost_state_directory_does_not_tear_down_what_carries_traffic(world: NodeWorld) -> None:
    async with gateway(world):
        pass
    (world.path / "node.json").unlink()
    mark = len(world.done)
    async with world.running():
        await asyncio.sleep(0.1)
        assert world.since(mark) == [], "it knows nothing yet, so it tidies nothing"
        world.tell(("web", node_pool(True, 1)), base=base("node", "gw-a", ("192.0.2.0/26",)))
        await eventually(lambda: (r := world.seen()) is not None and r.ready, "ready")
        gone = [op for _, op in world.since(mark, "kernel") if isinstance(op, DeleteRoute | DeleteLink | DeleteRule)]
        assert gone == []
        assert world.since(mark, "wireguard") == [], "the living peer keeps its endpoint and its list"


async def test_a_full_disk_keeps_a_gateway_from_nothing_and_is_named(world: NodeWorld) -> None:
    """What it keeps there is only for a start without the store: the store tells it again."""

    def full(state: NodeState) -> None:
        raise StateFileError("node.json: can't be written: is the disk full?")

    mail = node_pool(True, 2, ("192.0.2.64/26",))
    async with gateway(world, announce=False) as agent:
        agent._kept.save = full
        world.tell(("mail", mail))
        await eventually(lambda: world.announced() == {"mail"}, "the order")
        await eventually(lambda: (r := world.seen()) is not None and any("disk full" in p for p in r.problems), "it")
        agent._kept.save = world._save
        await eventually(lambda: (r := world.seen()) is not None and not r.problems, "no problem", 5.0)
    async with world.running() as again:
        assert again._state.pools["mail"] == mail


async def test_the_endpoint_of_a_living_peer_is_written_only_when_the_wish_changes(world: NodeWorld) -> None:
    async with gateway(world):
        mark = len(world.done)
        told = base("node", "gw-a", ("192.0.2.0/26",), keepalive_s=20)
        world.tell(base=told)
        await eventually(lambda: world.since(mark, "wireguard"), "the keepalive")
        update = world.since(mark, "wireguard")[0][1][1][0]
        assert (update.endpoint, update.keepalive_s, update.replace_allowed_ips) == (None, 20, None)
        mark = len(world.done)
        moved = replace(told, tunnels=tuple(replace(t, endpoint="203.0.113.9") for t in told.tunnels))
        world.tell(base=moved)
        await eventually(lambda: world.since(mark, "wireguard"), "the endpoint")
        assert world.since(mark, "wireguard")[0][1][1][0].endpoint == "203.0.113.9:51820"


async def test_an_order_to_announce_and_to_stop(world: NodeWorld) -> None:
    async with gateway(world, announce=False):
        world.tell(("web", node_pool(True, 2)))
        await eventually(lambda: (r := world.report()) is not None and r.epoch == 2 and r.announcing, "announced")
        world.tell(("web", node_pool(False, 3)))
        await eventually(lambda: (r := world.report()) is not None and r.epoch == 3 and not r.announcing, "withdrawn")


async def test_a_pool_that_is_gone_takes_its_rule_and_report_with_it(world: NodeWorld) -> None:
    async with gateway(world):
        world.tell(("web", None))
        await eventually(lambda: not any(r.source for r in world.kernel.state.rules), "the rule goes")
        assert world.announced() == set()
        assert world.report() is None


async def test_a_pool_that_goes_while_bird_is_told_something_leaves_no_report(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(world):
        world.tell(("mail", node_pool(False, 2, ("192.0.2.64/26",))))
        await eventually(lambda: world.report("mail"), "the report")
        announce, begun = world.applier.announce, asyncio.Event()

        async def slow(wanted: Announcements) -> Applied:
            begun.set()
            await asyncio.sleep(0.05)
            return await announce(wanted)

        monkeypatch.setattr(world.applier, "announce", slow)
        world.tell(("web", None))
        await begun.wait()
        world.tell(("mail", None))
        await asyncio.sleep(0.2)
        assert (world.report("web"), world.report("mail")) == (None, None)


async def test_a_gateway_that_is_let_go_keeps_nothing(world: NodeWorld) -> None:
    async with gateway(world) as agent:
        world.tell(("web", None))
        agent.on_desired((change(BASE_KEY, AgentBase(), 300),))
        await eventually(lambda: not any(link.name == "bgplb-e0" for link in world.kernel.state.links), "the tunnel")
        assert world.kernel.state.rules == frozenset()
        await eventually(lambda: world.kernel.ruleset is None, "the nft table")


async def test_a_base_that_is_gone_from_the_store_tears_nothing_down(world: NodeWorld) -> None:
    async with gateway(world) as agent:
        mark = len(world.done)
        agent.on_desired((change(BASE_KEY, None, 300),))
        turns = agent.turns
        await eventually(lambda: agent.turns > turns + 1, "another reconcile")
        assert any(link.name == "bgplb-e0" for link in world.kernel.state.links)
        assert world.kernel.ruleset is not None
        assert world.since(mark) == []
        assert "no longer told of a base; the tunnels stay as they are" in [event for event, _ in world.said]


async def test_forwarding_that_is_switched_off_is_repaired(world: NodeWorld) -> None:
    async with gateway(world):
        world.sysctl("net.ipv4.ip_forward", "0")
        await eventually(lambda: world.kernel.state.sysctls["net.ipv4.ip_forward"] == "1", "repaired")


async def test_a_strict_reverse_path_filter_on_the_lan_is_named_and_left_to_its_owner(world: NodeWorld) -> None:
    async with gateway(world):
        world.sysctl("net.ipv4.conf.lan0.rp_filter", "1")
        world.sysctl("net.ipv4.conf.all.src_valid_mark", "1")
        await eventually(lambda: "lan-reverse-path" in world.failed(), "noticed")
        assert "net.ipv4.conf.lan0.rp_filter = 2" in world.failed()["lan-reverse-path"]
        report = world.seen()
        assert report is not None
        assert not report.ready
        assert world.kernel.state.sysctls["net.ipv4.conf.lan0.rp_filter"] == "1", "not ours to change"


@pytest.mark.parametrize("what", ["routes", "rules"])
async def test_what_another_hand_takes_away_is_put_back(world: NodeWorld, what: str) -> None:
    async with gateway(world):
        left = {"routes": world.kernel.state.routes, "rules": world.kernel.state.rules, what: frozenset()}
        world.kernel.kernel.state = replace(world.kernel.state, routes=left["routes"], rules=left["rules"])  # type: ignore[arg-type]
        await eventually(lambda: getattr(world.kernel.state, what), "put back")
        await eventually(lambda: world.failed() == {}, "ready again")


async def test_what_can_not_be_put_back_makes_it_unready(world: NodeWorld) -> None:
    async with gateway(world):
        world.kernel.failing = DataplaneError("the kernel is in a bad mood")
        world.kernel.kernel.state = replace(world.kernel.state, routes=frozenset(), rules=frozenset())
        await eventually(lambda: {"answer-routes", "answer-rules"} <= set(world.failed()), "noticed")
        report = world.seen()
        assert report is not None
        assert any("bad mood" in problem for problem in report.problems)
        await eventually(lambda: (r := world.report()) is not None and not r.answers, "the pool's report says so too")
        world.kernel.failing = None
        await eventually(lambda: world.failed() == {}, "mended")


async def test_rules_of_nft_that_another_hand_removed_are_put_back(world: NodeWorld) -> None:
    async with gateway(world):
        world.kernel.ruleset = None
        await eventually(lambda: world.kernel.ruleset is not None, "put back")


async def test_a_lan_address_that_is_nowhere(world: NodeWorld) -> None:
    world.kernel.kernel.state = replace(world.kernel.state, addresses=frozenset())
    async with world.running():
        world.tell(base=base("node", "gw-a", ("192.0.2.0/26",)))
        await eventually(lambda: "lan-address" in world.failed(), "noticed")
        assert world.failed()["lan-address"] == "no interface has 10.10.0.11"


async def test_before_it_was_told_of_a_tunnel_it_is_not_ready(world: NodeWorld) -> None:
    async with world.running():
        await eventually(lambda: "tunnel-known" in world.failed(), "noticed")
        assert world.kernel.state.rules == frozenset()


async def test_without_bird_it_is_not_ready_and_says_so_and_catches_up(world: NodeWorld) -> None:
    async with gateway(world):
        world.applier.failing = SILENT
        await eventually(lambda: "bird" in world.failed(), "noticed")
        world.tell(("web", node_pool(False, 2)))
        await eventually(lambda: (r := world.report()) is not None and r.error, "the pool's report says so")
        world.applier.failing = None
        await eventually(lambda: (r := world.report()) is not None and r.epoch == 2 and not r.error, "caught up")
        assert world.announced() == set()
    assert len([f for e, f in world.said if e == "problem" and f["where"] == "bird"]) == 1, "said once"


async def checked(world: NodeWorld, times: int) -> None:
    """Wait until the machine was looked at so often."""
    begun = world.agent.turns
    await eventually(lambda: world.agent.turns >= begun + 2 * times, f"{times} checks")


async def test_bird_is_not_asked_for_everything_while_nothing_disturbs_it(world: NodeWorld) -> None:
    async with gateway(world):
        await checked(world, 2)
        before = world.applier.asked
        await checked(world, 5)
        assert world.applier.asked == before
        world.applier.started += 1
        await eventually(lambda: world.applier.asked > before, "BIRD was configured by another hand: read back")


async def test_bird_is_asked_for_everything_at_each_period(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "READ_BACK_EVERY_S", 0.1)
    async with gateway(world):
        before = world.applier.asked
        await eventually(lambda: world.applier.asked > before + 2, "read back again and again")


async def test_a_machine_that_is_as_it_should_be_is_read_once_a_check(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(world) as agent:
        await checked(world, 2)
        done: Counter[str] = Counter()
        for owner, name in ((agent._kernel.netlink, "read"), (agent._kernel.nft, "read"), (agent, "_check")):
            _count(done, owner, name, monkeypatch)
        await checked(world, 5)
        assert done["_check"] >= 4
        assert done["read"] <= 2 * (done["_check"] + 1), "once the kernel's tables, and once nft's"


def _count(done: Counter[str], owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(owner, name)

    async def counted(*arguments: Any, **named: Any) -> Any:
        done[name] += 1
        return await real(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)


async def test_what_a_state_asks_of_the_kernel_is_worked_out_once(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(world):
        worked: list[str] = []
        real = project.kernel_state

        def counted(*arguments: Any) -> Any:
            worked.append("state")
            return real(*arguments)

        monkeypatch.setattr(project, "kernel_state", counted)
        await checked(world, 4)
        assert worked == []
        world.tell(("mail", node_pool(False, 2, ("192.0.2.64/26",))))
        await eventually(lambda: any(r.source == "192.0.2.64/26" for r in world.kernel.state.rules), "its rule")
        assert len(worked) == 1


async def test_an_interface_of_our_name_that_is_not_ours(world: NodeWorld) -> None:
    stranger = Link("bgplb-e0", "dummy", 1500, "somebody's")
    world.kernel.add(links=[stranger])
    async with world.running():
        world.tell(base=base("node", "gw-a", ("192.0.2.0/26",)))
        await eventually(lambda: (r := world.seen()) is not None and r.problems, "noticed")
        report = world.seen()
        assert report is not None
        assert "bgplb-e0" in report.problems[0]
        assert "not ours" in report.problems[0]
        assert not report.ready
        assert stranger in world.kernel.state.links
        assert not [op for _, op in world.since(0, "kernel") if isinstance(op, AddAddress)]


async def test_a_key_file_that_others_may_read_makes_it_unready(world: NodeWorld) -> None:
    async with gateway(world):
        world.config.wireguard.private_key_file.chmod(0o644)
        await eventually(lambda: (r := world.seen()) is not None and r.problems, "noticed")
        report = world.seen()
        assert report is not None
        assert "0600" in report.problems[0]
        assert world.announced() == {"web"}, "the last good state stays in force"


async def test_the_lan_is_reported_as_soon_as_it_is_there_or_gone(world: NodeWorld) -> None:
    """Within the same turn of the loop: a gateway that reaches nobody must not wait for its next report."""
    async with gateway(world):
        assert (world.reach.watched, world.reach.every_ms) == (["10.10.0.1"], 50)
        for answering in ((), ("10.10.0.1",), ()):
            world.reach.now(*answering)
            report = world.seen()
            assert report is not None
            assert (report.lan_targets, report.lan_reached, report.lan_answering) == (1, len(answering), answering)
        assert world.reach.asking
    assert not world.reach.asking, "an agent that ended asks nobody any more"


async def test_an_agent_that_has_just_started_does_not_seem_to_have_lost_its_lan(world: NodeWorld) -> None:
    """Nobody had time to answer: with a neighbour that reaches others, it would lose its pools for being started."""
    world.reach.asked_enough = False
    async with gateway(world):
        report = world.seen()
        assert report is not None and (report.lan_targets, report.lan_reached) == (0, 0)
        world.reach.asked_enough = True
        world.reach.now()
        report = world.seen()
        assert report is not None and (report.lan_targets, report.lan_reached) == (1, 0)


async def test_leaving_waits_until_the_pool_is_somebody_elses_and_bird_has_let_it_go(world: NodeWorld) -> None:
    async with gateway(world) as agent:
        leaving = asyncio.create_task(agent.leave())
        await eventually(lambda: (r := world.seen()) is not None and r.leaving, "it says so")
        assert not leaving.done()
        world.applier.failing = SILENT
        world.tell(("web", node_pool(False, 2)))
        await asyncio.sleep(0.1)
        assert not leaving.done(), "BIRD announces it still"
        world.applier.failing = None
        await asyncio.wait_for(leaving, 2)
        assert world.announced() == set()


async def test_leaving_ends_also_when_nobody_takes_over(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "DRAIN_WITHIN_S", 0.1)
    async with gateway(world) as agent:
        await asyncio.wait_for(agent.leave(), 2)
        assert world.announced() == {"web"}, "nothing is withdrawn without a target"
    assert ("left without a handover", {"pools": ["web"]}) in world.said


async def test_a_standby_leaves_at_once(world: NodeWorld) -> None:
    async with gateway(world, announce=False) as agent:
        await asyncio.wait_for(agent.leave(), 1)


async def test_a_record_that_can_not_be_read_is_reported_until_it_can(world: NodeWorld) -> None:
    async with gateway(world) as agent:
        agent.on_desired((replace(change(BASE_KEY, AgentBase(), 300), value=b'{"schema": 99}'),))
        await eventually(lambda: (r := world.seen()) is not None and "schema" in str(r.problems), "noticed")
        assert world.announced() == {"web"}
        world.tell(base=base("node", "gw-a", ("192.0.2.0/26",)))
        await eventually(lambda: (r := world.seen()) is not None and not r.problems, "mended")
