"""An agent that comes back without its disk, one that slept while its gateway died, and a tunnel that hangs."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from bgplb_lab import control, faults, observe
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.fault_services import processes_in
from bgplb_lab.probes import Prober
from bgplb_lab.scenario import EDGE, OWNER, wait_for_move
from bgplb_lab.world import World

from tests.freezing import freeze
from tests.lab.under_fault import LONG_S, OTHER, QUIET_PROBES, condition, moved, went

pytestmark = pytest.mark.chaos

BACK_S = 15.0
"""Until an installation without a past carries packets again: a lease, a handshake, and the tries in between."""


def lose_state(lab: World, node: str) -> Path:
    """What the agent keeps in its state directory is gone, its keys included."""
    folder = lab.disk_folder / node / "lib"
    assert any(folder.iterdir()), "there was something to lose"
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return folder


def reserved(machine: dict[str, Any]) -> int:
    """The highest number that was ever meant for the pool: its own, or that of its last plan."""
    return max(int(epoch) for epoch in (machine["epoch"], *(plan["epoch"] for plan in machine["plan"] or [])))


def test_an_edge_without_its_disk_is_commanded_anew_above_every_number(
    whole_lab: World, healthy: dict[str, Any]
) -> None:
    before = observe.wait_armed(whole_lab, LONG_S, OWNER)
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(whole_lab, "edge-agent-kill", EDGE)
    lose_state(whole_lab, EDGE)
    began = time.monotonic_ns()
    faults.heal(whole_lab, "edge-agent-kill", EDGE)

    def above() -> dict[str, Any] | None:
        machine = observe.pool(whole_lab)
        return machine if machine["epoch"] > reserved(before) else None

    control.wait_for("a number above all that were reserved", above, LONG_S, 0.1)
    after = observe.wait_settled(whole_lab, LONG_S, OWNER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    run = prober.stop()
    lost = [sent for sent, at in zip(run.sent_ns, run.arrived_ns, strict=True) if at is None]
    took_s = (lost[-1] - began) / 1e9 if lost else 0.0
    print(f"{len(lost)} packets lost, the last {took_s:.1f} s after the agent was started again")
    assert took_s <= BACK_S
    assert run.arrived_ns[-1] is not None
    assert went(whole_lab, before) == (), "nothing moved"
    assert after["edges"][EDGE]["epoch"] == after["epoch"], "and the edge obeys the new number"
    seen = observe.steering(whole_lab)
    assert (seen.routes, seen.allowed) == ((OWNER,), (OWNER,))


def test_a_gateway_of_an_old_name_and_another_key_is_a_clean_standby(whole_lab: World, healthy: dict[str, Any]) -> None:
    """A machine was replaced: it has the name of the dead one, and nothing else of it."""
    before = observe.pool(whole_lab)
    faults.strike(whole_lab, "power-cut", OWNER)
    wait_for_move(whole_lab, OWNER)
    folder = lose_state(whole_lab, OWNER)
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    faults.heal(whole_lab, "power-cut", OWNER)
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    assert prober.stop().counts.lost == 0
    assert any(folder.iterdir()), "it has a past again"
    assert went(whole_lab, before) == UNPLANNED
    assert observe.left_on(whole_lab, OWNER, OTHER) == ()


def test_an_edge_that_slept_while_the_owner_died_moves_the_pool_once_when_it_wakes(
    whole_lab: World, healthy: dict[str, Any]
) -> None:
    """Asleep it can't act and nobody can act for it. Awake it finds in one heap what happened, and asks first."""
    before = observe.wait_armed(whole_lab, LONG_S, OWNER)
    faults.strike(whole_lab, "agent-freeze", EDGE)
    control.wait_for("the edge to be missed", lambda: condition(whole_lab, "EdgeUnreachable"), LONG_S, 0.1)
    faults.strike(whole_lab, "power-cut", OWNER)
    time.sleep(4.0)  # longer than a lease
    assert went(whole_lab, before) == (), "nobody moves what the edge can't be told"
    assert observe.steering(whole_lab).routes == (OWNER,)
    faults.heal(whole_lab, "agent-freeze", EDGE)
    control.wait_for("the move", lambda: moved(whole_lab), LONG_S, 0.1)
    assert went(whole_lab, before) == UNPLANNED
    seen = observe.steering(whole_lab)
    assert (seen.routes, seen.allowed) == ((OTHER,), (OTHER,))
    faults.heal(whole_lab, "power-cut", OWNER)
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    assert went(whole_lab, before) == UNPLANNED


def tunnel_process(lab: World, node: str, gateway: str) -> int:
    """The process behind the tunnel to that gateway."""
    alias = f"bgplb:{gateway}"
    listed = json.loads(lab.inside(node, "ip", "-j", "link", "show"))
    device = next(link["ifname"] for link in listed if link.get("ifalias") == alias)
    found = (pid for pid in processes_in(lab.pid(node), "wireguard-go") if device in command_line(pid))
    return next(found)


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def test_a_tunnel_process_that_hangs_on_the_edge_keeps_no_pool_from_leaving(
    whole_lab: World, healthy: dict[str, Any]
) -> None:
    """Its interface is there, its socket takes what it is told, and nothing follows: no prefix can be taken from it."""
    before = observe.wait_armed(whole_lab, LONG_S, OWNER)
    pid = tunnel_process(whole_lab, EDGE, OWNER)
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    freeze(pid)
    try:
        prober.wait_until(prober.due_now() + 6 * QUIET_PROBES)
        run = prober.stop()
        outage_ms = run.counts.outage_ms
        print(f"outage {outage_ms:.0f} ms, {run.counts.lost} packets lost")
        assert 0 < outage_ms < 1000, "an answer of the hung process is not waited for"
        assert run.arrived_ns[-1] is not None
        assert observe.pool(whole_lab)["state"] != "ActiveHealthy", "nobody can confirm that the old one may not send"
    finally:
        os.kill(pid, signal.SIGCONT)
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    seen = observe.steering(whole_lab)
    assert (seen.routes, seen.allowed) == ((OTHER,), (OTHER,))
    assert went(whole_lab, before).count("ActiveHealthy") == 1
