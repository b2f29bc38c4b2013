"""Both families through the real daemons: a prefix that joins, a family that breaks, sizes and fragments."""

import json
from typing import Any

import pytest
from bgplb_lab import configs, control, observe, topology
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.errors import LabError
from bgplb_lab.probes import Prober
from bgplb_lab.scenario import EDGE, MOVE_TIMEOUT_S, OWNER, move_pool, wait_for_move
from bgplb_lab.topology import Family
from bgplb_lab.world import World

from tests.lab.under_fault import OTHER, QUIET_PROBES, went

Settled = dict[str, Any]


def without_ipv6() -> str:
    """The pool's manifest with its IPv4 prefix alone."""
    spec = {name: value for name, value in configs.POOL["spec"].items() if name != "aggregateIPv6"}
    return configs.to_yaml({**configs.POOL, "spec": {**spec, "addresses": [topology.POOL_PREFIX]}})


def state_pool(lab: World, text: str) -> None:
    """Let the manifests say this of the pool."""
    path = lab.disk_folder / "manifests" / f"{topology.POOL}.yaml"
    draft = path.with_suffix(".new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def announced(lab: World, prefix: str) -> bool | None:
    """True while the edge hears this prefix."""
    family = "-6" if ":" in prefix else "-4"
    try:
        text = lab.inside(EDGE, "ip", family, "route", "show", "table", str(topology.SIGNAL_TABLE), "exact", prefix)
    except LabError as absent:
        if "does not exist" not in str(absent):
            raise
        return None
    return True if text.strip() else None


# ---- joining and leaving -----------------------------------------------------------------------------------------


def test_an_ipv6_prefix_leaves_and_joins_a_pool_that_is_in_use(whole_lab: World, healthy: Settled) -> None:
    prober = Prober(whole_lab, family=Family.IPV4)
    prober.wait_until(QUIET_PROBES)
    state_pool(whole_lab, without_ipv6())

    def gone() -> bool | None:
        return None if announced(whole_lab, topology.POOL_PREFIX_IPV6) else True

    control.wait_for("the IPv6 prefix to go", gone, MOVE_TIMEOUT_S, 0.1)
    prober.wait_until(prober.due_now() + 4 * QUIET_PROBES)
    control.wait_for("only IPv4 to be steered", lambda: only_ipv4(whole_lab), MOVE_TIMEOUT_S, 0.1)
    state_pool(whole_lab, configs.to_yaml(configs.POOL))
    there = "the IPv6 prefix to come"
    control.wait_for(there, lambda: announced(whole_lab, topology.POOL_PREFIX_IPV6), MOVE_TIMEOUT_S, 0.1)
    prober.wait_until(prober.due_now() + 4 * QUIET_PROBES)
    observe.wait_settled(whole_lab, MOVE_TIMEOUT_S, OWNER)
    assert prober.stop().counts.lost == 0
    assert went(whole_lab, healthy) == ()
    control.wait_for("both to be steered", lambda: both_at(whole_lab, OWNER), MOVE_TIMEOUT_S, 0.1)


def only_ipv4(lab: World) -> bool | None:
    seen = observe.steering(lab)
    nobody = f"nobody for {topology.POOL_PREFIX_IPV6}"
    return True if seen.routes == seen.allowed == tuple(sorted((OWNER, nobody))) else None


def both_at(lab: World, gateway: str) -> bool | None:
    seen = observe.steering(lab)
    return True if seen.routes == seen.allowed == (gateway,) else None


# ---- one family broken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("protocol", "version"), [("ip6", "6"), ("ip", "4")])
def test_a_gateway_that_loses_one_family_loses_the_whole_pool(
    whole_lab: World, healthy: Settled, protocol: str, version: str
) -> None:
    rules = f"table {protocol} broken {{\n chain c {{\n type filter hook forward priority -10; policy drop;\n }}\n}}\n"
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    whole_lab.inside(OWNER, "nft", "-f", "-", stdin=rules)
    try:
        prober.wait_until(prober.due_now() + QUIET_PROBES)
        wait_for_move(whole_lab, OWNER)
        assert went(whole_lab, healthy) == UNPLANNED
        assert observe.steering(whole_lab).routes == observe.steering(whole_lab).allowed == (OTHER,)
    finally:
        whole_lab.inside(OWNER, "nft", "delete", "table", protocol, "broken")
    observe.wait_settled(whole_lab, MOVE_TIMEOUT_S, OTHER)
    counts = prober.stop().counts
    broken = counts.families[version]
    sound = counts.families["4" if version == "6" else "6"]
    # The probe alone decides, after five unanswered ones; the rest is the way through the leader and the sender's own.
    assert broken.outage_ms - counts.gap_in_outage_ms <= 3 * 5 * 50
    assert sound.lost <= 50, "the sound family loses only what was under way"


# ---- sizes -------------------------------------------------------------------------------------------------------

ASK = """
import json, socket, sys, time
address, udp, tcp = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
six = ":" in address
family, level = (socket.AF_INET6, socket.IPPROTO_IPV6) if six else (socket.AF_INET, socket.IPPROTO_IP)
discover, mtu = (23, 24) if six else (10, 14)

def asking(mode):
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setsockopt(level, discover, mode)
    made.connect((address, udp))
    made.settimeout(0.5)
    return made

def tries(made, size):
    for number in range(1, 7):
        try:
            made.send(bytes([number]) * size)
            while True:
                got = made.recv(65536)
                if got == bytes([number]) * size:
                    return number
        except OSError:
            pass
    return None

found, strict = {"refused": False}, asking(2)
for _ in range(20):
    try:
        strict.send(b"x" * 1400)
    except OSError as refused:
        found["refused"] = refused.errno == 90
        break
    time.sleep(0.1)
found["mtu"] = strict.getsockopt(level, mtu)
found["fitting"] = tries(asking(2), 1280 - (48 if six else 28))
found["fragments"] = tries(asking(1), 4000)
with socket.create_connection((address, tcp), timeout=5) as stream:
    stream.sendall(b"z" * 8000)
    got = b""
    while len(got) < 8000:
        got += stream.recv(65536)
found["tcp"] = len(got)
print(json.dumps(found))
"""


def ask(lab: World, version: str) -> dict[str, Any]:
    """What becomes of large packets to the service, with the client having forgotten what it knew of the path."""
    for family in ("-4", "-6"):
        lab.inside("client", "ip", family, "route", "flush", "cache")
    address = Family.BOTH.services()[version]
    ports = (str(topology.UDP_PORT), str(topology.TCP_PORT))
    text = lab.inside("client", lab.programs.python, "-I", "-S", "-c", ASK, address, *ports, timeout_s=30.0)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("version", ["4", "6"])
def test_large_packets_before_and_straight_after_a_move(whole_lab: World, healthy: Settled, version: str) -> None:
    for owner in (OWNER, OTHER):
        if owner == OTHER:
            move_pool(whole_lab, OTHER, "large packets")
        found = ask(whole_lab, version)
        print(f"IPv{version} through {owner}: {found}")
        assert found["mtu"] == 1280, "the edge says that a packet with DF is too big, and how big one may be"
        assert found["refused"], "after that the client's own kernel refuses it"
        assert found["fitting"] is not None, "what fits into the tunnel comes back whole, with DF"
        assert found["fragments"] is not None, "4,000 bytes come back, in fragments"
        assert found["tcp"] == 8000, "8,000 bytes over TCP, with the MSS of the tunnel"
