"""Plans: when they are armed, when they are revoked, and that one which an edge carried out is adopted exactly once."""

from dataclasses import replace

import pytest

from fsm.core import handle
from fsm.desired import EDGE
from fsm.evaluate import PLANS, next_event
from fsm.events import Event, PoolEvent
from fsm.invariants import epochs_have_one_owner
from fsm.pool_acts import TOLD, standing
from fsm.records import EdgePool, HistoryEntry, Plan
from fsm.types import PoolState
from tests.fsm.test_moves import UNPLANNED, conditions
from tests.fsm.world import POOL, ModelWorld, settled

S, E = PoolState, PoolEvent
THREE = ("gw-a", "gw-b", "gw-c")
FOUR = (*THREE, "gw-d")


def chain(world: ModelWorld) -> list[tuple[str, int, int]]:
    """The record's plans as (target, number, the number that it stands on)."""
    return [(plan.target, plan.epoch, plan.base) for plan in world.machine.plan]


def told(world: ModelWorld, edge: str = "edge-1") -> tuple[Plan, ...]:
    """The plans that the edge is told."""
    command = world.desired[EDGE, edge]
    assert isinstance(command, EdgePool)
    return command.plan


def entries(world: ModelWorld, name: PoolEvent) -> list[HistoryEntry]:
    return [entry for entry in world.history if entry.event == name]


def at_rest(world: ModelWorld) -> None:
    """Record and edge say the same, and nothing that must never happen has happened."""
    report = world.edges["edge-1"].report
    assert report is not None and report.executed_plan is None
    assert (report.epoch, report.owner) == (world.machine.epoch, world.machine.owner)
    assert world.edges["edge-1"].points_at == world.machine.owner
    assert world.violations() == []


# ---- arming ------------------------------------------------------------------------------------------------------


def test_a_ready_standby_is_armed_and_each_number_stands_on_the_one_before() -> None:
    world = settled(gateways=FOUR)
    assert chain(world) == [("gw-d", 2, 1), ("gw-b", 3, 2)] and len(world.machine.plan) == PLANS
    assert world.counter == 3, "reserved in the transaction that arms"
    assert told(world) == world.machine.plan
    report = world.edges["edge-1"].report
    assert report is not None and report.armed_plan == 2
    (entry,) = entries(world, E.PLAN_OUTDATED)
    assert (entry.from_state, entry.to_state, entry.epoch, entry.owner) == (S.ACTIVE_HEALTHY,) * 2 + (1, "gw-a")


def test_nothing_is_armed_without_a_ready_standby_and_then_at_once() -> None:
    world = ModelWorld()
    world.power_on("gw-b")
    world.run(1)
    assert world.state == S.ACTIVE_HEALTHY and chain(world) == [] and world.counter == 1
    world.run(2)
    assert chain(world) == [("gw-b", 2, 1)]


def test_armed_once_while_nothing_changes() -> None:
    world = settled(gateways=THREE)
    before = world.machine
    world.run(60, step_s=1.0)
    assert world.machine == before and world.counter == 3


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ("gw-d", [("gw-b", 4, 1), ("gw-c", 5, 4)]),
        ("gw-b", [("gw-d", 4, 1), ("gw-c", 5, 4)]),
        ("gw-c", [("gw-d", 2, 1), ("gw-b", 3, 2)]),
    ],
    ids=["the first", "the second", "one that is in no plan"],
)
def test_a_standby_that_is_lost_is_replaced_under_new_numbers(lost: str, left: list[tuple[str, int, int]]) -> None:
    world = settled(gateways=FOUR)
    world.power_cut(lost)
    world.run()
    assert chain(world) == left and told(world) == world.machine.plan
    assert world.machine.epoch == 1 and world.machine.owner == "gw-a"


def test_a_late_heartbeat_leaves_the_plan_in_place_and_an_expired_one_takes_it_away() -> None:
    world = settled()
    world.agent_kill("gw-b")
    world.run(1.5)
    assert not world.views()["gw-b"].ready and world.views()["gw-b"].usable
    assert chain(world) == [("gw-b", 2, 1)], "the edge looks for itself before it moves"
    world.run(5)
    assert chain(world) == []


