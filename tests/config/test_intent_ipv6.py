"""IPv6 in the folder's objects: prefixes and ranges, accepted or refused in these very words."""

import pytest

from tests.config.test_intent import FIRST, GROUP, read, refusal
from tests.config.texts import BOTH, EDGE_GATEWAY, POOL


def test_a_pool_of_both_families() -> None:
    intent = read({"a.yaml": EDGE_GATEWAY, "b.yaml": BOTH})
    assert intent.problems == ()
    pool = intent.pools[0]
    assert (pool.aggregate, pool.aggregate_ipv6) == ("192.0.2.0/24", "2001:db8::/32")
    assert pool.addresses == ("192.0.2.0/26", "2001:db8:2::/64")


@pytest.mark.parametrize("prefix", ["2001:db8::/32", "2001:db8:2::/64", "2001:db8:2::10/128"])
def test_a_pool_of_ipv6_alone(prefix: str) -> None:
    text = POOL.replace("192.0.2.0/24", "2001:db8::/32").replace("192.0.2.0/26", prefix)
    intent = read({"a.yaml": EDGE_GATEWAY, "b.yaml": text})
    assert intent.problems == ()
    assert (intent.pools[0].aggregate, intent.pools[0].aggregate_ipv6) == ("2001:db8::/32", "")
    assert intent.pools[0].addresses == (prefix,)


def test_prefixes_are_kept_in_one_spelling() -> None:
    text = POOL.replace("192.0.2.0/24", "2001:0DB8::/32").replace("192.0.2.0/26", "2001:db8:0002:0::/64")
    assert read({"a.yaml": EDGE_GATEWAY, "b.yaml": text}).pools[0].addresses == ("2001:db8:2::/64",)


def test_pools_of_ipv6_that_overlap() -> None:
    other = BOTH.replace("pool-1", "pool-2").replace("192.0.2.0/26", "192.0.2.64/26").replace("2::/64", "2::/48")
    assert refusal({"a.yaml": EDGE_GATEWAY, "b.yaml": BOTH, "c.yaml": other}) == [
        f"b.yaml: {FIRST}: spec.addresses[1]: value '2001:db8:2::/64': a prefix that does not overlap 2001:db8:2::/48 "
        "of EIPPool/external-ip-pool-2 in c.yaml"
    ]


def test_a_pool_in_the_ipv6_ranges_of_tunnels_and_probes() -> None:
    text = BOTH.replace("2001:db8::/32", "fd00::/8").replace("2001:db8:2::/64", "fd77::/48")
    probes = EDGE_GATEWAY + "  tunnel: {probe: {ipv6: 'fd77:1::/64'}}\n"
    assert refusal({"a.yaml": EDGE_GATEWAY, "b.yaml": text}) == [
        f"a.yaml: {GROUP}: spec.tunnel.ipv6: value 'fd77::/48': a prefix that does not overlap fd77::/48 of {FIRST}"
    ]
    assert refusal({"a.yaml": probes, "b.yaml": text.replace("[192.0.2.0/26, fd77::/48]", "['fd77:1::/48']")})[0] == (
        f"a.yaml: {GROUP}: spec.tunnel.probe.ipv6: value 'fd77:1::/64': a prefix that does not overlap fd77:1::/48 of "
        f"{FIRST}"
    )


def test_probe_and_tunnel_ranges_of_ipv6_that_overlap() -> None:
    text = EDGE_GATEWAY + "  tunnel: {probe: {ipv6: 'fd77::/64'}}\n"
    assert refusal({"a.yaml": text, "b.yaml": POOL}) == [
        f"a.yaml: {GROUP}: spec.tunnel.probe.ipv6: value 'fd77::/64': a prefix that does not overlap tunnel.ipv6, "
        "fd77::/48"
    ]
