"""The fault of a clock: the time of day of one machine's daemons jumps; what they count with goes on.

No namespace has a CLOCK_REALTIME of its own (time_namespaces(7) has only the clocks that count), and the machine's must
not be touched. So libfaketime stands between the daemon and its C library for as long as the fault lasts: the daemon
is started anew with it, at the right time, and then, while it runs, its time of day jumps.
"""

import time
from functools import partial
from pathlib import Path

from bgplb_lab import control
from bgplb_lab.errors import MissingPrerequisite
from bgplb_lab.topology import Service
from bgplb_lab.world import World

WAYS = {"+1h": "+3600", "-1h": "-3600"}
"""Where the clock may jump, and in seconds."""
RIGHT = "+0"
DAEMONS = ("edge-agent", "node-agent", "orchestrator")
FILE = "/run/lab/clock"
READ_EVERY_S = 1
AGAIN_TIMEOUT_S = 20.0


def library() -> str:
    """Where libfaketime is; raises MissingPrerequisite where it is not."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise MissingPrerequisite("libfaketime is missing: `make setup` installs it")
    return str(found[0])


def daemons(world: World, node: str) -> list[Service]:
    """The services of the machine whose clock is moved. BIRD and WireGuard have their own ways to ask the kernel."""
    return [service for service in world.machine(node).services if service.name in DAEMONS]


def log_size(world: World, node: str, service: Service) -> int:
    """Bytes of what the service has logged."""
    path = world.log_folder(node) / f"{service.name}.log"
    return path.stat().st_size if path.exists() else 0


def at_work(world: World, node: str, service: Service, before: int) -> bool | None:
    """True once a service that was started anew is there: its first word comes when it is, and stands in its log."""
    with (world.log_folder(node) / f"{service.name}.log").open("rb") as log:
        log.seek(before)
        said = log.read()
    word = b'"registered"' if service.name.endswith("agent") else b'"started"'
    return True if word in said else None


def start_anew(world: World, node: str, service: Service, command: tuple[str, ...]) -> None:
    """Put this command in the service's place, as a crash and a start would, and wait until it is at work."""
    before = log_size(world, node, service)
    world.command(node, {"cmd": "kill", "name": service.name, "hold": True})

    def ended() -> bool | None:
        states = world.command(node, {"cmd": "status"})["services"]
        return True if all(s["pid"] is None for s in states if s["name"] == service.name) else None

    control.wait_for(f"{service.name} on {node} to end", ended, AGAIN_TIMEOUT_S, 0.02)
    argv = {"name": service.name, "argv": command, "restart_after_s": service.restart_after_s}
    world.command(node, {"cmd": "add", "service": argv})
    there = partial(at_work, world, node, service, before)
    control.wait_for(f"{service.name} on {node} to be back", there, AGAIN_TIMEOUT_S)


def set_clock(world: World, node: str, offset: str) -> int:
    """Move the clock and wait until the daemons have read of it; answers a stamp just before."""
    stamp_ns = time.monotonic_ns()
    world.path_in(node, FILE).write_text(f"{offset}\n", encoding="utf-8")
    time.sleep(READ_EVERY_S + 0.1)
    return stamp_ns


def jump(world: World, node: str, value: str | None) -> int:
    """Start the machine's daemons under a clock that can be moved, and move it."""
    preload = library()
    world.path_in(node, FILE).write_text(f"{RIGHT}\n", encoding="utf-8")
    environment = (
        f"LD_PRELOAD={preload}",
        f"FAKETIME_TIMESTAMP_FILE={FILE}",
        f"FAKETIME_CACHE_DURATION={READ_EVERY_S}",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "FAKETIME_DISABLE_SHM=1",
    )
    for service in daemons(world, node):
        start_anew(world, node, service, ("env", *environment, *service.command))
    return set_clock(world, node, WAYS[value or ""])


def jump_back(world: World, node: str, value: str | None) -> None:
    """The clock is right again; then the daemons are started anew with no hand at it."""
    set_clock(world, node, RIGHT)
    for service in daemons(world, node):
        start_anew(world, node, service, service.command)