def test_a_late_standby_is_not_put_into_a_plan() -> None:
    world = settled()
    world.drain("gw-b")
    world.run()
    world.agent_kill("gw-b")
    world.run(1.5)
    world.undrain("gw-b")
    world.run(0.25)
    assert world.views()["gw-b"].usable and chain(world) == []


def test_the_last_standby_lost_disarms() -> None:
    world = settled()
    world.drain("gw-b")
    world.run()
    report = world.edges["edge-1"].report
    assert chain(world) == [] and told(world) == () and report is not None and report.armed_plan is None
    world.undrain("gw-b")
    world.run()
    assert chain(world) == [("gw-b", 3, 1)], "a number that was revoked is not handed out again"


def test_a_pool_of_several_edges_has_no_plan() -> None:
    world = settled(edges=("edge-1", "edge-2"))
    world.run(5)
    assert chain(world) == [] and world.counter == 1


def test_a_second_edge_disarms_at_once_even_before_it_is_heard_of() -> None:
    """Each edge would act on what it sees alone."""
    world = settled(gateways=THREE)
    two = settled(gateways=THREE, edges=("edge-1", "edge-2"))
    world.group = two.group
    world.edges["edge-2"] = two.edges["edge-2"]
    world.edge_lost("edge-2")
    world.tick(10)
    world.think()
    assert told(world) == () and told(world, "edge-2") == ()
    world.edge_back("edge-2")
    world.run()
    assert chain(world) == []


@pytest.mark.parametrize("trouble", ["edge lost", "control trouble"])
def test_while_nobody_can_be_judged_the_plan_stays(trouble: str) -> None:
    world = settled(gateways=THREE)
    before = world.machine.plan
    world.agent_kill("gw-b")
    if trouble == "edge lost":
        world.edge_lost("edge-1")
    world.tick(10)
    view = replace(world.view(), control_trouble=trouble == "control trouble")
    assert next_event(world.machine, view) is None
    assert world.machine.plan == before


def test_idle_is_armed_and_moves_by_plan() -> None:
    world = settled()
    world.think(Event(E.BECAME_EMPTY, "no address in use"))
    world.run()
    assert world.state == S.IDLE and told(world) == (Plan("gw-b", 2, 1),)
    world.power_cut("gw-a")
    world.act()
    world.run()
    assert world.machine.owner == "gw-b" and not world.machine.announce
    at_rest(world)


def test_stranded_keeps_its_plan_and_the_edge_may_carry_it_out() -> None:
    """The leader finds nobody ready, since the standby's agent is silent; the edge sees that its packets pass."""
    world = settled()
    world.edge_lost("edge-1")
    world.agent_kill("gw-b")
    world.tick(5)
    world.power_cut("gw-a")
    world.edge_back("edge-1")
    world.think()
    assert world.state == S.STRANDED and told(world) == (Plan("gw-b", 2, 1),)
    world.act()
    world.run(1)
    assert world.edges["edge-1"].points_at == "gw-b" and world.machine.owner == "gw-b"
    assert [entry.epoch for entry in entries(world, E.PLAN_EXECUTED)] == [2]
    assert world.violations() == []


@pytest.mark.parametrize(
    ("epoch", "expected"), [(1, [2, 3]), (2, [3]), (3, []), (9, [])], ids=["both", "the second", "none", "another base"]
)
def test_a_chain_stands_on_its_base(epoch: int, expected: list[int]) -> None:
    plans = (Plan("gw-b", 2, 1), Plan("gw-c", 3, 2))
    assert [plan.epoch for plan in standing(plans, epoch)] == expected


def test_a_chain_with_a_gap_ends_there() -> None:
    assert standing((Plan("gw-b", 2, 1), Plan("gw-c", 5, 4)), 1) == (Plan("gw-b", 2, 1),)


# ---- the leader chooses what the plan says -----------------------------------------------------------------------


