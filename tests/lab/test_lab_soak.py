"""A short soak: moves in a row leave nothing behind, and what would be left is seen."""

from typing import Any

import pytest
from bgplb_lab import scenario, soak
from bgplb_lab.etcdctl import etcdctl
from bgplb_lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.lab, pytest.mark.timeout(300)]

MOVES = 20
GROWTH_AT_MOST = 1.05


def test_moves_in_a_row_leave_nothing_behind(whole_lab: World, healthy: dict[str, Any]) -> None:
    found = soak.soak(whole_lab, MOVES, MOVES // 2, GROWTH_AT_MOST)
    assert found.failures() == []
    assert set(found.warm_mb) == set(found.end_mb)
    assert len(found.warm_mb) == 6, "three orchestrators, an edge agent, two node agents"


def test_what_is_left_is_seen(whole_lab: World, healthy: dict[str, Any]) -> None:
    """Each kind of thing, planted by hand between two looks."""
    before = soak.inventory(whole_lab)
    held = soak.leases(whole_lab)
    edge = scenario.EDGE
    device = next(name for name in before[f"links of {edge}"] if name.startswith("bgplb-g"))
    peer = next(line.split()[1] for line in before[f"AllowedIPs of {edge}"] if line.startswith(device))
    for argv in (
        ("ip", "rule", "add", "from", "198.18.5.0/24", "lookup", "main", "priority", "10090", "protocol", "77"),
        ("ip", "route", "add", "198.18.6.0/24", "dev", device, "protocol", "77"),
        ("nft", "add", "table", "inet", "left_behind"),
        ("wg", "set", device, "peer", peer, "allowed-ips", "+198.18.7.0/24"),
    ):
        done = whole_lab.inside(edge, *argv) if argv[0] != "wg" else _allow(whole_lab, edge, before, device, peer)
        assert done == ""
    etcdctl(whole_lab, "put", "/bgplb/v1/left", "x")
    etcdctl(whole_lab, "lease", "grant", "60")
    left = {place for place, items in soak.beyond(before, soak.inventory(whole_lab)).items() if items}
    assert left >= {f"rules of {edge}", f"routes of {edge}", f"nft of {edge}", "keys in etcd", f"AllowedIPs of {edge}"}
    assert soak.leases(whole_lab) == held + 1
    whole_lab.inside(edge, "ip", "rule", "del", "priority", "10090")
    whole_lab.inside(edge, "ip", "route", "del", "198.18.6.0/24", "dev", device)
    whole_lab.inside(edge, "nft", "delete", "table", "inet", "left_behind")
    etcdctl(whole_lab, "del", "/bgplb/v1/left")


def _allow(lab: World, machine: str, before: soak.Inventory, device: str, peer: str) -> str:
    """One AllowedIP more: this version of wg replaces the list."""
    has = [line.split()[2] for line in before[f"AllowedIPs of {machine}"] if line.startswith(f"{device} {peer} ")]
    wanted = ",".join([*(address for address in has if address != "(none)"), "198.18.7.0/24"])
    return lab.inside(machine, "wg", "set", device, "peer", peer, "allowed-ips", wanted)


@pytest.mark.parametrize(
    ("left", "end_mb", "word"),
    [
        ({"leases": ["1 more"]}, {"edge": 100.0}, "left leases"),
        ({}, {"edge": 105.1}, "edge grew"),
        ({}, {}, "edge ended"),
    ],
)
def test_failures_are_named(left: dict[str, list[str]], end_mb: dict[str, float], word: str) -> None:
    assert [word in line for line in soak.Soaked(200, 1.0, left, {"edge": 100.0}, end_mb, 1.05).failures()] == [True]
    assert soak.Soaked(200, 1.0, {}, {"edge": 100.0}, {"edge": 105.0}, 1.05).failures() == []
