"""The edge's fence: what is older is refused, whatever prefix it names; the same again is harmless."""

from dataclasses import replace
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm.fence import (
    REMEMBERED,
    Accepted,
    FenceState,
    Refused,
    accept,
    accept_all,
    execute,
    execute_all,
    forget,
    overlapping,
)
from fsm.records import EdgePool, Plan

WEB = EdgePool(("192.0.2.0/26",), "gw-a", 5)


def taken(state: FenceState, pool: str, command: EdgePool, revision: int) -> FenceState:
    after = accept(state, pool, command, revision)
    assert isinstance(after, FenceState), after
    return after


def refused(state: FenceState, pool: str, command: EdgePool, revision: int) -> Refused:
    after = accept(state, pool, command, revision)
    assert isinstance(after, Refused), after
    return after


FENCE = taken(FenceState(), "web", WEB, 100)


def test_first_command() -> None:
    assert FENCE.highest_epoch == 5 and FENCE.floor == {"192.0.2.0/26": 5}
    assert FENCE.pools["web"].command is WEB


def test_the_same_again_changes_nothing() -> None:
    assert accept(FENCE, "web", WEB, 100) == FENCE


@pytest.mark.parametrize(("epoch", "revision"), [(4, 100), (4, 101), (4, 999), (5, 99)])
def test_older_is_refused_as_stale(epoch: int, revision: int) -> None:
    """Commands order by (epoch, mod_revision): a lower epoch is not saved by a later revision."""
    refusal = refused(FENCE, "web", replace(WEB, epoch=epoch), revision)
    assert refusal.stale and "is older than epoch 5 at revision 100" in refusal.reason


@pytest.mark.parametrize(("epoch", "revision"), [(5, 101), (6, 101), (6, 99)])
def test_newer_is_taken(epoch: int, revision: int) -> None:
    after = taken(FENCE, "web", replace(WEB, epoch=epoch, owner="gw-b"), revision)
    assert after.pools["web"].command.owner == "gw-b" and after.highest_epoch == epoch


@pytest.mark.parametrize("prefix", ["192.0.2.0/24", "192.0.2.0/26", "192.0.2.32/27", "192.0.2.7/32"])
def test_overlapping_prefix_of_another_pool_is_refused(prefix: str) -> None:
    refusal = refused(FENCE, "other", EdgePool((prefix,), "gw-b", 4), 200)
    assert not refusal.stale and "below 5 for 192.0.2.0/26" in refusal.reason
    assert taken(FENCE, "other", EdgePool((prefix,), "gw-b", 6), 200).floor[prefix] == 6


@pytest.mark.parametrize("prefix", ["192.0.2.64/26", "198.51.100.0/24", "2001:db8::/64", "::/0"])
def test_other_prefixes_are_free(prefix: str) -> None:
    taken(FENCE, "other", EdgePool((prefix,), "gw-b", 1), 200)


def test_floor_outlives_the_pool() -> None:
    """A deleted pool's prefix can't be taken with an old number."""
    gone = forget(FENCE, "web")
    assert gone.pools == {} and gone.highest_epoch == 5
    assert not refused(gone, "web", replace(WEB, epoch=4), 300).stale
    taken(gone, "again", replace(WEB, epoch=6), 300)


def test_refusal_leaves_no_trace() -> None:
    before = replace(FENCE, floor=dict(FENCE.floor))
    refused(FENCE, "web", replace(WEB, epoch=4, prefixes=("192.0.2.0/26", "198.51.100.0/26")), 500)
    assert before == FENCE


commands = st.lists(
    st.tuples(
        st.sampled_from(["web", "mail"]),
        st.sampled_from(["192.0.2.0/24", "192.0.2.0/26", "192.0.2.32/27", "198.51.100.0/26"]),
        st.integers(1, 6),
        st.integers(1, 20),
    ),
    max_size=20,
)


@given(commands)
def test_no_prefix_ever_goes_back(sent: list[tuple[str, str, int, int]]) -> None:
    """Whatever arrives in whatever order, floors only rise and an accepted epoch is at no overlapping floor's loss."""
    state = FenceState()
    for pool, prefix, epoch, revision in sent:
        after = accept(state, pool, EdgePool((prefix,), "gw-a", epoch), revision)
        if isinstance(after, Refused):
            continue
        assert all(after.floor[p] >= floor for p, floor in state.floor.items())
        assert epoch >= state.floor.get(prefix, 0)
        assert after.pools[pool].command.epoch == epoch
        state = after