def test_the_leader_commits_the_plans_own_number() -> None:
    world = settled(gateways=THREE)
    world.power_cut("gw-a")
    step = world.think()
    assert (world.state, world.machine.epoch, world.machine.base_epoch) == (S.FAILURE_DETECTED, 2, 1)
    assert not any(type(effect).__name__ == "TakeEpoch" for effect in step.effects), "it was taken when arming"
    assert chain(world) == [("gw-c", 3, 2)], "the rest of the chain stands on it"
    world.run()
    assert world.counter == 3 and told(world) == world.machine.plan, "and is armed again without a new number"
    at_rest(world)


def test_another_target_takes_a_higher_number_than_all_plans() -> None:
    world = settled(gateways=THREE)
    world.drain("gw-b")
    world.power_cut("gw-a")
    world.think()
    assert (world.machine.target, world.machine.epoch, world.machine.plan) == ("gw-c", 4, ())


@pytest.mark.parametrize("order", ["drain", "delete", "addresses"])
def test_orders_take_a_number_above_the_plans(order: str) -> None:
    world = settled(gateways=THREE)
    if order == "drain":
        world.drain("gw-a")
    elif order == "delete":
        world.delete()
    else:
        world.spec = replace(world.spec, addresses=("192.0.2.0/26", "192.0.2.64/26"))
    world.think()
    assert world.machine.epoch == 4 and all(plan.epoch > 4 for plan in told(world))


def test_deletion_outbids_a_plan_that_the_record_has_forgotten_already() -> None:
    """Disarmed, and carried out by the edge before it heard of that: the deletion's number has to be above it."""
    world = settled()
    world.drain("gw-b")
    world.think()
    assert world.machine.plan == ()
    world.edges["edge-1"].late = True
    world.power_cut("gw-a")
    world.act()
    world.delete()
    world.think()
    world.hear()
    world.run(5)
    assert world.forgotten and world.edges["edge-1"].points_at is None and world.violations() == []


# ---- adoption ----------------------------------------------------------------------------------------------------


def test_adopted_under_its_own_number() -> None:
    world = settled(gateways=THREE)
    mark = len(world.history)
    world.power_cut("gw-a")
    world.act()
    world.run(2)
    first = world.history[mark]
    assert (first.event, first.to_state, first.epoch, first.target) == (E.PLAN_EXECUTED, S.FAILURE_DETECTED, 2, "gw-b")
    assert first.phases_ms == {"detect": 1.0}
    assert world.states(mark) == UNPLANNED
    assert (world.machine.owner, world.machine.epoch, world.counter) == ("gw-b", 2, 3), "no other number was taken"
    assert (world.machine.last_move["from"], world.machine.last_move["to"]) == ("gw-a", "gw-b")
    assert len(world.machine.moves_s) == 1, "it counts for the damping"
    at_rest(world)


def test_adopted_exactly_once_however_often_it_is_seen() -> None:
    world = settled()
    world.power_cut("gw-a")
    world.act()
    report = world.edges["edge-1"].report
    world.think()
    world.run(1)
    world.edges["edge-1"].report = report
    world.run(5)
    assert len(entries(world, E.PLAN_EXECUTED)) == 1
    assert epochs_have_one_owner({POOL: world.history}) == []


def test_two_plans_carried_out_before_the_leader_looks_are_one_adoption() -> None:
    world = settled(gateways=THREE)
    for name in ("gw-a", "gw-b"):
        world.power_cut(name)
        world.act()
    assert world.edges["edge-1"].executed == [2, 3]
    world.run(1)
    (adopted,) = entries(world, E.PLAN_EXECUTED)
    assert (adopted.epoch, adopted.target, world.machine.owner, world.machine.base_epoch) == (3, "gw-c", "gw-c", 1)
    at_rest(world)


@pytest.mark.parametrize("looked", [False, True], ids=["unheard", "confirmed"])
def test_the_second_plan_is_carried_out_while_the_first_is_adopted(looked: bool) -> None:
    """The leader's command for the first is under way; the edge is one number ahead of it and refuses it as old."""
    world = settled(gateways=THREE)
    world.edges["edge-1"].late = not looked
    world.power_cut("gw-a")
    if looked:
        world.act()
    world.think()
    assert world.machine.epoch == 2 and world.state == (S.PEER_UPDATED if looked else S.FAILURE_DETECTED)
    world.act()
    world.power_cut("gw-b")
    world.act()
    world.hear()
    world.run(1)
    assert (world.machine.owner, world.machine.epoch, world.state) == ("gw-c", 3, S.ACTIVE_HEALTHY)
    at_rest(world)


