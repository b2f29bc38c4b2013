"""Groups of several edges through the leader's loop: numbers, and what becomes of an edge that comes or goes."""

from fsm.records import AgentBase
from tests.leader.model import KEYS, WEB, World, group, settled

TWO = ("edge-1", "edge-2")


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
    assert addresses(world, "edge", "edge-1") == {}, "it was let go"
    leader.offer(group(edges=("edge-3", "edge-2")), WEB)
    await world.round(leader, ticks=4)
    assert leader.known.groups()["group"].edge_numbers == {"edge-3": 0, "edge-2": 1}
