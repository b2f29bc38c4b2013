"""Names map to BIRD symbols without collisions."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdctl import names

_dns = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True)


def test_readable_where_it_can_be() -> None:
    assert names.pool_protocol("web-1", 4) == "bgplb_pool_web_1"
    assert names.pool_protocol("web-1", 6) == "bgplb_pool6_web_1"
    assert names.pool_protocol("a.b", 4) == "bgplb_pool_aX2eb"
    assert names.session_protocol("gw-a") == "bgplb_bgp_gw_a"


@given(st.sets(_dns | st.text(min_size=1, max_size=80), min_size=2, max_size=20), st.sampled_from((4, 6)))
def test_different_names_give_different_symbols_that_bird_takes(pools: set[str], version: int) -> None:
    symbols = {names.pool_protocol(pool, version) for pool in pools}
    assert len(symbols) == len(pools)
    assert all(re.fullmatch(r"bgplb_pool6?_[A-Za-z0-9_]+", symbol) and len(symbol) <= 63 for symbol in symbols)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a-b", "a.b"), ("a--b", "a-.b"), ("a_b", "a-b"), ("x" * 62 + "a", "x" * 62 + "b"), ("aX2eb", "a.b"), ("A", "a")],
)
def test_near_misses_stay_apart(one: str, other: str) -> None:
    assert names.pool_protocol(one, 4) != names.pool_protocol(other, 4)


def test_a_cut_name_cannot_be_another_pools_whole_name() -> None:
    cut = names.pool_protocol("y" * 63, 4)
    assert names.pool_protocol(cut.removeprefix("bgplb_pool_"), 4) != cut


def test_references_are_quoted_when_they_must_be_and_never_carry_a_command() -> None:
    assert names.reference("bgplb_bgp_gw_a") == "bgplb_bgp_gw_a"
    assert names.reference("gw-a.x") == "'gw-a.x'"
    for bad in ("", "a b", "a'b", "a;down", 'a"'):
        with pytest.raises(ValueError, match="not the name"):
            names.reference(bad)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="without a name"):
        names.session_protocol("")
    with pytest.raises(ValueError, match="4 or 6"):
        names.probe_protocol(5)
