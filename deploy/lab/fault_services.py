"""Faults of processes and whole machines: killed, frozen, stopped, without power."""

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bgplb_lab import control
from bgplb_lab.errors import RefusedByState
from bgplb_lab.world import World

Strike = Callable[[World, str, str | None], int]
Cure = Callable[[World, str, str | None], None]

END_TIMEOUT_S = 15.0


def cut_power(world: World, node: str, value: str | None) -> int:
    """All links down first, underlay first, then SIGKILL of everything.

    The links go on the machine's own side: one process there takes them all within a moment, and a machine without
    power has no kernel state worth keeping. If the processes died first, their sockets would be closed politely and
    the neighbours would know in milliseconds, as no power cut allows.
    """
    names = [port.name for port in world.machine(node).ports]
    stamp_ns = int(world.command(node, {"cmd": "links", "up": False, "names": names})["stamp_ns"])
    control.kill_machine(node, world.pid(node))
    return stamp_ns


def restore_power(world: World, node: str, value: str | None) -> None:
    """New, empty namespaces and an empty /run; the same disk."""
    world.power_on(node)


def reboot(world: World, node: str, value: str | None) -> int:
    """The power goes and is back at once."""
    stamp_ns = cut_power(world, node, value)
    world.power_on(node)
    return stamp_ns


def has(world: World, node: str, services: tuple[str, ...]) -> list[str]:
    """Those of the services that the machine has."""
    return [service.name for service in world.machine(node).services if service.name in services]


def killer(services: tuple[str, ...]) -> Strike:
    """SIGKILL those of the services that the machine has, and keep them down until healed."""

    def strike(world: World, node: str, value: str | None) -> int:
        stamp_ns = time.monotonic_ns()
        for name in has(world, node, services):
            world.command(node, {"cmd": "kill", "name": name, "hold": True})
        return stamp_ns

    return strike


def starter(services: tuple[str, ...]) -> Cure:
    """Start those of the services that the machine has."""

    def cure(world: World, node: str, value: str | None) -> None:
        for name in has(world, node, services):
            world.command(node, {"cmd": "start", "name": name})

    return cure


def signaller(services: tuple[str, ...], number: signal.Signals) -> Strike:
    """Send a signal to those of the services that the machine has; raises RefusedByState when one does not run."""

    def strike(world: World, node: str, value: str | None) -> int:
        stamp_ns = time.monotonic_ns()
        for name in has(world, node, services):
            state = world.command(node, {"cmd": "signal", "name": name, "number": int(number)})
            if state["pid"] is None:
                raise RefusedByState(f"{name} on {node} does not run: start it before it is sent {number.name}")
        return stamp_ns

    return strike


def freezer(services: tuple[str, ...]) -> Strike:
    """Stop the processes where they stand; their sockets stay open and nothing answers."""
    return signaller(services, signal.SIGSTOP)


def thawer(services: tuple[str, ...]) -> Cure:
    """Let them go on where they stood; one that died or was replaced meanwhile has nothing to go on with."""

    def cure(world: World, node: str, value: str | None) -> None:
        for name in has(world, node, services):
            world.command(node, {"cmd": "signal", "name": name, "number": int(signal.SIGCONT)})

    return cure


def stopper(service: str) -> Strike:
    """SIGTERM, as an operator stops a service, kept down; returns once it has ended."""

    def strike(world: World, node: str, value: str | None) -> int:
        stamp_ns = time.monotonic_ns()
        world.command(node, {"cmd": "stop", "name": service})
        control.wait_for(f"{service} on {node} to end", partial(stopped, world, node, service), END_TIMEOUT_S, 0.01)
        return stamp_ns

    return strike


def everywhere(machines: tuple[str, ...], service: str) -> tuple[Strike, Cure]:
    """Stop and start one service on all of these machines, as an operator would: with SIGTERM."""

    def strike(world: World, node: str, value: str | None) -> int:
        stamp_ns = time.monotonic_ns()
        for machine in machines:
            world.command(machine, {"cmd": "stop", "name": service})
        for machine in machines:
            what = f"{service} on {machine} to end"
            control.wait_for(what, partial(stopped, world, machine, service), END_TIMEOUT_S)
        return stamp_ns

    def cure(world: World, node: str, value: str | None) -> None:
        for machine in machines:
            world.command(machine, {"cmd": "start", "name": service})

    return strike, cure


def stopped(world: World, machine: str, service: str) -> bool | None:
    """True once the service has no process, None before."""
    states = world.command(machine, {"cmd": "status"})["services"]
    return True if all(state["pid"] is None for state in states if state["name"] == service) else None


def processes_in(first: int, program: str) -> list[int]:
    """Processes of that program in the machine whose first process is `first`; ids as seen from outside."""
    namespace = Path(f"/proc/{first}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            inside = (entry / "ns/pid").readlink() == namespace
            if inside and (entry / "comm").read_text(encoding="utf-8").strip() == program:
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def kill_wireguard(world: World, node: str, value: str | None) -> int:
    """Take every tunnel of the machine away: SIGKILL of the process behind it, or the interface if it is the kernel's.

    The processes are no services: an agent starts them and they outlive it, so they are found below the machine's
    process 1.
    """
    pids = processes_in(world.pid(node), "wireguard-go")
    devices = [] if pids else kernel_tunnels(world, node)
    if not pids and not devices:
        raise RefusedByState(f"no tunnel is on {node}: its agent has made none yet")
    stamp_ns = time.monotonic_ns()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for device in devices:
        world.inside(node, "ip", "link", "del", device)
    return stamp_ns


def kernel_tunnels(world: World, node: str) -> list[str]:
    """Our tunnel interfaces on the machine that the kernel's own WireGuard made."""
    links = json.loads(world.inside(node, "ip", "-d", "-j", "link", "show", "type", "wireguard") or "[]")
    return [str(link["ifname"]) for link in links if str(link.get("ifalias", "")).startswith("bgplb:")]
