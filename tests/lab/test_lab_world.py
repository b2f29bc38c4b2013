"""The lab's own mechanics on the real kernel: without our daemons, which have tests of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bgplb_lab import control, faults, topology
from bgplb_lab.errors import LabError, NotFound, RefusedByState
from bgplb_lab.etcdctl import etcdctl
from bgplb_lab.probes import Prober, RouteWatch
from bgplb_lab.world import World, port_name

from tests.lab.standing import need_prerequisites

LAB_ID = f"t{os.getpid()}"


def quiet(line: str) -> None:
    """The tests need no progress lines."""


def traces_in_own_namespace(world: World) -> list[str]:
    """Names of the lab that show in the machine's own network namespace, where none may."""
    commands = (["ip", "link"], ["ip", "rule"], ["ip", "route", "show", "table", "all"], ["ip", "netns"])
    seen = "".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands)
    ports = {port_name(machine.name, port) for machine in world.machines.values() for port in machine.ports}
    return sorted(mark for mark in {world.lab_id, *ports, *topology.bridges(world.machines.values())} if mark in seen)


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    need_prerequisites()
    world = World(LAB_ID, quiet)
    try:
        world.up(daemons=False)
        yield world
    finally:
        world.down()


def established(lab: World) -> bool | None:
    return True if "192.0.2.0/24" in lab.inside("transit", "ip", "route") else None


def service(lab: World, machine: str, name: str) -> dict[str, Any]:
    states = lab.command(machine, {"cmd": "status"})["services"]
    return next(dict(state) for state in states if state["name"] == name)


def test_the_transit_session_carries_the_aggregate(lab: World) -> None:
    control.wait_for("the aggregate at the transit", lambda: established(lab), 20.0)
    assert "default via 203.0.113.2" in lab.inside("edge-1", "ip", "route")


def test_gateways_reach_the_edge_through_their_nat(lab: World) -> None:
    # BGP's port is where the operator's BIRD listens: it closes a stranger's connection, but only after it was made.
    ask = f"import socket; print(socket.create_connection(('{topology.EDGE_ADDRESS}', 179), 3).getpeername()[0])"
    for gateway in topology.GATEWAYS:
        assert lab.inside(gateway, sys.executable, "-c", ask).strip() == topology.EDGE_ADDRESS
        masked = lab.inside(f"nat-{gateway[-1]}", "conntrack", "-L", "-p", "tcp", "--dport", "179")
        assert f"dst={lab.machine(f'nat-{gateway[-1]}').ports[0].addresses[0].split('/')[0]} " in masked


def test_three_etcd_members_agree(lab: World) -> None:
    def healthy() -> bool | None:
        try:
            etcdctl(lab, "put", "k", "v")
            text = etcdctl(lab, "get", "k")
        except LabError:
            return None
        return True if text.split() == ["k", "v"] else None

    control.wait_for("etcd to take a write", healthy, 20.0, 0.5)


def test_probes_through_the_service_see_exactly_the_cut(lab: World) -> None:
    # From the NAT box straight to the gateway: the service's DNAT, the LAN and the pod, without tunnel and edge.
    lab.inside("nat-a", "ip", "route", "replace", topology.SERVICE_ADDRESS, "via", "10.0.1.11")
    prober = Prober(lab, count=1600, machine="nat-a", family=topology.Family.IPV4)
    prober.wait_until(500)
    before_ns = time.monotonic_ns()
    cut_ns = faults.strike(lab, "link-cut", "worker-1")
    prober.wait_until(800)
    healing_ns = time.monotonic_ns()
    faults.heal(lab, "link-cut", "worker-1")
    run = prober.result()
    counts = run.counts
    assert before_ns <= cut_ns <= healing_ns
    assert counts.sent == 1600
    assert counts.outage_first is not None
    first_ns = run.sent_ns[counts.outage_first]
    # An echo that was under way when the link went is lost too; what was sent in the cut must be.
    in_the_cut = [n for n, at in enumerate(run.sent_ns) if cut_ns + 5_000_000 < at < healing_ns]
    assert in_the_cut and all(run.arrived_ns[n] is None for n in in_the_cut)
    assert cut_ns - 50_000_000 < first_ns < healing_ns
    assert counts.outage_ms >= len(in_the_cut) * counts.interval_ms
    assert run.arrived_ns[-1] is not None and run.arrived_ns[0] is not None


def test_the_route_listener_stamps_a_deletion_after_it_was_asked_for(lab: World) -> None:
    watch = RouteWatch(lab, "edge-1")
    prefix, table = "192.0.2.240/28", str(topology.SIGNAL_TABLE)
    lab.inside("edge-1", "ip", "route", "add", "unreachable", prefix, "table", table)
    before_ns = time.monotonic_ns()
    lab.inside("edge-1", "ip", "route", "del", "unreachable", prefix, "table", table)
    after_ns = time.monotonic_ns()
    stamp = control.wait_for(
        "the deletion", lambda: watch.first_after(before_ns, "del", topology.SIGNAL_TABLE, prefix), 5.0
    )
    assert before_ns < stamp < after_ns + 50_000_000
    assert watch.first_after(before_ns, "del", 254, prefix) is None
    watch.stop()


