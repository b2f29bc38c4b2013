"""Rules that iptables wrote, of which nft tells little: as nft 1.0.6 lists them."""

import json
from typing import Any

import pytest

from dataplane.nft_foreign import ForeignRule, Ours, rules_in_the_way

OURS = Ours(frozenset({0x0100_0000}), 0xFF00_0000, frozenset({"bgplb-e0"}))
CONNMARK = {"xt": {"type": "target", "name": "CONNMARK"}}
COUNTER = {"counter": {"packets": 0, "bytes": 0}}


def listing(*expressions: dict[str, Any], hook: str = "prerouting") -> str:
    named = {"family": "ip", "table": "mangle"}
    chain = {**named, "name": "PREROUTING", "handle": 1, "type": "filter", "hook": hook, "prio": -150}
    rule = {**named, "chain": "PREROUTING", "handle": 2, "expr": [COUNTER, *expressions]}
    return json.dumps({"nftables": [{"metainfo": {}}, {"chain": chain}, {"rule": rule}]})


def test_connmark_without_a_direction_is_in_the_way() -> None:
    does = "was made by iptables with -j CONNMARK, for requests as well as for answers"
    assert rules_in_the_way(listing(CONNMARK), OURS) == (ForeignRule("ip", "mangle", "PREROUTING", 2, does),)


@pytest.mark.parametrize(
    "expressions",
    [
        ({"xt": {"type": "match", "name": "conntrack"}}, CONNMARK),
        ({"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "eni*"}}, CONNMARK),
        ({"xt": {"type": "target", "name": "MARK"}},),
        ({"xt": None},),
    ],
)
def test_others_of_iptables_are_not(expressions: tuple[dict[str, Any], ...]) -> None:
    assert rules_in_the_way(listing(*expressions), OURS) == ()


def test_after_routing_a_mark_leads_nobody_astray() -> None:
    assert rules_in_the_way(listing(CONNMARK, hook="postrouting"), OURS) == ()
