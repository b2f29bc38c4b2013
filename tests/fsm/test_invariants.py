"""Each predicate accepts what is right and names what is wrong."""

from dataclasses import replace

import pytest

from fsm.invariants import (
    STATEMENTS,
    Applied,
    Assignment,
    EdgeSnapshot,
    PrefixSnapshot,
    Projection,
    Write,
    changes_are_recorded,
    converged,
    epochs_have_one_owner,
    epochs_rise,
    foreign_untouched,
    never_backwards,
    one_command,
    one_path,
    one_translator,
    only_the_leader_writes,
    plan_faults,
    plans_keep_their_numbers,
)
from fsm.records import EdgePool, HistoryEntry, Plan
from fsm.types import PoolState
from tests.fsm.world import settled

S = PoolState
GOOD = PrefixSnapshot(("gw-a",), ("gw-a",), 5, "gw-a")


def s1(**changes: object) -> list[str]:
    return one_path(EdgeSnapshot("edge-1", {"192.0.2.0/26": replace(GOOD, **changes)}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sends_to": ()},
        {"sends_to": (), "accepts_from": (), "owner": None},
        {"accepts_from": ("gw-a", "gw-b"), "predecessor": "gw-b", "linger_left_ms": 20.0},
    ],
)
def test_s1_holds(changes: dict[str, object]) -> None:
    assert s1(**changes) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sends_to": ("gw-a", "gw-b")}, "is sent to gw-a, gw-b"),
        ({"sends_to": ("gw-b",)}, "is sent to gw-b"),
        ({"accepts_from": ("gw-a", "gw-b")}, "is accepted from gw-b"),
        (
            {"accepts_from": ("gw-a", "gw-b"), "predecessor": "gw-b", "linger_left_ms": 0.0},
            "is accepted from gw-b",
        ),
        (
            {"accepts_from": ("gw-a", "gw-c"), "predecessor": "gw-b", "linger_left_ms": 9.0},
            "is accepted from gw-c",
        ),
        ({"owner": None}, "is sent to gw-a"),
    ],
)
def test_s1_broken(changes: dict[str, object], complaint: str) -> None:
    found = s1(**changes)
    assert found and all(f.startswith("S1: edge-1: 192.0.2.0/26") for f in found)
    assert any(complaint in f for f in found)


def test_s1_one_epoch_one_owner_over_all_edges() -> None:
    a, b = EdgePool((), "gw-a", 5), EdgePool((), "gw-b", 5)
    assert one_command({"edge-1": a, "edge-2": a}) == []
    assert one_command({"edge-1": a, "edge-2": replace(b, epoch=6)}) == []
    assert one_command({"edge-1": a, "edge-2": b}) == ["S1: epoch 5 is commanded for gw-a and gw-b"]


def entry(seq: int, state: str, epoch: int, owner: str | None, target: str | None = None) -> HistoryEntry:
    return HistoryEntry(seq, "x", state, "e", "c", {}, epoch, owner, target, 0)


def test_s2_histories() -> None:
    real = settled()
    real.power_cut("gw-a")
    real.run(2)
    assert epochs_have_one_owner({"web": real.history}) == [] and epochs_rise("web", real.history) == []
    two = {
        "web": [entry(1, S.WITHDRAWN, 7, None, "gw-a"), entry(2, S.PEER_UPDATED, 7, "gw-b")],
        "mail": [entry(1, S.ACTIVE_HEALTHY, 8, "gw-a")],
        "dns": [entry(1, S.ACTIVE_HEALTHY, 8, "gw-a")],
    }
    assert epochs_have_one_owner(two) == [
        "S2: epoch 7 stands for gw-a of web and gw-b of web",
        "S2: epoch 8 stands for gw-a of dns and gw-a of mail",
    ]


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        (entry(1, S.ACTIVE_HEALTHY, 5, "gw-a"), "transition 1 follows 1"),
        (entry(2, S.ACTIVE_HEALTHY, 4, "gw-a"), "has epoch 4 after 5"),
        (entry(2, S.ACTIVE_HEALTHY, 5, "gw-b"), "gives epoch 5 to gw-b after gw-a"),
    ],
)
def test_s2_history_that_falls(second: HistoryEntry, complaint: str) -> None:
    found = epochs_rise("web", [entry(1, S.ACTIVE_HEALTHY, 5, "gw-a"), second])
    assert len(found) == 1 and complaint in found[0]