def test_a_plan_that_was_replaced_while_the_edge_carried_it_out_is_adopted() -> None:
    """Otherwise the edge would refuse every command of the old number, and nobody would ever come to a higher one."""
    world = settled(gateways=THREE)
    world.drain("gw-b")
    world.think()
    assert chain(world) == [("gw-c", 4, 1)], "the edge has not heard of it"
    world.edges["edge-1"].late = True
    world.power_cut("gw-a")
    world.act()
    world.power_on("gw-a")
    world.run(5)
    assert world.machine.owner == "gw-a", "well again before anybody but the edge saw it fall"
    world.hear()
    world.run(5)
    assert [(e.epoch, e.target) for e in entries(world, E.PLAN_EXECUTED)] == [(2, "gw-b")]
    assert world.machine.owner not in (None, "gw-b"), "drained: it moves on, gently"
    at_rest(world)


@pytest.mark.parametrize(
    ("carried_out", "told_of"),
    [
        ((Plan("gw-b", 8, 6),), 8),
        ((Plan("gw-b", 8, 6), Plan("gw-c", 9, 7)), 8),
        ((Plan("gw-b", 8, 6), Plan("gw-c", 9, 8)), 9),
        ((Plan("gw-b", 7, 6),), None),
        ((Plan("gw-b", 4, 3),), None),
        ((Plan("gw-b", 10, 6),), None),
    ],
    ids=["one", "the oldest first", "of a chain its end", "told already", "too old to know", "in force"],
)
def test_which_plan_that_was_carried_out_in_vain_is_told_of(carried_out: tuple[Plan, ...], told_of: int | None) -> None:
    world = settled()
    record = replace(world.machine, epoch=10, plan=(), plans_told=(5, 7))
    report = world.edges["edge-1"].report
    assert report is not None
    report = replace(report, epoch=10, carried_out=carried_out)
    event = next_event(record, replace(world.view(), edge_reports={"edge-1": report}))
    found = event.epoch if event is not None and event.name == E.PLAN_SUPERSEDED else None
    assert found == told_of


def test_the_oldest_numbers_that_were_told_of_are_forgotten() -> None:
    world = settled()
    record = replace(world.machine, epoch=20, plans_told=tuple(range(2, 2 + TOLD)))
    event = Event(E.PLAN_SUPERSEDED, "in vain", "gw-b", 15, evidence={"edge": "edge-1"})
    step = handle(record, event, world.instant(), world.counter)
    assert step.record.plans_told == (*range(3, 2 + TOLD), 15)


def test_superseded_by_a_higher_epoch() -> None:
    """The leader is draining it already: what the edge did is an older command, and changes nothing."""
    world = settled()
    world.drain("gw-a")
    world.think()
    assert world.machine.epoch == 3
    world.power_cut("gw-a")
    world.act()
    before = world.machine
    event = next_event(before, world.view())
    assert event is None or event.name != E.PLAN_EXECUTED
    step = handle(before, Event(E.PLAN_EXECUTED, "late", "gw-b", 2), world.instant(), world.counter)
    assert step.record is before and step.ignored == "superseded by a higher epoch"
    world.run(1)
    assert world.machine.owner == "gw-b" and world.machine.epoch > 3
    at_rest(world)


def test_edge_that_was_away_is_adopted_on_its_return() -> None:
    world = settled(gateways=THREE)
    world.edge_lost("edge-1")
    world.power_cut("gw-a")
    world.act()
    world.run(10)
    assert world.machine.owner == "gw-a" and "EdgeUnreachable" in conditions(world)
    world.edge_back("edge-1")
    world.run(1)
    assert (world.machine.owner, world.machine.epoch) == ("gw-b", 2)
    at_rest(world)
