"""The real daemons under each fault, with every packet counted. One lab for all; each test leaves it healthy."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bgplb_lab import control, faults, observe
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.fault_services import processes_in
from bgplb_lab.probes import Prober, ProbeRun, RouteWatch
from bgplb_lab.scenario import (
    EDGE,
    MOVE_TIMEOUT_S,
    OWNER,
    cut_and_return,
    drain_back,
    move_pool,
    settled_at_owner,
    wait_for_move,
)
from bgplb_lab.topology import FIRST, Family
from bgplb_lab.world import World

from tests.lab.standing import standing

LAB_ID = f"f{os.getpid()}"
OTHER = "gw-b"
QUIET_PROBES = 500
WAITING_PROBES = 350


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    world = World(LAB_ID, print)
    with standing(world):
        yield world


@pytest.fixture
def before(lab: World) -> dict[str, Any]:
    """The pool healthy at its usual owner, with a ready standby."""
    return settled_at_owner(lab, "a test begins")


def went(lab: World, before: dict[str, Any]) -> tuple[str, ...]:
    """The states entered since `before`."""
    return observe.states_since(observe.pool(lab), observe.last_seq(before))


def nothing_lost(run: ProbeRun) -> None:
    """Every probe answered; a failure names the numbers."""
    lost = [number for number, arrived in enumerate(run.arrived_ns) if arrived is None]
    assert lost == [], f"{len(lost)} of {len(run.sent_ns)} lost, {run.counts}"


def test_what_must_not_wait_for_a_processor_is_let_through(lab: World, before: dict[str, Any]) -> None:
    """BIRD, the agent, and the tunnel's process that the agent has detached from itself."""
    wanted = max(-20, FIRST + os.getpriority(os.PRIO_PROCESS, 0))
    pids = {name: processes_in(lab.pid(OWNER), name) for name in ("bird", "wireguard-go", "bgplb")}
    for name, found in pids.items():
        assert found, f"no {name} on {OWNER}"
        for pid in found:
            assert os.getpriority(os.PRIO_PROCESS, pid) == wanted, name
            group = Path(f"/proc/{pid}/autogroup")
            if group.exists():
                assert group.read_text().split()[-1] == str(wanted), f"{name}'s session"


def test_a_pod_that_has_to_wait_answers_late_and_loses_nothing(lab: World, before: dict[str, Any]) -> None:
    """Else a machine that is busy for a moment would look like a network that loses packets.

    A socket as it comes has room for 256 probes. Of a thousand answers at once the network itself would drop some.
    """
    prober = Prober(lab, family=Family.IPV4)
    prober.wait_until(QUIET_PROBES)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        lab.command("worker-1", {"cmd": "signal", "name": "echo-udp", "number": int(number)})
        prober.wait_until(prober.due_now() + WAITING_PROBES)
    run = prober.stop()
    nothing_lost(run)
    assert run.counts.late > 256


def test_a_power_cut_moves_the_pool_once_and_its_return_moves_nothing(lab: World, before: dict[str, Any]) -> None:
    watch = RouteWatch(lab, EDGE)
    cut = cut_and_return(lab, watch, before, lambda: None)
    watch.stop()
    assert observe.states_since(cut.after, observe.last_seq(before)) == UNPLANNED
    assert cut.after["epoch"] > before["epoch"]
    assert cut.steering.routes == cut.steering.allowed == (OTHER,)
    assert cut.floor_ms is not None
    # The probes' sender is as late as this machine makes it; what remains is compared with the floor of the same cut.
    assert cut.outage.outage_ms - cut.outage.sched_gap_ms <= 1.3 * cut.floor_ms
    assert cut.outage.outage_ms >= 0.5 * cut.floor_ms
    assert observe.states_since(cut.returned, observe.last_seq(cut.after)) == ()
    assert cut.recovery.lost == 0


def test_a_drain_loses_nothing(lab: World) -> None:
    machine = observe.wait_settled(lab, MOVE_TIMEOUT_S)
    if machine["owner"] == OWNER:
        move_pool(lab, OTHER, "a test")
    drain = drain_back(lab, 4_000, QUIET_PROBES)
    assert drain.counts.sent == 4_000
    assert drain.counts.lost == 0
    assert observe.left_on(lab, OTHER, OWNER) == ()


