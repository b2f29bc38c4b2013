"""Edges that cannot be asked, and groups of several: who has a say, who is told, what is said of it."""

from fsm.records import GatewayWitness
from fsm.types import PoolState
from tests.fsm.world import ModelWorld, settled

S = PoolState


def conditions(world: ModelWorld) -> set[str]:
    return {condition.type for condition in world.machine.conditions}


# ---- unreachable edge --------------------------------------------------------------------------------------------


def test_unreachable_edge_suspends_the_deadline() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    world.edges["edge-1"].stuck = True
    world.power_cut("gw-a")
    world.think()
    world.edge_lost("edge-2")
    mark = len(world.history)
    world.run(20)
    assert world.states(mark) == [] and world.state == S.FAILURE_DETECTED and "EdgeUnreachable" in conditions(world)
    world.edge_back("edge-2")
    world.think()
    assert world.state == S.FAILURE_DETECTED, "it restarts on the edge's return"
    world.edges["edge-1"].stuck = False
    world.run(2)
    assert world.state == S.ACTIVE_HEALTHY and world.edges["edge-2"].points_at == "gw-b"
    assert "EdgeUnreachable" not in conditions(world)


def test_lost_edge_alone_moves_nothing() -> None:
    world = settled()
    world.edge_lost("edge-1")
    mark = len(world.history)
    world.run(5)
    assert world.states(mark) == [] and "EdgeUnreachable" in conditions(world)


def test_a_fresh_edge_is_moved_without_the_lost_one() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    world.edge_lost("edge-2")
    world.run(2)
    world.power_cut("gw-a")
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and world.edges["edge-1"].points_at == "gw-b"
    assert world.edges["edge-2"].points_at == "gw-a"
    world.edge_back("edge-2")
    world.run(1)
    assert world.edges["edge-2"].points_at == "gw-b"


def test_down_at_some_edges_is_partial_and_moves_nothing() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    world.link_cut("edge-2", "gw-a")
    mark = len(world.history)
    world.run(10)
    assert world.states(mark) == [] and "PartialPath" in conditions(world)
    message = next(c.message for c in world.machine.conditions if c.type == "PartialPath")
    assert "edge-2" in message and "edge-1" not in message
    world.link_heal("edge-2", "gw-a")
    world.run(4)
    assert world.states(mark) == [] and "PartialPath" not in conditions(world)


def test_down_at_every_edge_is_a_move_whatever_it_was_before() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    world.link_cut("edge-2", "gw-a")
    world.run(2)
    world.link_cut("edge-1", "gw-a")
    world.run(1)
    assert world.machine.owner == "gw-b" and {e.points_at for e in world.edges.values()} == {"gw-b"}


def test_an_edge_that_no_gateway_reaches_holds_up_no_failover() -> None:
    """Its uplink to all of them is gone while its agent lives: it has no say, and is told all the same."""
    world = settled(edges=("edge-1", "edge-2"))
    for gateway in world.gateways:
        world.link_cut("edge-2", gateway)
    world.run(2)
    assert world.state == S.ACTIVE_HEALTHY and "PartialPath" in conditions(world)
    assert "NoStandby" not in conditions(world), "edge-1 reaches it"
    world.power_cut("gw-a")
    world.run(5)
    assert world.state == S.ACTIVE_HEALTHY and {e.points_at for e in world.edges.values()} == {"gw-b"}
    assert {"PartialPath", "AdvertisementPending"} <= conditions(world)


def test_a_standby_that_one_edge_reaches_is_better_than_none() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    world.link_cut("edge-2", "gw-b")
    world.run(2)
    assert "NoStandby" in conditions(world), "while the owner is reached by both, gw-b is no match for it"
    world.power_cut("gw-a")
    world.run(5)
    assert world.machine.owner == "gw-b" and world.edges["edge-1"].points_at == "gw-b"


def test_an_edge_that_only_begins_to_look_has_a_say_and_says_nothing() -> None:
    """Its agent was started anew: the owner may be well there, so the other edge alone decides nothing."""
    world = settled(edges=("edge-1", "edge-2"))
    world.link_cut("edge-2", "gw-a")
    world.run(2)
    world.edges["edge-1"].witnesses = {name: GatewayWitness() for name in world.gateways}
    world.think()
    assert world.state == S.ACTIVE_HEALTHY
    world.edges["edge-1"].witnesses = {}
    world.think()
    assert world.machine.target == "gw-b", "one without a tunnel has none"


def test_no_edge_reached_at_all_is_nobody_to_move_to() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    for edge in world.edges:
        for gateway in world.gateways:
            world.link_cut(edge, gateway)
    world.run(2)
    assert world.state == S.STRANDED and {e.points_at for e in world.edges.values()} == {"gw-a"}


def test_a_drain_makes_before_it_breaks_at_each_edge() -> None:
    """No edge is told of the target before that is prepared, and the old owner announces until all have switched."""
    world = settled(edges=("edge-1", "edge-2"))
    world.drain("gw-a")
    world.think()
    assert world.state == S.DRAINING and {e.points_at for e in world.edges.values()} == {"gw-a"}
    world.obey("gw-b")
    world.think()
    world.obey("edge-1")
    world.think()
    assert [e.points_at for e in world.edges.values()] == ["gw-b", "gw-a"] and world.state == S.DRAINING
    assert world.gateways["gw-a"].announcing, "edge-2 still sends to it"
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and {e.points_at for e in world.edges.values()} == {"gw-b"}
    assert not world.gateways["gw-a"].announcing
