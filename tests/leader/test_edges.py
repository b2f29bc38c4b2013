"""Groups of several edges through the leader's loop: numbers, and what becomes of an edge that comes or goes."""

from fsm.records import AgentBase, EdgePool, EdgeReport
from tests.leader.model import KEYS, WEB, Replica, World, group, other, settled

TWO = ("edge-1", "edge-2")


async def two_edges() -> tuple[World, Replica]:
    return await settled(group(edges=TWO), WEB, world=World(edges=TWO))


def addresses(world: World, role: str, name: str) -> dict[str, str]:
    """This agent's own tunnel address towards each other end."""
    base = world.read(KEYS.desired_base(role, name), AgentBase)
    return {t.name: t.gateway_ipv4 if role == "node" else t.edge_ipv4 for t in base.tunnels}


async def test_an_edge_keeps_its_number_when_others_come_and_go() -> None:
    world = World(edges=("edge-1", "edge-2", "edge-3"))
    _, leader = await settled(group(edges=TWO), WEB, world=world)
    assert leader.known.groups()["group"].edge_numbers == {"edge-1": 0, "edge-2": 1}
    assert addresses(world, "edge", "edge-2") == {"gw-a": "10.77.0.2", "gw-b": "10.77.1.2"}
    assert addresses(world, "node", "gw-b") == {"edge-1": "10.77.1.1", "edge-2": "10.77.1.3"}
    leader.offer(group(edges=("edge-2",)), WEB)
    await world.round(leader, ticks=4)
    assert addresses(world, "edge", "edge-2") == {"gw-a": "10.77.0.2", "gw-b": "10.77.1.2"}, "as it was"
    assert KEYS.desired_base("edge", "edge-1") not in world.present(), "it was let go, and said that it went"
    assert world.read(KEYS.observed_base("edge", "edge-1"), EdgeReport).gateways == {}
    leader.offer(group(edges=("edge-3", "edge-2")), WEB)
    await world.round(leader, ticks=4)
    assert leader.known.groups()["group"].edge_numbers == {"edge-3": 0, "edge-2": 1}


async def test_both_edges_are_commanded_in_one_transaction_and_have_no_plan() -> None:
    world, leader = await two_edges()
    owner = world.machine().owner
    assert owner is not None and world.machine().plan == ()
    world.power_cut(owner)
    await world.round(leader, ticks=2)
    assert world.state() == ("ActiveHealthy", other(owner))
    keys = [KEYS.desired("edge", edge, "pool", "web") for edge in TWO]
    assert {world.read(key, EdgePool) for key in keys} == {EdgePool(WEB.addresses, other(owner), world.machine().epoch)}
    assert world.server.items[keys[0]].mod_revision == world.server.items[keys[1]].mod_revision
    assert {edge.points_at["web"] for edge in world.edges.values()} == {other(owner)}


async def test_that_edges_disagree_is_said_when_it_lasts() -> None:
    """In a power cut they do so until the last has noticed: a write at that moment would be in the move's way."""
    world, leader = await two_edges()
    owner = world.machine().owner
    assert owner is not None
    world.edges["edge-2"].cut_off.add(owner)
    await world.round(leader, ticks=1)
    before = world.server.items[KEYS.machine("pool", "web")].mod_revision
    world.clock.seconds += 0.4
    await world.round(leader, ticks=1)
    assert world.server.items[KEYS.machine("pool", "web")].mod_revision == before
    assert "PartialPath" not in {c.type for c in world.machine().conditions}
    world.clock.seconds += 0.2
    await world.round(leader, ticks=1)
    assert {"PartialPath"} <= {c.type for c in world.machine().conditions}
    assert world.state() == ("ActiveHealthy", owner)
    world.edges["edge-2"].cut_off.clear()
    await world.round(leader, ticks=1)
    assert "PartialPath" not in {c.type for c in world.machine().conditions}


async def test_an_edge_that_joins_takes_the_plan_away_and_is_told_the_pool() -> None:
    """From then on no edge may act on what it alone sees."""
    world = World(edges=TWO)
    _, leader = await settled(group(), WEB, world=world)
    command = world.read(KEYS.desired("edge", "edge-1", "pool", "web"), EdgePool)
    assert command.plan
    leader.offer(group(edges=TWO), WEB)
    await world.round(leader, ticks=4)
    told = [world.read(KEYS.desired("edge", edge, "pool", "web"), EdgePool) for edge in TWO]
    assert [t.plan for t in told] == [(), ()] and {t.owner for t in told} == {command.owner}
    assert world.machine().plan == () and world.state() == ("ActiveHealthy", command.owner)
    leader.offer(group(), WEB)
    await world.round(leader, ticks=4)
    assert world.read(KEYS.desired("edge", "edge-1", "pool", "web"), EdgePool).plan, "alone again"


async def test_a_deletion_waits_for_a_dead_edge_until_that_is_taken_out() -> None:
    world, leader = await two_edges()
    world.edges["edge-2"].reachable = False
    world.expire("edge", "edge-2")
    leader.offer(group(edges=TWO))
    await world.round(leader, ticks=40, step_s=0.5)
    assert world.state()[0] == "Terminating"
    leader.offer(group())
    await world.round(leader, ticks=4)
    assert "web" not in leader.known.machines


async def test_a_dead_edge_suspends_deadlines_until_it_is_taken_out() -> None:
    world, leader = await two_edges()
    owner = world.machine().owner
    assert owner is not None
    world.edges["edge-2"].reachable = False
    world.expire("edge", "edge-2")
    world.gateways[other(owner)].obedient = False
    world.ask("move", "web", other(owner))
    await world.round(leader, ticks=40, step_s=0.5)
    assert world.state() == ("Draining", owner)
    leader.offer(group(), WEB)
    await world.round(leader, ticks=4, step_s=0.5)
    assert world.state() == ("ActiveHealthy", owner), "given up after its deadline, nothing had moved"
