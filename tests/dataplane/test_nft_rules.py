"""The rule sets: golden text, and what must never be in them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dataplane.nft_rules import EdgeRules, GatewayRules, Tunnel, normalise, transaction

GOLDEN = Path(__file__).parent / "golden"
GATEWAY = GatewayRules(
    (Tunnel("bgplb-e0", 0x1000), Tunnel("bgplb-e1", 0x2000)),
    0xF000,
    1280,
    {"10.78.0.1": "169.254.77.2", "fd78::1": "fd79::2"},
)
EDGE = EdgeRules(("bgplb-g0", "bgplb-g1"), 1380)
SETS = {"gateway": GATEWAY.ruleset(), "edge": EDGE.ruleset()}


def expressions(ruleset: str, chain: str) -> list[list[dict[str, Any]]]:
    objects = json.loads(ruleset)["nftables"]
    return [item["rule"]["expr"] for item in objects if item.get("rule", {}).get("chain") == chain]


@pytest.mark.parametrize("name", sorted(SETS))
def test_golden(name: str) -> None:
    """Rewrite with BGPLB_REWRITE_GOLDEN=1, and commit only what can be explained."""
    path = GOLDEN / f"nft-{name}.json"
    if os.environ.get("BGPLB_REWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(SETS[name] + "\n")
    assert SETS[name] + "\n" == path.read_text()


@pytest.mark.parametrize("name", sorted(SETS))
def test_nothing_is_ever_dropped(name: str) -> None:
    text = SETS[name]
    assert '"drop"' not in text and '"reject"' not in text
    chains = [item["chain"] for item in json.loads(text)["nftables"] if "chain" in item]
    assert chains and all(chain["policy"] == "accept" for chain in chains)


def test_the_packet_mark_is_set_only_on_answers() -> None:
    """In the original direction it would send the request back into the tunnel."""
    for chain in ("prerouting", "output"):
        marking = [rule for rule in expressions(GATEWAY.ruleset(), chain) if '{"meta": {"key": "mark"}}' in keys(rule)]
        assert len(marking) == len(GATEWAY.tunnels)
        for rule in marking:
            assert rule[0] == {"match": {"op": "==", "left": {"ct": {"key": "direction"}}, "right": "reply"}}


def keys(rule: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(part["mangle"]["key"]) for part in rule if "mangle" in part]


def test_every_mark_keeps_the_bits_of_others() -> None:
    for chain in ("prerouting", "output"):
        for rule in expressions(GATEWAY.ruleset(), chain):
            for part in rule:
                value = part.get("mangle", {}).get("value")
                if isinstance(value, dict):
                    kept, mark = value["|"][0]["&"][1], value["|"][1]
                    assert kept & ~0xF000 == 0xFFFF0FFF
                    assert mark & ~0xF000 == 0


@pytest.mark.parametrize(
    ("tunnels", "message"),
    [
        ((Tunnel("a", 0),), "non-zero"),
        ((Tunnel("a", 0x100),), "within the mask"),
        ((Tunnel("a", 0x1000), Tunnel("b", 0x1000)), "differ"),
    ],
)
def test_bad_marks_are_refused(tunnels: tuple[Tunnel, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewayRules(tunnels, 0xF000, 1280)


def test_a_listing_without_what_the_kernel_adds_is_the_rule_set() -> None:
    objects = json.loads(EDGE.ruleset())["nftables"]
    listed = [
        {"metainfo": {"version": "1.0.6"}},
        {"table": {"family": "inet", "name": "bgplb", "handle": 4}},
        *({kind: {**body, "handle": 9}} for item in objects for kind, body in item.items()),
    ]
    assert normalise(json.dumps({"nftables": listed})) == EDGE.ruleset()


def test_one_transaction_adds_deletes_and_adds() -> None:
    commands = json.loads(transaction(EDGE.ruleset()))["nftables"]
    table = {"table": {"family": "inet", "name": "bgplb"}}
    assert commands[:3] == [{"add": table}, {"delete": table}, {"add": table}]
    assert json.loads(transaction(None))["nftables"] == [{"add": table}, {"delete": table}]