def test_s2_agents() -> None:
    a, b = Applied("edge-1", "192.0.2.0/26", 5), Applied("edge-1", "192.0.2.0/26", 4)
    assert never_backwards([b, a, a, replace(b, agent="edge-2"), replace(b, prefix="192.0.2.64/26")]) == []
    assert never_backwards([a, b]) == ["S2: edge-1 applied epoch 4 for 192.0.2.0/26 after 5"]


COMMAND = EdgePool((), "gw-a", 5)


@pytest.mark.parametrize(
    ("plan", "complaints"),
    [
        ((), []),
        ((Plan("gw-b", 6, 5), Plan("gw-c", 9, 6)), []),
        ((Plan("gw-b", 6, 4),), ["S2: plan 6 for gw-b stands on 4, the number before it is 5"]),
        ((Plan("gw-b", 6, 5), Plan("gw-c", 7, 5)), ["S2: plan 7 for gw-c stands on 5, the number before it is 6"]),
        ((Plan("gw-b", 5, 5),), ["S2: plan 5 for gw-b is not above 5"]),
        ((Plan("gw-a", 6, 5),), ["S2: plan 6 for gw-a names a gateway that had its turn"]),
        ((Plan("gw-b", 6, 5), Plan("gw-b", 7, 6)), ["S2: plan 7 for gw-b names a gateway that had its turn"]),
    ],
)
def test_s2_plans(plan: tuple[Plan, ...], complaints: list[str]) -> None:
    assert plan_faults(replace(COMMAND, plan=plan)) == complaints


def test_s2_reserved_numbers() -> None:
    plans = [Plan("gw-b", 6, 5), Plan("gw-c", 7, 6)]
    moved = entry(1, S.FAILURE_DETECTED, 6, "gw-a", "gw-b")
    gone = entry(2, S.TERMINATING, 7, "gw-a")
    assert plans_keep_their_numbers(plans, [entry(0, S.ACTIVE_HEALTHY, 5, "gw-a"), moved, gone]) == []
    assert plans_keep_their_numbers(plans, [replace(moved, target="gw-c")]) == [
        "S2: epoch 6 was reserved for gw-b, stands for gw-c"
    ]
    assert plans_keep_their_numbers([*plans, Plan("gw-d", 7, 5)], []) == ["S2: number 7 was reserved for gw-c and gw-d"]


def test_s3() -> None:
    before = {"rule 100": "from all lookup 100", "table inet filter": "chain input"}
    assert foreign_untouched(before, {**before, "rule 10077": "ours"}) == []
    assert foreign_untouched(before, {"rule 100": "from all lookup 101"}) == [
        "S3: table inet filter is gone",
        "S3: rule 100 was 'from all lookup 100', is 'from all lookup 101'",
    ]


def test_s4() -> None:
    assert converged({"route": "gw-a"}, {"route": "gw-a"}) == []
    assert converged({"route": "gw-a", "rule": "x"}, {"route": "gw-b", "peer": "y"}) == [
        "S4: rule is missing",
        "S4: peer is left over",
        "S4: route is 'gw-b', shall be 'gw-a'",
    ]


def test_s5() -> None:
    good = Write(10, "/machines/web", "o-1", 3, 3)
    assert only_the_leader_writes([good], [Projection("pool/web", "o-1", 9, 10, "77")]) == []
    assert len(only_the_leader_writes([replace(good, leader_term=8), replace(good, leader_term=None)])) == 2
    found = only_the_leader_writes([], [Projection("pool/web", "o-1", 11, 10, "")])
    assert found == [
        "S5: o-1 wrote pool/web without a precondition",
        "S5: o-1 told pool/web of revision 11, which etcd does not hold",
    ]


def test_s6() -> None:
    observed = [Assignment("p", "a"), Assignment("p", "a"), Assignment("p", "b"), Assignment("p", "a")]
    recorded = [("p", "a", "b"), ("p", "b", "a")]
    assert changes_are_recorded(observed, recorded) == []
    assert changes_are_recorded(observed, recorded[:1]) == ["S6: p went from b to a with no transition"]
    again = [*observed, Assignment("p", "b")]
    assert len(changes_are_recorded(again, recorded)) == 1, "one record does not excuse two changes"
    assert one_translator({"pair": ["a", "a"], "other": []}) == []
    assert one_translator({"pair": ["b", "a"]}) == ["S6: pair is translated on a, b"]


def test_every_invariant_is_stated() -> None:
    assert list(STATEMENTS) == [f"S{n}" for n in range(1, 7)]
