"""Two edges, each with its own way to the owner: what becomes of packets when a way, an edge or a gateway is lost."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from bgplb_lab import control, faults, observe, topology
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.probes import Prober, ProbeRun, RouteWatch
from bgplb_lab.scenario import MOVE_TIMEOUT_S, OWNER, drain_back, move_pool, wait_for_move
from bgplb_lab.topology import Family
from bgplb_lab.world import World

from tests.lab.under_fault import DETECTION_MS, LONG_S, OTHER, QUIET_PROBES, condition, number_at, went, within

pytestmark = pytest.mark.chaos

EDGES = 2
FAMILY = Family.IPV4
FIRST, SECOND = topology.EDGES
TUNNELS = {FIRST: "bgplb-e0", SECOND: "bgplb-e1"}
ASKED = 1_000
BACKGROUND = 300
"""More packets than BFD and probes send through an idle tunnel while `ASKED` questions are asked."""
OWN_ADDRESS, OWN_PORT = "192.0.2.50", 9
"""Of the pool's upper half, answered by the gateway itself."""

ASK = """
import socket, sys, time
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
asking = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(0.5)
got = 0
for number in range(count):
    asking.sendto(b"x" * 16, (address, port))
    time.sleep(0.001)
    try:
        asking.setblocking(False)
        while asking.recv(64):
            got += 1
    except BlockingIOError:
        pass
asking.settimeout(0.5)
try:
    while got < count and asking.recv(64):
        got += 1
except TimeoutError:
    pass
print(got)
"""


def ask(lab: World, address: str, port: int = topology.UDP_PORT) -> int:
    """How many of `ASKED` questions are answered, one a millisecond."""
    numbers = (str(port), str(ASKED))
    text = lab.inside("client", lab.programs.python, "-I", "-S", "-c", ASK, address, *numbers, timeout_s=30.0)
    return int(text)


def sent(lab: World, gateway: str) -> dict[str, int]:
    """Packets that a gateway has sent to each edge."""
    links = json.loads(lab.inside(gateway, "ip", "-j", "-s", "link"))
    packets = {link["ifname"]: int(link["stats64"]["tx"]["packets"]) for link in links if "stats64" in link}
    return {edge: packets[device] for edge, device in TUNNELS.items()}


def answers_by(lab: World, address: str, port: int = topology.UDP_PORT) -> Mapping[str, int]:
    """Packets that the owner sends to each edge while questions to that address are asked and all are answered."""
    before = sent(lab, OWNER)
    assert ask(lab, address, port) == ASKED
    return {edge: count - before[edge] for edge, count in sent(lab, OWNER).items()}


def only_by(edge: str, answers: Mapping[str, int]) -> None:
    assert answers[edge] >= ASKED, answers
    assert all(count < BACKGROUND for other, count in answers.items() if other != edge), answers


@pytest.mark.parametrize("version", ["4", "6"])
def test_answers_leave_by_the_edge_that_was_asked(whole_lab: World, healthy: dict[str, Any], version: str) -> None:
    services = Family.BOTH.services(EDGES)
    only_by(FIRST, answers_by(whole_lab, services[version]))
    only_by(SECOND, answers_by(whole_lab, services[f"{version} by {SECOND}"]))


def test_the_gateways_own_answers_do_too(whole_lab: World, healthy: dict[str, Any]) -> None:
    """By source alone they would leave by the first edge: the mark of the connection comes before it."""
    own = whole_lab.programs.script("echo", "udp", str(OWN_PORT), OWN_ADDRESS)
    whole_lab.inside(OWNER, "ip", "addr", "add", f"{OWN_ADDRESS}/32", "dev", "lo")
    whole_lab.command(OWNER, {"cmd": "add", "service": {"name": "own", "argv": own, "restart_after_s": 1.0}})
    try:
        control.wait_for(
            "the gateway's own service to answer", lambda: ask(whole_lab, OWN_ADDRESS, OWN_PORT) or None, 10.0
        )
        only_by(SECOND, answers_by(whole_lab, OWN_ADDRESS, OWN_PORT))
    finally:
        whole_lab.command(OWNER, {"cmd": "kill", "name": "own", "hold": True})
        whole_lab.inside(OWNER, "ip", "addr", "del", f"{OWN_ADDRESS}/32", "dev", "lo")


def lost(run: ProbeRun, since_ns: int, until_ns: int) -> dict[str, int]:
    """Packets lost on each way among those sent between two stamps; the last were still under way and do not count."""
    part = run.cut(number_at(run, since_ns), number_at(run, until_ns - 50_000_000))
    return {path: counts.lost for path, counts in part.counts.families.items()}


