"""A plan is carried out at any moment while an order is on its way: every interleaving ends right."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

import pytest

from fsm.events import Event, PoolEvent
from fsm.types import PoolState
from tests.fsm.plan_accounts import untold_plans
from tests.fsm.world import ModelWorld, settled

S, E = PoolState, PoolEvent
Turn = Callable[[ModelWorld], object]
PREFIXES = ("192.0.2.0/26", "192.0.2.64/26")


def drain(world: ModelWorld) -> None:
    world.drain("gw-a")


def drain_target(world: ModelWorld) -> None:
    world.drain("gw-b")


def hold(world: ModelWorld) -> None:
    world.hold()


def delete(world: ModelWorld) -> None:
    world.delete()


def addresses(world: ModelWorld) -> None:
    world.spec = replace(world.spec, addresses=PREFIXES)


def become_empty(world: ModelWorld) -> None:
    if world.state == S.ACTIVE_HEALTHY:
        world.think(Event(E.BECAME_EMPTY, "no address in use"))


def move_to_the_third(world: ModelWorld) -> None:
    if world.state == S.ACTIVE_HEALTHY and world.machine.owner != "gw-c":
        world.think(Event(E.MOVE_WANTED, "move by operator", target="gw-c"))


def no_order(_: ModelWorld) -> None:
    pass


ORDERS = (drain, drain_target, hold, delete, addresses, become_empty, move_to_the_third, no_order)


def think(world: ModelWorld) -> None:
    if not world.forgotten:
        world.think()


def power_cut(world: ModelWorld) -> None:
    """The owner dies, the edge acts at once if it may, and its report is under way for a while."""
    world.edges["edge-1"].late = True
    world.power_cut("gw-a")
    world.act()


def short_cut(world: ModelWorld) -> None:
    """The owner was gone for less than the leader's attention."""
    power_cut(world)
    world.power_on("gw-a")


def second_cut(world: ModelWorld) -> None:
    """And the plan's target right after."""
    power_cut(world)
    world.power_cut("gw-b")
    world.act()


def leader_dies(world: ModelWorld) -> None:
    """Another one reads what the store holds."""
    world.another_leads()


def hear(world: ModelWorld) -> None:
    world.hear()


FAULTS = (power_cut, short_cut, second_cut)


def turns(order: Turn) -> list[Turn]:
    """The order, the leader's look, the edge's obedience, and so on."""
    return [order, think, lambda w: w.obey("edge-1"), think, lambda w: w.obey()]


def interleavings(order: Turn, fault: Turn) -> list[list[Turn]]:
    """The fault at each point, its report at each point from there on, and a new leader at each point or never."""
    base = turns(order)
    found: list[list[Turn]] = []
    for at in range(len(base) + 1):
        faulted = [*base[:at], fault, *base[at:]]
        for heard in range(at + 1, len(faulted) + 1):
            whole = [*faulted[:heard], hear, *faulted[heard:]]
            found.append(whole)
            found += [[*whole[:n], leader_dies, *whole[n:]] for n in range(at, len(whole) + 1, 2)]
    return found


def ends_right(world: ModelWorld, order: Turn) -> None:
    """S1, S2 held all along, every pool came to rest (L1), and the record ends with the edge's truth."""
    assert world.violations() == []
    edge = world.edges["edge-1"]
    if order is delete:
        assert world.forgotten and edge.points_at is None
        return
    record, report = world.machine, edge.report
    resting = {S.HELD} if order is hold else {S.ACTIVE_HEALTHY}
    resting |= {S.IDLE} if order is become_empty else set()
    assert record.state in resting, record
    assert edge.points_at == record.owner and report is not None and report.executed_plan is None
    assert (report.epoch, report.owner) == (record.epoch, record.owner)
    if order is addresses:
        assert record.addresses == PREFIXES
    dead = {name for name, gateway in world.gateways.items() if not gateway.powered}
    if order is not hold:
        assert record.owner not in dead
        assert record.owner not in world.drains or len(dead) == 2
    elif edge.executed:
        assert record.owner != "gw-a", "what the edge did before the hold arrived stays"
    if order is not hold and not dead:
        assert record.plan and report.armed_plan == record.plan[0].epoch
    adopted = [entry.epoch for entry in world.history if entry.event == E.PLAN_EXECUTED]
    assert len(adopted) == len(set(adopted)) and set(adopted) <= set(edge.executed)
    assert untold_plans(world) == []


def merges(*lanes: Sequence[Turn]) -> Iterator[list[Turn]]:
    """Every way in which these can happen beside each other, each in its own order."""
    if not any(lanes):
        yield []
    for number, lane in enumerate(lanes):
        if lane:
            rest = [other if n != number else lane[1:] for n, other in enumerate(lanes)]
            yield from ([lane[0], *others] for others in merges(*rest))


START = settled(gateways=("gw-a", "gw-b", "gw-c"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o.__name__)
def test_every_interleaving_ends_right(order: Turn, fault: Turn) -> None:
    executed = 0
    for number, whole in enumerate(interleavings(order, fault)):
        world = deepcopy(START)
        for turn in whole:
            turn(world)
            assert world.violations() == [], (number, world.history)
        if not world.forgotten:
            world.run(15, step_s=1.0)
        ends_right(world, order)
        executed += bool(world.edges["edge-1"].executed)
    assert executed >= 10, "the sweep has to meet plans that were carried out"


def cut(name: str) -> Turn:
    return lambda world: world.power_cut(name)


def act(world: ModelWorld) -> None:
    world.act()


def late(world: ModelWorld) -> None:
    world.edges["edge-1"].late = True


def obey_edge(world: ModelWorld) -> None:
    world.obey("edge-1")


def overdue(world: ModelWorld) -> None:
    """The leader looks after the deadline of whatever is under way."""
    world.tick(1.1)
    think(world)


LEADERS = {"target lost": [think, obey_edge, think, obey_edge], "deadline passed": [think, overdue, obey_edge]}


@pytest.mark.parametrize("leader", LEADERS.values(), ids=LEADERS)
def test_leader_and_edge_come_to_the_second_plan_at_the_same_time(leader: list[Turn]) -> None:
    """The owner dies, and then the first target: whoever of the two comes to the third gateway takes the same number.

    Each step of the leader, of the edge and of fate before, between and behind each of the others.
    """
    ways = met = 0
    for whole in merges([cut("gw-a"), cut("gw-b")], [act, act, hear], leader):
        world = deepcopy(START)
        late(world)
        by_chain = False
        for turn in whole:
            turn(world)
            by_chain |= world.machine.epoch == 2
        assert world.violations() == [], ([t.__name__ for t in whole], world.history)
        hear(world)
        world.run(3, step_s=1.0)
        ends_right(world, no_order)
        assert world.machine.owner == "gw-c"
        # A leader that saw both of them dead before it had moved anything does not come by way of the chain.
        assert not by_chain or world.machine.epoch == 3, world.history
        ways, met = ways + 1, met + (by_chain and world.edges["edge-1"].executed == [2, 3])
    assert ways >= 500 and met >= 10, (ways, met)
