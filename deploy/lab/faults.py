"""The faults, as data. One that lasts does so until it is healed, and is noted in the lab's state; a moment is not."""

from collections.abc import Callable
from dataclasses import dataclass

from bgplb_lab import fault_clocks as clocks
from bgplb_lab import fault_links as links
from bgplb_lab import fault_services as services
from bgplb_lab import topology
from bgplb_lab.errors import NotFound, RefusedByState, Usage
from bgplb_lab.fault_services import Cure, Strike
from bgplb_lab.world import World


@dataclass(frozen=True)
class Value:
    """What a fault wants to be told besides the machine: one of `words`, or a whole number of percent."""

    name: str
    words: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """For people."""
        return ", ".join(self.words) if self.words else "a whole number from 1 to 100"

    def fits(self, text: str) -> bool:
        """Whether the text is one of the allowed values."""
        return text in self.words if self.words else text.isdecimal() and 1 <= int(text) <= 100


@dataclass(frozen=True)
class Fault:
    """A way to break a machine. `strike` answers CLOCK_MONOTONIC in ns just before the first effect.

    `cure` None: it is a moment, after which the daemons have to mend what it left.
    """

    name: str
    teaches: str
    strike: Strike
    cure: Cure | None
    targets: tuple[str, ...]
    value: Value | None = None

    @property
    def lasts(self) -> bool:
        """Whether it has to be healed."""
        return self.cure is not None


ORCHESTRATOR = ("orchestrator",)
EDGE_AGENT, AGENTS = ("edge-agent",), ("edge-agent", "node-agent")
ETCD, BIRD = ("etcd",), ("bird",)
STOP_ETCD, START_ETCD = services.everywhere(tuple(topology.ETCD), "etcd")
STOP_ORCHESTRATORS, START_ORCHESTRATORS = services.everywhere(topology.ORCHESTRATORS, "orchestrator")

MEMBERS = tuple(topology.ETCD)
WITH_BIRD = (*topology.GATEWAYS, *topology.EDGES)
NAT_BOXES = ("nat-a", "nat-b")
OTHERS = ("client", "transit", *NAT_BOXES, "worker-1")
MANAGED = (*WITH_BIRD, *topology.ORCHESTRATORS, *MEMBERS)
"""Machines on the management network."""
ANY_MACHINE = (*MANAGED, *OTHERS)
ON_LAN = (*topology.GATEWAYS, "worker-1")
WAY = Value("way", ("in", "out"))
PERCENT = Value("percent")
JUMP = Value("jump", tuple(clocks.WAYS))
WHICH_EDGE = Value("edge", topology.EDGES)
PEER = Value("other", (*MANAGED, *links.GROUPS))

killer, starter = services.killer, services.starter
freezer, thawer = services.freezer, services.thawer

EVERY_FAULT = (
    Fault(
        "power-cut",
        "all links down, then every process dies at once",
        services.cut_power,
        services.restore_power,
        ANY_MACHINE,
    ),
    Fault(
        "link-cut",
        "all links dead; kernel state and processes live on",
        links.cut_links,
        links.restore_links,
        ANY_MACHINE,
    ),
    Fault("cluster-link-cut", "only the cluster LAN is gone", links.cut_lan, links.restore_lan, ON_LAN),
    Fault(
        "one-way-cut",
        "tunnels: no packet in, or none out",
        links.cut_one_way,
        links.restore_one_way,
        WITH_BIRD,
        WAY,
    ),
    Fault(
        "edge-link-cut",
        "tunnel: no packet between the gateway and one edge",
        links.cut_edge_link,
        links.restore_edge_link,
        topology.GATEWAYS,
        WHICH_EDGE,
    ),
    Fault("loss", "tunnels: so many percent lost each way", links.lose, links.stop_losing, WITH_BIRD, PERCENT),
    Fault("nat-remap", "the NAT box forgets all and takes other ports", links.remap, None, NAT_BOXES),
    Fault(
        "wireguard-down",
        "the machine's tunnels are gone: their processes killed",
        services.kill_wireguard,
        None,
        WITH_BIRD,
    ),
    Fault("bird-kill", "our BIRD dies (SIGKILL)", killer(BIRD), starter(BIRD), WITH_BIRD),
    Fault("bird-freeze", "our BIRD stands still", freezer(BIRD), thawer(BIRD), WITH_BIRD),
    Fault("agent-kill", "the agent dies (SIGKILL)", killer(AGENTS), starter(AGENTS), WITH_BIRD),
    Fault("agent-freeze", "the agent stands still", freezer(AGENTS), thawer(AGENTS), WITH_BIRD),
    Fault("edge-agent-kill", "the edge's agent dies", killer(EDGE_AGENT), starter(EDGE_AGENT), topology.EDGES),
    Fault("edge-bird-kill", "the edge's own BIRD of ours dies", killer(BIRD), starter(BIRD), topology.EDGES),
    Fault("edge-reboot", "the edge loses its power and has it back at once", services.reboot, None, topology.EDGES),
    Fault(
        "orchestrator-kill",
        "one orchestrator dies (SIGKILL)",
        killer(ORCHESTRATOR),
        starter(ORCHESTRATOR),
        topology.ORCHESTRATORS,
    ),
    Fault(
        "orchestrator-term",
        "one orchestrator is asked to end (SIGTERM)",
        services.stopper("orchestrator"),
        starter(ORCHESTRATOR),
        topology.ORCHESTRATORS,
    ),
    Fault(
        "orchestrator-freeze",
        "one orchestrator stands still",
        freezer(ORCHESTRATOR),
        thawer(ORCHESTRATOR),
        topology.ORCHESTRATORS,
    ),
    Fault("orchestrators-stop", "all orchestrators stop", STOP_ORCHESTRATORS, START_ORCHESTRATORS, ("all",)),
    Fault("etcd-kill", "one etcd member dies (SIGKILL)", killer(ETCD), starter(ETCD), MEMBERS),
    Fault("etcd-freeze", "one etcd member stands still", freezer(ETCD), thawer(ETCD), MEMBERS),
    Fault("etcd-stop", "all etcd members stop", STOP_ETCD, START_ETCD, ("all",)),
    Fault(
        "clock-jump",
        "the daemons' time of day jumps, while they run",
        clocks.jump,
        clocks.jump_back,
        (*WITH_BIRD, *topology.ORCHESTRATORS),
        JUMP,
    ),
    Fault("partition", "two machines can't hear each other on management", links.split, links.join, MANAGED, PEER),
)
FAULTS = {fault.name: fault for fault in EVERY_FAULT}


