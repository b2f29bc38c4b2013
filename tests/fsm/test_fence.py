"""The edge's fence: what is older is refused, whatever prefix it names; the same again is harmless."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm.fence import FenceState, Refused, accept, forget
from fsm.records import EdgePool

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
