"""Rules of an older set-up that would send a gateway's requests astray: found by the real nft, and left alone."""

import json
import subprocess

import pytest

from dataplane.kernel import LinuxKernel
from dataplane.nft_foreign import Ours
from dataplane.nft_rules import GatewayRules, Tunnel
from dataplane.programs import path_of
from orchestrator.agents.preconditions import foreign_marks
from tests.contract.kernel.conftest import ip, need

MARK, MASK, DEVICE = 0x0100_0000, 0xFF00_0000, "bgplb-e0"
OURS = Ours(frozenset({MARK}), MASK, frozenset({DEVICE}))
TABLE = "table inet old {{ chain pre {{ type filter hook {hook} priority mangle;\n{rules}\n}}\n{more}\n}}"


def nft(namespace: str, *arguments: str, stdin: str = "") -> str:
    command = [str(path_of("ip")), "netns", "exec", namespace, str(path_of("nft")), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def found_in(namespace: str, *rules: str, hook: str = "prerouting", more: str = "") -> list[tuple[int, str]]:
    """Which of these rules (by their number) are found, and what they do: in a table of somebody else beside ours."""
    need("ip", "nft")
    kernel = LinuxKernel.of(namespace)
    try:
        await kernel.nft.ensure(GatewayRules((Tunnel(DEVICE, MARK),), MASK, 1280).ruleset())
        numbered = (f'{rule} comment "{number}"' for number, rule in enumerate(rules))
        nft(namespace, "-f", "-", stdin=TABLE.format(hook=hook, rules="\n".join(numbered), more=more))
        numbers = {}
        for item in json.loads(nft(namespace, "-j", "list", "table", "inet", "old"))["nftables"]:
            if "rule" in item:
                numbers[item["rule"]["handle"]] = int(item["rule"]["comment"])
        return [(numbers[rule.handle], rule.does) for rule in await kernel.nft.in_the_way(OURS)]
    finally:
        await kernel.close()


COPIES = "copies the connection mark to requests too"
GIVES = "gives connections a mark that is ours"
IN_THE_WAY = {
    "meta mark set ct mark": COPIES,
    "ct mark != 0 counter meta mark set ct mark": COPIES,
    "meta mark set ct mark and 0xff000000": COPIES,
    "ct mark 0x01000000 meta mark set ct mark": COPIES,
    "ct mark and 0xff000000 == 0x01000000 meta mark set ct mark": COPIES,
    "ct mark and 0xff == 0x07 meta mark set ct mark": COPIES,
    "meta mark set ct mark map { 0x01000000 : 0x01000000 }": COPIES,
    "ct direction original meta mark set ct mark": COPIES,
    'iifname "bgplb-*" meta mark set ct mark': COPIES,
    'iifname != "lan0" meta mark set ct mark': COPIES,
    "ct mark set 0x01000000": GIVES,
    "ct state new ct mark set ct mark or 0x01000000": GIVES,
}
HARMLESS = (
    "ct direction reply meta mark set ct mark",
    "ct direction != original meta mark set ct mark",
    "meta mark set ct mark and 0x00ffffff",
    "ct mark and 0xff000000 == 0x02000000 meta mark set ct mark",
    "ct mark 0x02000000 meta mark set ct mark",
    'iifname "lan0" meta mark set ct mark',
    'iifname != "bgplb-e0" meta mark set ct mark',
    'iifname { "lan0", "lan1" } meta mark set ct mark',
    "ct mark set 0x02000000",
    "ct mark set meta mark",
    "meta mark set 0x01",
    "ct state established counter accept",
)


@pytest.mark.root
async def test_rules_in_the_way_are_found_and_others_are_not(namespace: str) -> None:
    rules = (*HARMLESS, *IN_THE_WAY)
    found = {rules[number]: does for number, does in await found_in(namespace, *rules)}
    assert found == IN_THE_WAY


@pytest.mark.root
async def test_a_chain_without_a_hook_is_looked_into_and_one_after_routing_is_not(namespace: str) -> None:
    chain = 'chain restore {\nmeta mark set ct mark comment "7"\n}'
    assert await found_in(namespace, "accept", more=chain) == [(7, COPIES)]
    nft(namespace, "delete", "table", "inet", "old")
    assert await found_in(namespace, "meta mark set ct mark", hook="postrouting") == []


@pytest.mark.root
async def test_the_command_that_is_named_removes_it_and_nothing_else(namespace: str) -> None:
    await found_in(namespace, "meta mark set ct mark", "meta mark set 0x7")
    kernel = LinuxKernel.of(namespace)
    try:
        (rule,) = await kernel.nft.in_the_way(OURS)
        assert foreign_marks(OURS, (), (rule,)).detail.startswith(
            f"rule {rule.handle} of chain pre in nft table inet old {COPIES}: "
            f"nft delete rule inet old pre handle {rule.handle}; or give marks.mask, now 0xff000000, other bits"
        )
        nft(namespace, *rule.removal.split()[1:])
        assert await kernel.nft.in_the_way(OURS) == ()
    finally:
        await kernel.close()
    assert "meta mark set 0x00000007" in nft(namespace, "list", "table", "inet", "old")


@pytest.mark.root
async def test_a_foreign_policy_rule_on_our_mark_is_named_and_ours_is_not(namespace: str) -> None:
    for family in ("-4", "-6"):
        ip(family, "-n", namespace, "rule", "add", "fwmark", "0x1000000/0xff000000", "lookup", "100", "pref", "900")
    ip("-n", namespace, "rule", "add", "fwmark", "0x1/0xff", "lookup", "100", "pref", "901")
    ip("-n", namespace, "rule", "add", "fwmark", "0x2000000/0xff000000", "lookup", "100", "pref", "902")
    ip("-n", namespace, "rule", "add", "fwmark", f"{MARK}/{MASK}", "lookup", "10077", "pref", "10078", "protocol", "77")
    kernel = LinuxKernel.of(namespace)
    try:
        rules = (await kernel.netlink.read([])).rules
    finally:
        await kernel.close()
    named = foreign_marks(OURS, rules, ())
    assert not named.ok
    assert [part for part in named.detail.split("; ") if part.startswith("ip rule")] == [
        "ip rule 900 (fwmark 0x1000000/0xff000000 to table 100) is not ours and takes packets with our mark: " + command
        for command in ("ip rule del priority 900", "ip -6 rule del priority 900")
    ]
    assert foreign_marks(OURS, [rule for rule in rules if rule.priority != 900], ()).ok
