"""What is left in the store of gateways and edges that nobody names any more."""

from dataclasses import replace
from typing import Any

from fsm.records import AgentBase, NodePoolReport
from tests.leader.model import KEYS, WEB, World, group, settled

RECONCILE: dict[str, Any] = {"ticks": 15, "step_s": 0.75}
"""Until everything was looked at once more; no heartbeat gets old meanwhile."""


def remembered(world: World, name: str) -> list[str]:
    """Keys about it that no lease takes away."""
    leased = (KEYS.agents_prefix, KEYS.heartbeats_prefix, KEYS.observed_prefix("node", name))
    keys = (key for key in world.present() if not key.startswith(leased))
    return [key for key in keys if name in key.replace(".", "/").split("/")]


async def test_a_gateway_that_left_and_says_so_leaves_no_key() -> None:
    world = World(("gw-a", "gw-b", "gw-c"))
    _, leader = await settled(group("gw-a", "gw-b", "gw-c"), WEB, world=world)
    world.ask("gateway-drain", "gw-c", reason="it goes")
    await world.round(leader, ticks=4)
    assert len(remembered(world, "gw-c")) == 4  # identity, drain, base and pool
    leader.offer(group("gw-a", "gw-b"), WEB)
    await world.round(leader, **RECONCILE)
    assert world.gateways["gw-c"].tunnels == 0
    identity = KEYS.spec("Identity", "node.gw-c")
    assert remembered(world, "gw-c") == [identity], "it lives, and may be named again"
    world.power_cut("gw-c")
    world.expire("node", "gw-c")
    await world.round(leader, ticks=2)
    assert remembered(world, "gw-c") == []
    assert remembered(world, "gw-a") != [], "and nobody else's keys went"


async def test_a_gateway_that_is_away_when_it_is_let_go_hears_of_it_on_its_return() -> None:
    world = World(("gw-a", "gw-b", "gw-c"))
    _, leader = await settled(group("gw-a", "gw-b", "gw-c"), WEB, world=world)
    assert world.gateways["gw-c"].tunnels == 1
    tunnels = world.gateways["gw-c"].tunnels
    world.power_cut("gw-c")
    world.expire("node", "gw-c")
    leader.offer(group("gw-a", "gw-b"), WEB)
    await world.round(leader, **RECONCILE)
    base = KEYS.desired_base("node", "gw-c")
    assert remembered(world, "gw-c") == [base]
    assert world.read(base, AgentBase) == AgentBase()
    world.power_on("gw-c")
    world.gateways["gw-c"].tunnels = tunnels  # from its disk
    await world.round(leader, **RECONCILE)
    assert world.gateways["gw-c"].tunnels == 0
    assert base not in world.present()


async def test_a_gateway_of_a_group_keeps_its_identity_while_it_is_dead() -> None:
    world, leader = await settled()
    world.ask("gateway-drain", "gw-b", reason="new disks")
    await world.round(leader, ticks=2)
    before = remembered(world, "gw-b")
    world.power_cut("gw-b")
    world.expire("node", "gw-b")
    await world.round(leader, **RECONCILE)
    assert remembered(world, "gw-b") == before


async def test_adding_gateways_and_new_leaders_move_nothing() -> None:
    """A pool stays where it is, whoever would be placed first now, and whoever decides."""
    world = World(("gw-a", "gw-b"))
    pools = [replace(WEB, name=f"pool-{n:02}", addresses=(f"192.0.2.{n}/32",)) for n in range(40)]
    _, leader = await settled(group("gw-a", "gw-b"), *pools, world=world)
    before = {pool.name: world.state(pool.name) for pool in pools}
    assert {owner for _, owner in before.values()} == {"gw-a", "gw-b"}
    for name in ("gw-c", "gw-d"):
        world.power_on(name)
    leader.offer(group("gw-a", "gw-b", "gw-c", "gw-d"), *pools)
    await world.round(leader, ticks=20)
    heir = world.leader("orchestrator-2")
    heir.offer(group("gw-d", "gw-c", "gw-b", "gw-a"), *pools)
    await world.round(heir, ticks=20)
    assert {pool.name: world.state(pool.name) for pool in pools} == before
    assert {world.machine(pool.name).standby for pool in pools} & {"gw-c", "gw-d"}, "they do stand by"


async def test_a_pool_is_deleted_while_its_gateway_is_dead() -> None:
    """What a dead gateway said last, that it announces, must not hold up a deletion; the edge has let go of it."""
    world, leader = await settled(group(), WEB)
    owner = world.machine().owner or ""
    for name in ("gw-a", "gw-b"):
        world.power_cut(name)
    assert world.read(KEYS.observed("node", owner, "pool", "web"), NodePoolReport).announcing
    leader.offer(group())
    await world.round(leader, ticks=6, step_s=0.5)
    assert world.edges["edge-1"].points_at["web"] is None
    assert [key for key in world.present() if "/web" in key and "/observed/" not in key] == []