def test_a_power_cut_leaves_neighbours_and_the_disk_alone(lab: World) -> None:
    (lab.path_in("gw-b", "/run") / "in-memory").write_text("gone with the power")
    (lab.path_in("gw-b", "/var/lib/bgplb") / "on-disk").write_text("kept")
    before = lab.pids()
    stamp_ns = faults.strike(lab, "power-cut", "gw-b")
    assert stamp_ns < time.monotonic_ns()
    after = lab.pids()
    assert {name: pid for name, pid in before.items() if name != "gw-b"} == after
    assert "LOWER_UP" in lab.inside("nat-b", "ip", "link", "show", "in0")
    with pytest.raises(RefusedByState, match="gw-b"):
        lab.inside("gw-b", "true")
    with pytest.raises(RefusedByState, match="lasts already"):
        faults.strike(lab, "power-cut", "gw-b")
    faults.heal(lab, "power-cut", "gw-b")
    assert not (lab.path_in("gw-b", "/run") / "in-memory").exists()
    assert (lab.path_in("gw-b", "/var/lib/bgplb") / "on-disk").read_text() == "kept"
    assert "10.0.2.12/24" in lab.inside("gw-b", "ip", "addr", "show", "under0")


def test_a_link_cut_keeps_routes_and_processes(lab: World) -> None:
    routes, pid = lab.inside("worker-1", "ip", "-j", "addr"), service(lab, "worker-1", "echo-udp")["pid"]
    addresses = [(link["ifname"], [a["local"] for a in link["addr_info"]]) for link in json.loads(routes)]
    faults.strike(lab, "link-cut", "worker-1")
    seen = json.loads(lab.inside("worker-1", "ip", "-j", "addr"))
    assert [(link["ifname"], [a["local"] for a in link["addr_info"]]) for link in seen] == addresses
    assert "NO-CARRIER" in next(link["flags"] for link in seen if link["ifname"] == "lan0")
    faults.heal(lab, "link-cut", "worker-1")
    assert service(lab, "worker-1", "echo-udp")["pid"] == pid


def test_a_service_is_started_again_unless_it_is_held(lab: World) -> None:
    first = service(lab, "worker-1", "echo-tcp")
    lab.command("worker-1", {"cmd": "kill", "name": "echo-tcp", "hold": False})

    def again() -> int | None:
        state = service(lab, "worker-1", "echo-tcp")
        return state["pid"] if state["starts"] > first["starts"] else None

    assert control.wait_for("echo-tcp to start again", again, 10.0) != first["pid"]
    lab.command("worker-1", {"cmd": "kill", "name": "echo-tcp", "hold": True})
    time.sleep(1.5)
    held = service(lab, "worker-1", "echo-tcp")
    assert (held["pid"], held["held"], held["exit_status"]) == (None, True, -signal.SIGKILL)
    lab.command("worker-1", {"cmd": "start", "name": "echo-tcp"})
    assert service(lab, "worker-1", "echo-tcp")["pid"] is not None


def test_orphans_are_reaped(lab: World) -> None:
    detached = {"name": "parent", "argv": ["sh", "-c", "sleep 0.2 & exit 0"], "restart_after_s": None}
    lab.command("client", {"cmd": "add", "service": detached})

    def no_sleepers() -> bool | None:
        return True if "sleep" not in lab.inside("client", "ps", "-eo", "comm=") else None

    control.wait_for("the orphan to end and be reaped", no_sleepers, 5.0)


def test_a_program_that_is_absent_is_told_in_the_log(lab: World) -> None:
    absent = {"name": "absent", "argv": ["no-such-program"], "restart_after_s": None}
    assert lab.command("client", {"cmd": "add", "service": absent})["exit_status"] == 127
    assert "no-such-program does not start" in (lab.log_folder("client") / "absent.log").read_text()


def test_a_command_that_makes_no_sense_is_refused(lab: World) -> None:
    with pytest.raises(LabError, match="dance"):
        lab.command("client", {"cmd": "dance", "name": "absent"})
    with pytest.raises(NotFound, match="gw-z"):
        lab.pid("gw-z")
    with pytest.raises(NotFound, match="bird-kill"):
        faults.strike(lab, "bird-kill", "client")


def test_two_labs_stand_side_by_side(lab: World) -> None:
    own = lab.pids()
    other = World(f"{LAB_ID}b", quiet)
    try:
        other.up(daemons=False)
        with pytest.raises(RefusedByState, match="exists already"):
            other.up(daemons=False)
        assert set(other.pids()) == set(own)
        assert not set(other.pids().values()) & set(own.values())
        assert traces_in_own_namespace(other) == []
    finally:
        other.down()
    assert lab.pids() == own
    assert not other.exists()
    with pytest.raises(NotFound):
        other.down()


def test_a_lab_whose_maker_was_killed_is_removed_by_its_id(lab: World) -> None:
    crashed = World(f"{LAB_ID}c", quiet)
    program = "import sys; from bgplb_lab.world import World; World(sys.argv[1], print).up(daemons=False)"
    maker = subprocess.Popen([sys.executable, "-c", program, crashed.lab_id], stdout=subprocess.DEVNULL)
    try:
        control.wait_for("a first machine", lambda: crashed.pids() or None, 10.0, 0.01)
    finally:
        maker.kill()
        maker.wait()
        crashed.down()
    assert not crashed.exists()
    assert control.processes_of(crashed.specs_folder) == {}
    marker = crashed.lab_id.encode() + b"/"
    assert [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if marker in read(entry)] == []


def read(path: Path) -> bytes:
    """A file of /proc whose process may have gone."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