def test_a_way_that_is_cut_is_a_partial_path_and_moves_nothing(whole_lab: World, healthy: dict[str, Any]) -> None:
    """What comes in by the edge that can't reach the owner is lost; the others' packets are not."""
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    t0_ns = faults.strike(whole_lab, "edge-link-cut", OWNER, SECOND)
    control.wait_for("PartialPath", lambda: condition(whole_lab, "PartialPath"), LONG_S, 0.1)
    assert condition(whole_lab, SECOND) and not condition(whole_lab, FIRST), observe.pool(whole_lab)["conditions"]
    time.sleep(2)
    assert went(whole_lab, healthy) == ()
    healing_ns = time.monotonic_ns()
    faults.heal(whole_lab, "edge-link-cut", OWNER, SECOND)
    machine = observe.wait_settled(whole_lab, LONG_S, OWNER)
    settled_ns = time.monotonic_ns()
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    run = prober.stop()
    while_cut, whole = lost(run, t0_ns + 50_000_000, healing_ns), lost(run, run.start_ns, run.sent_ns[-1])
    assert whole["4"] == 0 and while_cut[f"4 by {SECOND}"] >= 1_900
    assert set(lost(run, settled_ns, run.sent_ns[-1]).values()) == {0}
    assert went(whole_lab, healthy) == () and "PartialPath" not in str(machine["conditions"])


def test_a_drain_loses_nothing_at_either_edge(whole_lab: World, healthy: dict[str, Any]) -> None:
    move_pool(whole_lab, OTHER, "a test")
    observe.wait_settled(whole_lab, MOVE_TIMEOUT_S, OTHER)
    drain = drain_back(whole_lab, 4_000, QUIET_PROBES)
    assert drain.counts.sent == 4_000
    assert {path: counts.lost for path, counts in drain.counts.families.items()} == {"4": 0, f"4 by {SECOND}": 0}
    assert observe.steering(whole_lab).routes == observe.steering(whole_lab).allowed == (OWNER,)
    assert observe.left_on(whole_lab, OTHER, OWNER) == ()


def test_a_dead_edge_costs_its_own_traffic_and_no_failover(whole_lab: World, healthy: dict[str, Any]) -> None:
    """All comes in by the other until it is back; meanwhile the owner dies, and the edge finds the higher command."""
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(whole_lab, "power-cut", SECOND)
    control.wait_for("EdgeUnreachable", lambda: condition(whole_lab, "EdgeUnreachable"), LONG_S, 0.1)
    time.sleep(4)  # the transit provider has noticed as well: 5 x 300 ms of BFD
    rerouted_ns = time.monotonic_ns()
    watch = RouteWatch(whole_lab, FIRST)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    t0_ns = faults.strike(whole_lab, "power-cut", OWNER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    after = wait_for_move(whole_lab, OWNER)
    moved_ns = time.monotonic_ns()
    assert observe.states_since(after, observe.last_seq(healthy)) == UNPLANNED
    fell_ns = watch.first_after(t0_ns, "del", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX)
    watch.stop()
    faults.heal(whole_lab, "power-cut", SECOND)
    control.wait_for("edge-2 to be told", lambda: told(whole_lab), LONG_S, 0.1)
    faults.heal(whole_lab, "power-cut", OWNER)
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    run = prober.stop()
    assert lost(run, run.start_ns, t0_ns)["4"] == 0, "the other edge's packets did not notice"
    assert set(lost(run, rerouted_ns, t0_ns).values()) == {0}, "all came in by the other edge"
    outage = run.cut(number_at(run, t0_ns - 30_000_000), number_at(run, moved_ns)).counts
    within(outage, floor_ms(fell_ns, t0_ns), 1.3)
    assert went(whole_lab, healthy) == UNPLANNED
    assert observe.steering(whole_lab).routes == observe.steering(whole_lab).allowed == (OTHER,)


def floor_ms(fell_ns: int | None, t0_ns: int) -> float:
    """What the witnesses needed: BFD as measured, and a probe up to three intervals, which BFD may have undercut."""
    assert fell_ns is not None, "no floor was seen"
    return max((fell_ns - t0_ns) / 1e6, DETECTION_MS)


def told(lab: World) -> bool | None:
    """True once edge-2 sends to the new owner and to nobody else."""
    return True if observe.steering_at(lab, SECOND).routes == (OTHER,) else None


def test_an_edge_that_no_gateway_reaches_holds_up_no_failover(whole_lab: World, healthy: dict[str, Any]) -> None:
    """Its agent lives and is heard; its word on the gateways counts for nothing."""
    faults.strike(whole_lab, "one-way-cut", SECOND, "in")
    control.wait_for("PartialPath", lambda: condition(whole_lab, "PartialPath"), LONG_S, 0.1)
    time.sleep(2)
    assert went(whole_lab, healthy) == ()
    watch = RouteWatch(whole_lab, FIRST)
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    t0_ns = faults.strike(whole_lab, "power-cut", OWNER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    wait_for_move(whole_lab, OWNER)
    run = prober.stop()
    fell_ns = watch.first_after(t0_ns, "del", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX)
    watch.stop()
    faults.heal(whole_lab, "one-way-cut", SECOND, "in")
    faults.heal(whole_lab, "power-cut", OWNER)
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    assert went(whole_lab, healthy) == UNPLANNED
    within(run.counts.families["4"], floor_ms(fell_ns, t0_ns), 1.3)
    assert observe.steering(whole_lab).routes == (OTHER,)
