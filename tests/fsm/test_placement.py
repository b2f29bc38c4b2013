"""Placement: the same answer everywhere, and a join moves no more than its share."""

from itertools import permutations

import pytest

from fsm.placement import rank

GATEWAYS = [f"gw-{n}" for n in range(1, 9)]
SUBJECTS = [f"pool-{n}" for n in range(3000)]


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("web", ("gw-a", "gw-b", "gw-c")),
        ("mail", ("gw-c", "gw-b", "gw-a")),
        ("dns", ("gw-b", "gw-c", "gw-a")),
        ("game", ("gw-a", "gw-c", "gw-b")),
    ],
)
def test_pinned(subject: str, expected: tuple[str, ...]) -> None:
    """These must never change: replicas of two releases have to agree, and a new hash would move every pool."""
    assert rank(subject, ["gw-a", "gw-b", "gw-c"]) == expected


def test_order_of_the_question_does_not_matter() -> None:
    assert len({rank("web", order) for order in permutations(["gw-a", "gw-b", "gw-c", "gw-d"])}) == 1


def test_removing_a_gateway_keeps_the_order_of_the_rest() -> None:
    whole = rank("web", GATEWAYS)
    for gone in GATEWAYS:
        assert rank("web", [g for g in GATEWAYS if g != gone]) == tuple(g for g in whole if g != gone)


@pytest.mark.parametrize("count", range(2, 9))
def test_a_join_moves_its_share_and_to_itself_only(count: int) -> None:
    before = {s: rank(s, GATEWAYS[: count - 1])[0] for s in SUBJECTS}
    after = {s: rank(s, GATEWAYS[:count])[0] for s in SUBJECTS}
    moved = [s for s in SUBJECTS if before[s] != after[s]]
    assert {after[s] for s in moved} == {GATEWAYS[count - 1]}
    assert len(moved) / len(SUBJECTS) <= 1 / count + 0.03


def test_nobody_to_place_on() -> None:
    assert rank("web", []) == ()