def find(name: str, node: str) -> Fault:
    """The fault of that name if it can strike there; raises NotFound saying what can."""
    fault = FAULTS.get(name)
    if fault is None:
        raise NotFound(f"no fault {name}; there are {', '.join(FAULTS)}")
    if node not in fault.targets:
        raise NotFound(f"{name} can't strike on {node}; it can on {', '.join(fault.targets)}")
    return fault


def check_value(fault: Fault, node: str, value: str | None) -> None:
    """Raise Usage unless the fault can be told this value there."""
    wanted = fault.value
    if wanted is None:
        if value is not None:
            raise Usage(f"{fault.name} takes no value, and {value} was given")
        return
    if value is None or not wanted.fits(value):
        raise Usage(f"{fault.name} needs its {wanted.name}, {value or 'nothing'} was given; allowed: {wanted.allowed}")
    if value == node:
        raise Usage(f"{fault.name} is between two: {node} can't be both")


def entry(name: str, node: str, value: str | None) -> list[str]:
    """How a fault in force is noted in the lab's state."""
    return [name, node] if value is None else [name, node, value]


def command_line(verb: str, name: str, node: str, value: str | None) -> str:
    """The command that strikes or heals it."""
    return f"bgplb lab {verb} {' '.join(part for part in (name, value) if part)} --on {node}"


def strike(world: World, name: str, node: str, value: str | None = None) -> int:
    """Break something; answers the stamp of the first effect.

    Raises RefusedByState when it is broken already, NotFound and Usage for what can't be.
    """
    fault = find(name, node)
    check_value(fault, node, value)
    if not fault.lasts:
        return fault.strike(world, node, value)
    noted = entry(name, node, value)
    with world.state() as state:
        if noted in state["faults"]:
            raise RefusedByState(f"{name} on {node} lasts already: `{command_line('heal', name, node, value)}`")
        # Noted first: a fault that was noted and did not strike is healed without harm, the other way is a lost one.
        state["faults"].append(noted)
    return fault.strike(world, node, value)


def in_force(world: World) -> list[tuple[str, str, str | None]]:
    """The faults that last: name, machine, value."""
    with world.state() as state:
        return [(noted[0], noted[1], noted[2] if len(noted) > 2 else None) for noted in state["faults"]]


def heal(world: World, name: str, node: str, value: str | None = None) -> None:
    """Mend it; raises RefusedByState when it isn't broken. Without `value`, the one of that name there."""
    fault = find(name, node)
    if fault.cure is None:
        raise RefusedByState(f"{name} is a moment and over; what it left, the daemons mend")
    found = [v for n, m, v in in_force(world) if (n, m) == (name, node) and value in (None, v)]
    if not found:
        raise RefusedByState(f"{name} on {node} is not in force")
    if len(found) > 1:
        raise RefusedByState(f"{name} on {node} is in force with {', '.join(map(str, found))}: say which")
    fault.cure(world, node, found[0])
    with world.state() as state:
        state["faults"].remove(entry(name, node, found[0]))


def heal_all(world: World, say: Callable[[str], None]) -> None:
    """Mend everything that is in force, the newest first."""
    for name, node, value in reversed(in_force(world)):
        say(command_line("heal", name, node, value))
        heal(world, name, node, value)
