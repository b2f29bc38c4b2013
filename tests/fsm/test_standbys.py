"""How many ready standbys a group wants, and what is said when there are fewer."""

from dataclasses import replace

import pytest

from fsm.records import Condition
from fsm.types import PoolState
from tests.fsm.world import ModelWorld, settled

THREE = ("gw-a", "gw-b", "gw-c")


def said(world: ModelWorld) -> list[Condition]:
    return [c for c in world.machine.conditions if c.type in ("NoStandby", "FewStandbys")]


def wanting(standbys: int, *out_of_service: str) -> ModelWorld:
    """A pool at gw-a in a group of three that wants so many standbys, with some of them drained."""
    world = settled(gateways=THREE)
    world.group = replace(world.group, standbys=standbys)
    for name in out_of_service:
        world.drain(name)
    world.run(1)
    assert (world.state, world.machine.owner) == (PoolState.ACTIVE_HEALTHY, "gw-a")
    return world


@pytest.mark.parametrize(
    ("standbys", "out_of_service", "condition"),
    [
        (0, (), None),
        (0, ("gw-b", "gw-c"), None),
        (1, (), None),
        (1, ("gw-b",), None),
        (1, ("gw-b", "gw-c"), "NoStandby"),
        (2, (), None),
        (2, ("gw-b",), "FewStandbys"),
        (2, ("gw-b", "gw-c"), "NoStandby"),
        (3, (), "FewStandbys"),
    ],
)
def test_fewer_than_wanted_is_told(standbys: int, out_of_service: tuple[str, ...], condition: str | None) -> None:
    world = wanting(standbys, *out_of_service)
    assert [c.type for c in said(world)] == ([condition] if condition else [])


def test_it_says_how_many_there_are_and_why_there_are_no_more() -> None:
    (condition,) = said(wanting(2, "gw-c"))
    assert condition.message == "1 of 2 are ready; gw-c: drained"
    (condition,) = said(wanting(3))
    assert condition.message == "2 of 3 are ready; no other gateway"
    (condition,) = said(wanting(2, "gw-b", "gw-c"))
    assert condition.message == "gw-b: drained; gw-c: drained"


def test_it_ends_when_there_are_enough_again() -> None:
    world = wanting(2, "gw-b")
    world.undrain("gw-b")
    world.run()
    assert said(world) == []


def test_a_gateway_that_the_pool_is_moving_to_is_no_standby() -> None:
    world = wanting(2)
    world.power_cut("gw-a")
    world.think()
    assert world.machine.target == "gw-b"
    assert [c.message for c in said(world)] == ["1 of 2 are ready; gw-b: taking over"]


def test_stranded_is_told_whatever_is_wanted() -> None:
    world = wanting(0, "gw-b", "gw-c")
    world.power_cut("gw-a")
    world.run(1)
    assert world.state == PoolState.STRANDED and [c.reason for c in said(world)] == ["OwnerUnfit"]