# ---- plans carried out -------------------------------------------------------------------------------------------

CHAIN = (Plan("gw-b", 6, 5), Plan("gw-c", 7, 6))
ARMED = taken(FenceState(), "web", replace(WEB, plan=CHAIN), 100)


def test_a_plan_carried_out_is_the_newest_command() -> None:
    after = execute(ARMED, "web")
    command = EdgePool(WEB.prefixes, "gw-b", 6, plan=CHAIN[1:])
    assert after.pools["web"] == Accepted(command, 100, executed=True, carried_out=CHAIN[:1])
    assert after.floor == {"192.0.2.0/26": 6} and after.highest_epoch == 6
    twice = execute(after, "web")
    assert twice.pools["web"].command == EdgePool(WEB.prefixes, "gw-c", 7)
    assert twice.pools["web"].carried_out == CHAIN
    with pytest.raises(ValueError, match="no plan stands on epoch 7"):
        execute(twice, "web")


def test_what_was_carried_out_is_remembered_over_commands_and_never_more_than_a_few() -> None:
    state = FenceState()
    done: list[Plan] = []
    for number in range(10, 10 + 2 * (REMEMBERED + 2), 2):
        plan = Plan("gw-b", number + 1, number)
        state = taken(state, "web", EdgePool(WEB.prefixes, "gw-a", number, plan=(plan,)), 100 + number)
        assert state.pools["web"].carried_out == tuple(done[-REMEMBERED:]) and not state.pools["web"].executed
        state = execute(state, "web")
        done.append(plan)
    assert state.pools["web"].carried_out == tuple(done[-REMEMBERED:])
    assert forget(state, "web").pools == {}


@pytest.mark.parametrize("plan", [(), (Plan("gw-b", 6, 4),), (Plan("gw-c", 7, 6),)], ids=["none", "below", "above"])
def test_a_plan_on_another_number_is_not_carried_out(plan: tuple[Plan, ...]) -> None:
    with pytest.raises(ValueError, match="no plan stands on epoch 5"):
        execute(taken(FenceState(), "web", replace(WEB, plan=plan), 100), "web")


def test_a_plan_is_not_carried_out_where_another_pool_took_the_prefix() -> None:
    state = taken(ARMED, "mail", EdgePool(("192.0.2.0/24",), "gw-a", 9), 101)
    with pytest.raises(ValueError, match="is below 9"):
        execute(state, "web")


@pytest.mark.parametrize("planned", [False, True])
def test_a_plan_breaks_before_it_makes(planned: bool) -> None:
    """Also where the owner came by a planned move: nobody lingers in a tunnel that is dead."""
    state = taken(FenceState(), "web", replace(WEB, plan=CHAIN, planned=planned), 100)
    assert execute(state, "web").pools["web"].command.planned is False


def test_commands_of_the_number_before_are_stale_afterwards() -> None:
    """The command that armed it, seen again, and the one that revokes it: too late, both."""
    after = execute(ARMED, "web")
    assert refused(after, "web", replace(WEB, plan=CHAIN), 100).stale
    assert refused(after, "web", WEB, 150).stale


def test_the_leaders_word_for_the_same_number_ends_it() -> None:
    """Adopted, or decided at the same time: same number, same target, later revision."""
    after = taken(execute(ARMED, "web"), "web", EdgePool(WEB.prefixes, "gw-b", 6), 150)
    assert after.pools["web"].executed is False and after.pools["web"].command.owner == "gw-b"
    with pytest.raises(ValueError, match="no plan stands on epoch 6"):
        execute(after, "web")


steps = st.lists(
    st.one_of(
        st.none(),
        st.tuples(st.integers(1, 8), st.integers(1, 20), st.lists(st.integers(1, 3), max_size=2)),
    ),
    max_size=20,
)


