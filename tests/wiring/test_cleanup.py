"""`cleanup` removes all that is ours and gives back what it changed; what is not ours it does not even look at."""

import json

import pytest

from fsm.invariants import foreign_untouched
from tests.wiring.box import BGPLB, Box, need
from tests.wiring.test_daemons import remembered

pytestmark = [pytest.mark.root]

FOREIGN_NFT = """table inet theirs {
    chain forward {
        type filter hook forward priority 0; policy accept;
    }
}
"""


def plant(box: Box) -> None:
    """Things that look like ours and are not: one of the marks of what is ours is always missing."""
    box.run("ip", "link", "add", "lan0", "type", "veth", "peer", "name", "lan1")
    box.run("ip", "address", "add", "10.10.0.11/24", "dev", "lan0")
    box.run("ip", "link", "set", "lan0", "up")
    box.run("ip", "link", "set", "lan1", "up", "alias", "bgp-somebody")
    box.run("ip", "route", "add", "198.51.100.0/24", "dev", "lan0", "proto", "static")
    box.run("ip", "route", "add", "198.51.101.0/24", "dev", "lan0", "table", "10099", "proto", "static")
    box.run("ip", "rule", "add", "from", "198.51.100.0/24", "lookup", "10077", "priority", "10077")
    box.run("ip", "rule", "add", "from", "198.51.101.0/24", "lookup", "main", "priority", "20000", "protocol", "77")
    box.run("nft", "-f", "-", stdin=FOREIGN_NFT)


def foreign(box: Box) -> dict[str, str]:
    """All that was planted, as the kernel prints it."""
    routes = json.loads(box.run("ip", "-j", "route", "show", "table", "all").stdout)
    rules = json.loads(box.run("ip", "-j", "-d", "rule", "show").stdout)
    found = {f"route {r['dst']} {r.get('table')}": json.dumps(r) for r in routes if str(r["dst"]).startswith("198.51.")}
    found |= {f"rule {r['priority']}": json.dumps(r) for r in rules if str(r.get("src", "")).startswith("198.51.")}
    found["nft"] = box.run("nft", "list", "table", "inet", "theirs").stdout
    for name in ("lan0", "lan1"):
        link = json.loads(box.run("ip", "-j", "link", "show", name).stdout)[0]
        found[name] = json.dumps([link["ifname"], link["mtu"], link.get("ifalias"), link["address"]])
    return found


def sysctls(box: Box) -> str:
    names = ("net.ipv4.ip_forward", "net.ipv4.conf.all.rp_filter", "net.ipv4.conf.lan0.rp_filter")
    return "".join(box.run("cat", f"/proc/sys/{name.replace('.', '/')}").stdout for name in names)


def ours(box: Box) -> dict[str, str]:
    """What of ours is there."""
    routes = json.loads(box.run("ip", "-j", "-d", "route", "show", "table", "all").stdout)
    rules = json.loads(box.run("ip", "-j", "-d", "rule", "show").stdout)
    found = {f"route {r['dst']}": "" for r in routes if r.get("protocol") == "77"}
    found |= {
        f"rule {r['priority']}": "" for r in rules if r.get("protocol") == "77" and r["priority"] in range(10077, 10100)
    }
    found |= {f"link {name}": "" for name in box.links() if name.startswith("bgplb-")}
    if box.run("nft", "list", "table", "inet", "bgplb", check=False).returncode == 0:
        found["nft"] = ""
    if "bgplb-probe" in box.run("ip", "netns", "list").stdout:
        found["namespace"] = ""
    return found


@pytest.mark.parametrize("role", ["edge-agent", "node-agent"])
def test_it_removes_ours_restores_what_was_changed_and_leaves_the_rest(box: Box, role: str) -> None:
    need("wireguard-go")
    plant(box)
    before, values = foreign(box), sysctls(box)
    remembered(box, role)
    config = box.config(role)
    daemon = box.bgplb(role, config)
    wanted = "route 192.0.2.0/26" if role == "edge-agent" else "rule 10077"
    box.wait(lambda: wanted in ours(box) and "nft" in ours(box), f"the agent's work: {daemon.log.read_text()}")
    running = box.run(*BGPLB, role, "--config", str(config), "cleanup", check=False)
    assert running.returncode == 6, f"not while the agent runs: {daemon.log.read_text()}"
    assert "another process" in running.stderr
    code, _ = daemon.terminate(20)
    assert code == 0, daemon.log.read_text()
    assert sysctls(box) != values
    box.run(*BGPLB, role, "--config", str(config), "cleanup")
    assert ours(box) == {}
    assert sysctls(box) == values
    assert not foreign_untouched(before, foreign(box))
    left = [path.name for path in (box.folder / f"state-{role}").iterdir()]
    assert sorted(left) == ["instance", "wireguard.key"], "who it is, and its key, stay"


@pytest.mark.parametrize("role", ["edge-agent", "node-agent"])
def test_a_second_cleanup_and_one_of_a_clean_machine_do_nothing(box: Box, role: str) -> None:
    plant(box)
    before, values = foreign(box), sysctls(box)
    for _ in range(2):
        box.run(*BGPLB, role, "--config", str(box.config(role)), "cleanup")
    assert (foreign(box), sysctls(box)) == (before, values)
