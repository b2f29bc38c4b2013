"""Overlaps are found as by comparing with each prefix."""

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.leader.overlap import PrefixIndex

prefixes = st.builds(
    lambda address, length: str(ip_network((0xC6120000 + address, length), strict=False)),
    st.integers(0, 2**17 - 1),
    st.sampled_from([15, 16, 20, 24, 26, 31, 32]),
) | st.builds(
    lambda address, length: str(ip_network((0x20010DB8 << 96 | address << 62, length), strict=False)),
    st.integers(0, 63),
    st.sampled_from([32, 62, 64, 65, 128]),
)


@given(st.lists(prefixes, max_size=20), prefixes)
def test_it_finds_what_overlaps_and_nothing_else(told: list[str], prefix: str) -> None:
    pools: dict[str, set[str]] = {}
    for number, other in enumerate(told):
        pools.setdefault(other, set()).add(f"pool-{number}")
    one = ip_network(prefix)
    expected: set[str] = set()
    for other, names in pools.items():
        two = ip_network(other)
        if one.version == two.version and one.overlaps(two):
            expected |= names
    assert PrefixIndex(pools).pools(prefix) == expected
