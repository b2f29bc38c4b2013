"""Foreign nftables rules that would lead our gateway's requests astray: found in nft's own listing. Pure.

A gateway marks the connections that come in through an edge's tunnel and copies that mark to *answers*. A rule of
somebody else, often left over from an older set-up, that copies connection marks to every packet gives the request the
mark too, and the rule on the mark sends it back into the tunnel. One that puts our mark on connections of its own sends
their answers there.

What it says is on the safe side where a rule can't be seen through: of one that iptables wrote, nft tells the names of
matches and targets but not their arguments.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dataplane.nft_rules import FAMILY, TABLE

_ALL_BITS = 0xFFFFFFFF
_CT_MARK, _META_MARK = {"ct": {"key": "mark"}}, {"meta": {"key": "mark"}}

Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class ForeignRule:
    """A rule that is not ours and that is in our way. `does`: what, as the end of a sentence about the rule."""

    family: str
    table: str
    chain: str
    handle: int
    does: str

    @property
    def removal(self) -> str:
        """The command that takes it away."""
        return f"nft delete rule {self.family} {self.table} {self.chain} handle {self.handle}"


@dataclass(frozen=True)
class Ours:
    """What others must leave alone: our marks, each within `mask`, and the tunnels that requests come in through."""

    marks: frozenset[int]
    mask: int
    devices: frozenset[str]


def rules_in_the_way(listing: str, ours: Ours) -> tuple[ForeignRule, ...]:
    """Those of ``nft -j list ruleset`` that are in the way of `ours`, in order.

    Looked at are chains of the prerouting hook and, since any of them may be jumped to, chains without a hook of a
    table that has one. Our own table is left out.
    """
    if "CONNMARK" not in listing and '"ct"' not in listing:
        return ()  # a large rule set of somebody else is not worth parsing then
    objects = json.loads(listing)["nftables"]
    entered = _entered_chains([item["chain"] for item in objects if "chain" in item])
    found = []
    for rule in (item["rule"] for item in objects if "rule" in item):
        if (rule["family"], rule["table"], rule["chain"]) in entered:
            does = _does(rule["expr"], ours)
            if does:
                found.append(ForeignRule(rule["family"], rule["table"], rule["chain"], rule["handle"], does))
    return tuple(sorted(found))


def _entered_chains(chains: list[Json]) -> set[tuple[str, str, str]]:
    tables = {(c["family"], c["table"]) for c in chains if c.get("hook") == "prerouting"} - {(FAMILY, TABLE)}
    return {
        (c["family"], c["table"], c["name"])
        for c in chains
        if (c["family"], c["table"]) in tables and c.get("hook") in ("prerouting", None)
    }


def _does(expressions: list[Json], ours: Ours) -> str:
    """What the rule does that is in our way, or nothing."""
    matches = [e["match"] for e in expressions if "match" in e]
    if not _meets_tunnels(matches, ours.devices):
        return ""
    extensions = {e["xt"].get("name") for e in expressions if isinstance(e.get("xt"), dict)}
    if "CONNMARK" in extensions and "conntrack" not in extensions:
        return "was made by iptables with -j CONNMARK, for requests as well as for answers"
    if _answers_only(matches):
        return ""
    for change in (e["mangle"] for e in expressions if "mangle" in e):
        copies = change["key"] == _META_MARK and _flow(change["value"]) & ours.mask
        if copies and any(_lets_pass(matches, mark, ours.mask) for mark in ours.marks):
            return "copies the connection mark to requests too"
        if change["key"] == _CT_MARK and _constant(change["value"]) & ours.mask in ours.marks:
            return "gives connections a mark that is ours"
    return ""


def _meets_tunnels(matches: list[Json], devices: frozenset[str]) -> bool:
    """Whether packets that come in through one of the tunnels can pass these matches on the interface's name."""
    for match in matches:
        if match["left"] in ({"meta": {"key": "iifname"}}, {"meta": {"key": "iif"}}):
            names = list(_names(match["right"]))
            inside = {d for d in devices if any(d == n or (n.endswith("*") and d.startswith(n[:-1])) for n in names)}
            if not (inside if match["op"] == "==" else devices - inside):
                return False
    return True


def _names(right: object) -> Iterator[str]:
    for name in right["set"] if isinstance(right, dict) and "set" in right else [right]:
        yield str(name)


def _answers_only(matches: list[Json]) -> bool:
    direction = {"ct": {"key": "direction"}}
    return any(
        m["left"] == direction and (m["op"], m["right"]) in (("==", "reply"), ("!=", "original")) for m in matches
    )


def _lets_pass(matches: list[Json], mark: int, mask: int) -> bool:
    """Whether a connection with this mark under the mask, and any other bits, can pass the matches on its mark."""
    for match in matches:
        left, right, bits = match["left"], match["right"], _ALL_BITS
        if isinstance(left, dict) and "&" in left:
            left, bits = left["&"]
        elif isinstance(right, dict) and "prefix" in right:  # how nft says `and 0xff000000 ==`: leading bits
            right, length = right["prefix"]["addr"], right["prefix"]["len"]
            bits = _ALL_BITS & ~(_ALL_BITS >> length)
        known = left == _CT_MARK and match["op"] == "==" and isinstance(right, int) and isinstance(bits, int)
        if known and (mark ^ right) & bits & mask:
            return False
    return True


def _flow(value: object) -> int:
    """The bits of the connection mark that get into this value."""
    if value == _CT_MARK:
        return _ALL_BITS
    if isinstance(value, dict):
        for operator in ("&", "|", "^"):
            if operator in value:
                left, right = value[operator]
                if operator == "&" and isinstance(right, int):
                    return _flow(left) & right
                return _flow(left) | _flow(right)
        return _ALL_BITS if json.dumps(_CT_MARK) in json.dumps(value) else 0
    return 0


def _constant(value: object) -> int:
    """The bits that this value sets, whatever was there before."""
    if isinstance(value, int):
        return value
    if isinstance(value, dict) and "|" in value:
        return _constant(value["|"][1])
    return 0