def test_what_is_left_of_a_pool_is_found(lab: World, before: dict[str, Any]) -> None:
    # The owner has everything of its pool; the same look at it after it lost the pool must find nothing.
    left = " ".join(observe.left_on(lab, OWNER, OTHER))
    assert "BIRD still has" in left
    for what in ("steers to", "believes", "hears"):
        assert f"the edge {what} {OWNER}" in left
    assert observe.left_on(lab, OTHER, OWNER) == ()


def test_a_link_cut_moves_the_pool_and_leaves_nothing_behind(lab: World, before: dict[str, Any]) -> None:
    faults.strike(lab, "link-cut", OWNER)
    wait_for_move(lab, OWNER)
    assert went(lab, before) == UNPLANNED
    faults.heal(lab, "link-cut", OWNER)
    observe.wait_settled(lab, MOVE_TIMEOUT_S, OTHER)
    assert went(lab, before) == UNPLANNED
    assert observe.left_on(lab, OWNER, OTHER) == ()


def test_a_dead_bird_on_the_active_costs_one_planned_move_and_no_packet(lab: World, before: dict[str, Any]) -> None:
    prober = Prober(lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(lab, "bird-kill", OWNER)
    after = wait_for_move(lab, OWNER)
    faults.heal(lab, "bird-kill", OWNER)
    observe.wait_settled(lab, MOVE_TIMEOUT_S, OTHER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    nothing_lost(prober.stop())
    states = observe.states_since(after, observe.last_seq(before))
    assert states[0] == "Draining"
    assert states[-1] == "ActiveHealthy"
    assert went(lab, before) == states


def test_a_dead_agent_on_the_active_costs_no_packet_and_no_move(lab: World, before: dict[str, Any]) -> None:
    prober = Prober(lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(lab, "agent-kill", OWNER)
    control.wait_for("the pool to be suspect", lambda: suspect(lab), 20.0, 0.2)
    faults.heal(lab, "agent-kill", OWNER)
    observe.wait_settled(lab, MOVE_TIMEOUT_S, OWNER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    nothing_lost(prober.stop())
    assert went(lab, before) == ()


def suspect(lab: World) -> bool | None:
    """True once the pool says that it can't see its owner's agent."""
    conditions = [str(condition) for condition in observe.pool(lab)["conditions"]]
    return True if any("Suspect" in condition for condition in conditions) else None


def test_a_dead_edge_agent_costs_no_packet_and_no_move(lab: World, before: dict[str, Any]) -> None:
    prober = Prober(lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(lab, "agent-kill", EDGE)
    prober.wait_until(prober.due_now() + 3 * QUIET_PROBES)
    faults.heal(lab, "agent-kill", EDGE)
    observe.wait_settled(lab, MOVE_TIMEOUT_S, OWNER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    nothing_lost(prober.stop())
    assert went(lab, before) == ()


def leader(lab: World) -> str | None:
    """Name of the leading orchestrator, as a replica sees it."""
    found = observe.replica(lab, {"cmd": "status"})["leader"]
    return None if found is None else str(found["name"])


def test_a_dead_leader_is_followed_and_costs_no_packet(lab: World, before: dict[str, Any]) -> None:
    first = leader(lab)
    assert first is not None
    prober = Prober(lab)
    prober.wait_until(QUIET_PROBES)
    began = time.monotonic()
    faults.strike(lab, "orchestrator-kill", first)

    def another() -> str | None:
        name = leader(lab)
        return name if name not in (None, first) else None

    control.wait_for("another leader", another, 10.0)
    print(f"another orchestrator leads {time.monotonic() - began:.2f} s after the leader's death")
    faults.heal(lab, "orchestrator-kill", first)
    observe.wait_settled(lab, MOVE_TIMEOUT_S, OWNER)
    nothing_lost(prober.stop())
    assert went(lab, before) == ()


def test_without_orchestrators_and_then_etcd_traffic_goes_on(lab: World, before: dict[str, Any]) -> None:
    prober = Prober(lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(lab, "orchestrators-stop", "all")
    prober.wait_until(prober.due_now() + 2 * QUIET_PROBES)
    faults.strike(lab, "etcd-stop", "all")
    prober.wait_until(prober.due_now() + 8 * QUIET_PROBES)
    faults.heal(lab, "etcd-stop", "all")
    faults.heal(lab, "orchestrators-stop", "all")
    observe.wait_settled(lab, 3 * MOVE_TIMEOUT_S, OWNER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    nothing_lost(prober.stop())
    assert went(lab, before) == ()
