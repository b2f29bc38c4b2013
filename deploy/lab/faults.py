"""The faults, each with its cure. A fault lasts until it is healed; what is broken is noted in the lab's state."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bgplb_lab import control, topology
from bgplb_lab.errors import NotFound, RefusedByState
from bgplb_lab.topology import FABRIC
from bgplb_lab.world import World, port_name

AGENT_SERVICES = ("edge-agent", "node-agent")


@dataclass(frozen=True)
class Fault:
    """A way to break a machine. `strike` answers CLOCK_MONOTONIC in ns just before the first effect."""

    name: str
    teaches: str
    strike: Callable[[World, str], int]
    cure: Callable[[World, str], None]
    targets: tuple[str, ...]
    one_target: bool = True


def cut_power(world: World, node: str) -> int:
    """All links down first, underlay first, then SIGKILL of everything.

    The links go on the machine's own side: one process there takes them all within a moment, and a machine without
    power has no kernel state worth keeping. If the processes died first, their sockets would be closed politely and
    the neighbours would know in milliseconds, as no power cut allows.
    """
    names = [port.name for port in world.machine(node).ports]
    stamp_ns = int(world.command(node, {"cmd": "links", "up": False, "names": names})["stamp_ns"])
    control.kill_machine(node, world.pid(node))
    return stamp_ns


def restore_power(world: World, node: str) -> None:
    """New, empty namespaces and an empty /run; the same disk."""
    world.power_on(node)


def ends(world: World, node: str) -> list[str]:
    """The fabric's ends of a machine's links, in the order of the cut."""
    return [port_name(node, port) for port in world.machine(node).ports]


def cut_links(world: World, node: str) -> int:
    """All links of the machine dead; its kernel state and processes live on.

    The links go on the fabric's side: taking an interface down on its own side would flush the routes over it, and
    this fault must leave the machine exactly as it was, only alone.
    """
    return int(world.command(FABRIC, {"cmd": "links", "up": False, "names": ends(world, node)})["stamp_ns"])


def restore_links(world: World, node: str) -> None:
    """Plug the cables in again."""
    world.command(FABRIC, {"cmd": "links", "up": True, "names": ends(world, node)})


def killer(services: tuple[str, ...]) -> Callable[[World, str], int]:
    """SIGKILL those of the services that the machine has, and keep them down until healed."""

    def strike(world: World, node: str) -> int:
        names = [service.name for service in world.machine(node).services if service.name in services]
        stamps = [world.command(node, {"cmd": "kill", "name": name, "hold": True})["stamp_ns"] for name in names]
        return int(stamps[0])

    return strike


def starter(services: tuple[str, ...]) -> Callable[[World, str], None]:
    """Start those of the services that the machine has."""

    def cure(world: World, node: str) -> None:
        for service in world.machine(node).services:
            if service.name in services:
                world.command(node, {"cmd": "start", "name": service.name})

    return cure


def everywhere(
    machines: tuple[str, ...], service: str
) -> tuple[Callable[[World, str], int], Callable[[World, str], None]]:
    """Stop and start one service on all of these machines, as an operator would: with SIGTERM."""

    def strike(world: World, node: str) -> int:
        stamp_ns = time.monotonic_ns()
        for machine in machines:
            world.command(machine, {"cmd": "stop", "name": service})
        for machine in machines:
            control.wait_for(f"{service} on {machine} to end", partial(stopped, world, machine, service), 15.0)
        return stamp_ns

    def cure(world: World, node: str) -> None:
        for machine in machines:
            world.command(machine, {"cmd": "start", "name": service})

    return strike, cure


def stopped(world: World, machine: str, service: str) -> bool | None:
    """True once the service has no process, None before."""
    states = world.command(machine, {"cmd": "status"})["services"]
    return True if all(state["pid"] is None for state in states if state["name"] == service) else None


STOP_ETCD, START_ETCD = everywhere(tuple(topology.ETCD), "etcd")
STOP_ORCHESTRATORS, START_ORCHESTRATORS = everywhere(topology.ORCHESTRATORS, "orchestrator")
WITH_BIRD = (*topology.GATEWAYS, *topology.EDGES)
OTHERS = ("client", "transit", "nat-a", "nat-b", "worker-1")
ANY_MACHINE = (*topology.GATEWAYS, *topology.EDGES, *topology.ORCHESTRATORS, *topology.ETCD, *OTHERS)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("power-cut", "all links down, then every process dies at once", cut_power, restore_power, ANY_MACHINE),
        Fault("link-cut", "all links dead; kernel state and processes live on", cut_links, restore_links, ANY_MACHINE),
        Fault("bird-kill", "our BIRD dies (SIGKILL)", killer(("bird",)), starter(("bird",)), WITH_BIRD),
        Fault("agent-kill", "the agent dies (SIGKILL)", killer(AGENT_SERVICES), starter(AGENT_SERVICES), WITH_BIRD),
        Fault(
            "orchestrator-kill",
            "one orchestrator dies (SIGKILL)",
            killer(("orchestrator",)),
            starter(("orchestrator",)),
            topology.ORCHESTRATORS,
        ),
        Fault("etcd-stop", "all etcd members stop", STOP_ETCD, START_ETCD, ("all",), one_target=False),
        Fault(
            "orchestrators-stop",
            "all orchestrators stop",
            STOP_ORCHESTRATORS,
            START_ORCHESTRATORS,
            ("all",),
            one_target=False,
        ),
    )
}


def find(name: str, node: str) -> Fault:
    """The fault of that name if it can strike there; raises NotFound saying what can."""
    fault = FAULTS.get(name)
    if fault is None:
        raise NotFound(f"no fault {name}; there are {', '.join(FAULTS)}")
    if node not in fault.targets:
        raise NotFound(f"{name} can't strike on {node}; it can on {', '.join(fault.targets)}")
    return fault


def strike(world: World, name: str, node: str) -> int:
    """Break something; answers the stamp of the first effect. Raises RefusedByState when it is broken already."""
    fault = find(name, node)
    with world.state() as state:
        if [name, node] in state["faults"]:
            raise RefusedByState(f"{name} on {node} lasts already: `bgplb lab heal {name} --on {node}`")
        # Noted first: a fault that was noted and did not strike is healed without harm, the other way is a lost one.
        state["faults"].append([name, node])
    return fault.strike(world, node)


def heal(world: World, name: str, node: str) -> None:
    """Mend it; raises RefusedByState when it isn't broken."""
    fault = find(name, node)
    with world.state() as state:
        if [name, node] not in state["faults"]:
            raise RefusedByState(f"{name} on {node} is not in force")
    fault.cure(world, node)
    with world.state() as state:
        state["faults"].remove([name, node])
