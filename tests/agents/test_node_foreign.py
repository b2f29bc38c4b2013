"""What of other hands a gateway notices: rules in its way, and IPVS switched another way than answers need."""

from pathlib import Path

import pytest

from dataplane.errors import KernelTimeout
from dataplane.model import Rule
from dataplane.nft_foreign import ForeignRule, Ours
from dataplane.sysctl import IPVS_REROUTE
from orchestrator.agents import foreign
from orchestrator.agents.foreign import LOOK_EVERY_S, ForeignRules
from tests.agents.fakes import FakeNft, eventually, linux
from tests.agents.node_world import NodeWorld, gateway

OLD = ForeignRule("inet", "old", "pre", 4, "copies the connection mark to requests too")
OURS = Ours(frozenset({0x0100_0000}), 0xFF00_0000, frozenset({"bgplb-e0"}))


@pytest.fixture
def world(tmp_path: Path) -> NodeWorld:
    return NodeWorld(tmp_path)


def nft_of(world: NodeWorld) -> FakeNft:
    assert isinstance(world.kernel.nft, FakeNft)
    return world.kernel.nft


def is_ready(world: NodeWorld) -> bool:
    report = world.seen()
    return report is not None and report.ready


async def test_a_foreign_nft_rule_is_named_and_left_until_it_is_gone(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "LOOK_EVERY_S", 0.0)
    async with gateway(world):
        nft_of(world).foreign.append(OLD)
        await eventually(lambda: "foreign-marks" in world.failed(), "the precondition failing")
        assert "nft delete rule inet old pre handle 4" in world.failed()["foreign-marks"]
        assert not is_ready(world)
        assert nft_of(world).asked[-1] == OURS
        nft_of(world).foreign.clear()
        await eventually(lambda: is_ready(world), "ready again")


async def test_a_foreign_policy_rule_on_our_mark_is_named_and_left(world: NodeWorld) -> None:
    rule = Rule("ipv4", 900, 100, fwmark=0x0100_0000, fwmask=0xFF00_0000, protocol=0)
    async with gateway(world):
        world.kernel.add(rules=[rule])
        await eventually(lambda: "foreign-marks" in world.failed(), "the precondition failing")
        assert "ip rule del priority 900" in world.failed()["foreign-marks"]
        assert rule in world.kernel.state.rules


async def test_all_rules_are_listed_seldom_but_found_ones_are_looked_for_each_time() -> None:
    class Clock:
        now_s = 100.0

        def now(self) -> float:
            return self.now_s

        async def sleep(self, seconds: float) -> None:
            raise AssertionError("nobody sleeps here")

    clock, nft = Clock(), FakeNft(linux([]))
    rules = ForeignRules(nft, clock)  # type: ignore[arg-type]
    assert await rules.look(OURS) == ()
    nft.foreign.append(OLD)
    assert await rules.look(OURS) == ()
    clock.now_s += LOOK_EVERY_S
    assert await rules.look(OURS) == (OLD,)
    nft.foreign.clear()
    assert await rules.look(OURS) == ()
    assert len(nft.asked) == 3
    await rules.look(Ours(OURS.marks, OURS.mask, frozenset({"bgplb-e0", "bgplb-e1"})))
    assert len(nft.asked) == 4, "for what is new it is looked at once"
    nft.foreign.append(OLD)
    clock.now_s += LOOK_EVERY_S
    assert await rules.look(OURS) == (OLD,)
    nft.failing = KernelTimeout("nft", 5.0)
    assert await rules.look(OURS) == (OLD,), "a listing that fails is no all-clear"


async def test_ipvs_is_made_to_look_for_the_way_of_its_answers(world: NodeWorld) -> None:
    world.sysctl(IPVS_REROUTE, "0")
    async with gateway(world):
        assert world.kernel.state.sysctls[IPVS_REROUTE] == "1"
        condition = world.precondition("ipvs-answers")
        assert condition is not None and condition.ok
        world.sysctl(IPVS_REROUTE, "0")
        await eventually(lambda: world.kernel.state.sysctls[IPVS_REROUTE] == "1", "repaired")


async def test_a_kernel_without_ipvs_is_asked_for_nothing(world: NodeWorld) -> None:
    async with gateway(world):
        assert world.precondition("ipvs-answers") is None
        assert IPVS_REROUTE not in world.kernel.state.sysctls