@given(steps)
def test_numbers_only_rise_whoever_decides(sent: list[tuple[int, int, list[int]] | None]) -> None:
    """Commands with chains in any order, and plans carried out at any moment: each accepted number is above the last,
    each plan carried out is of the chain of the command in force, and none is carried out twice."""
    state, done = FenceState(), []
    for step in sent:
        before = state.pools.get("web")
        if step is not None:
            epoch, revision, gaps = step
            plans: list[Plan] = []
            for gap in gaps:
                base = plans[-1].epoch if plans else epoch
                plans.append(Plan(f"gw-{base + gap}", base + gap, base))
            after = accept(state, "web", replace(WEB, epoch=epoch, plan=tuple(plans)), revision)
            state = state if isinstance(after, Refused) else after
        elif before is not None and before.command.plan:
            state = execute(state, "web")
            done.append(state.pools["web"].command.epoch)
            assert done[-1] == before.command.plan[0].epoch
            assert state.pools["web"].command.owner == f"gw-{done[-1]}"
        now = state.pools.get("web")
        assert before is None or (now is not None and now.command.epoch >= before.command.epoch)
        assert now is None or state.floor[WEB.prefixes[0]] == now.command.epoch
        assert now is None or all(plan.epoch > now.command.epoch for plan in now.command.plan)
    assert done == sorted(set(done))


some_prefixes = st.lists(
    st.builds(
        lambda address, length: str(ip_network((0xC6120000 + address, length), strict=False)),
        st.integers(0, 2**17 - 1),
        st.sampled_from([15, 16, 20, 24, 26, 31, 32]),
    )
    | st.builds(
        lambda address, length: str(ip_network((0x20010DB8 << 96 | address << 62, length), strict=False)),
        st.integers(0, 63),
        st.sampled_from([32, 62, 64, 65, 128]),
    ),
    max_size=12,
)


@given(some_prefixes, some_prefixes)
def test_overlaps_are_found_in_one_pass(prefixes: list[str], others: list[str]) -> None:
    everything = set(prefixes) | set(others)
    found = overlapping(prefixes, others)
    assert set(found) == set(prefixes)
    for prefix, rivals in found.items():
        network = ip_network(prefix)
        same = {other for other in everything if ip_network(other).version == network.version}
        assert sorted(rivals) == sorted(other for other in same if network.overlaps(ip_network(other)))


@given(
    st.lists(st.tuples(some_prefixes.map(tuple), st.integers(1, 6), st.integers(1, 3)), max_size=8),
    st.lists(st.tuples(some_prefixes.map(tuple), st.integers(1, 6), st.integers(1, 3)), max_size=8),
)
def test_many_commands_at_once_end_as_one_after_the_other(
    earlier: list[tuple[tuple[str, ...], int, int]], later: list[tuple[tuple[str, ...], int, int]]
) -> None:
    state = FenceState()
    for number, (prefixes, epoch, revision) in enumerate(earlier):
        after = accept(state, f"pool-{number % 4}", EdgePool(prefixes, "gw-a", epoch), revision)
        state = state if isinstance(after, Refused) else after
    commands = [(f"pool-{n}", EdgePool(p, "gw-b", epoch), revision) for n, (p, epoch, revision) in enumerate(later)]
    one_by_one, refusals = state, {}
    for pool, command, revision in commands:
        after = accept(one_by_one, pool, command, revision)
        if isinstance(after, Refused):
            refusals[pool] = after
        else:
            one_by_one = after
    together, refused_ = accept_all(state, commands)
    assert together == one_by_one
    assert set(refused_) == set(refusals)
    assert {pool: r.stale for pool, r in refused_.items()} == {pool: r.stale for pool, r in refusals.items()}


def test_plans_are_carried_out_together_and_one_that_is_refused_keeps_none_back() -> None:
    armed = [
        ("a", EdgePool(("192.0.2.0/26",), "gw-a", 1, plan=(Plan("gw-b", 4, 1), Plan("gw-c", 7, 4))), 1),
        ("b", EdgePool(("192.0.2.64/26",), "gw-a", 2, plan=(Plan("gw-b", 5, 2),)), 1),
        ("c", EdgePool(("192.0.2.128/26",), "gw-a", 3), 1),
        ("d", EdgePool(("192.0.2.64/27",), "gw-b", 9), 1),
    ]
    state, refused_ = accept_all(FenceState(), armed)
    assert not refused_
    after, reasons = execute_all(state, ["a", "b", "c"])
    assert after.pools["a"].executed and after.pools["a"].command.owner == "gw-b"
    assert after.pools["a"].command.plan == (Plan("gw-c", 7, 4),), "the rest of the chain stays armed"
    assert "below 9 for 192.0.2.64/27" in reasons["b"] and after.pools["b"] == state.pools["b"]
    assert "no plan stands on epoch 3" in reasons["c"] and after.pools["c"] == state.pools["c"]
