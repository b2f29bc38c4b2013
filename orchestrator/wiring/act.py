"""The agents' parts, put together."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from birdctl.apply import Applier
from birdctl.client import BirdClient
from birdctl.commands import Bird
from dataplane.errors import FeatureMissing
from dataplane.kernel import LinuxKernel
from dataplane.keys import ensure_private_key, parking_key
from dataplane.netlink import Netlink
from dataplane.nft import Nft
from dataplane.probe_namespace import ProbeNamespace
from dataplane.reach import Reach
from dataplane.sysctl import Sysctls, SysctlStore
from dataplane.wireguard import WireGuard
from dataplane.wireguard_kernel import KernelWireGuard, kernel_has_wireguard, made_otherwise
from dataplane.wireguard_uapi import UserspaceWireGuard
from fsm.records import AgentRecord
from orchestrator.agents.edge import EdgeAgent
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.instance import Instance
from orchestrator.agents.journal import EdgeJournal, journal_of
from orchestrator.agents.link import AgentLink, Registration
from orchestrator.agents.metrics import CountedLog
from orchestrator.agents.node import NodeAgent
from orchestrator.agents.node_state import NodeState
from orchestrator.agents.sessions import Sessions
from orchestrator.agents.statefile import load, save
from orchestrator.clock import BootClock
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.config.sections import Agent
from orchestrator.http import HttpServer
from orchestrator.store.heartbeat import Heartbeat
from orchestrator.store.keys import Keys
from orchestrator.store.lease import Session
from orchestrator.store.opening import open_store
from orchestrator.store.port import Store
from orchestrator.wiring.hardening import make_folder
from orchestrator.wiring.memory import STORE_STATE, recollection
from orchestrator.wiring.metrics import agent_metrics
from orchestrator.wiring.possession import take_network
from orchestrator.wiring.process import DONE, VERSION, first_end, new_id, settle_memory, until_signalled
from orchestrator.wiring.registry import registry_of

EDGE_STATE, NODE_STATE = "edge.json", "node.json"
BIRD_TIMEOUT_S = 1.0


@dataclass(slots=True)
class Machine:
    """What an agent of either kind stands on."""

    instance: Instance
    network: socket.socket
    public_key: str
    kernel: LinuxKernel
    wireguard: WireGuard
    bird: Bird
    applier: Applier


def sysctls(config: Agent) -> Sysctls:
    """Sysctls that remember what they were before."""
    return Sysctls(store=SysctlStore(config.state_dir / "sysctls.json"))


async def wireguard_for(config: Agent, netlink: Netlink, namespace: str | None = None) -> WireGuard:
    """The back end that the configuration asks for; `auto` takes the kernel's where it is.

    But a module that was loaded since must not cost an agent the tunnels that wireguard-go made: `auto` keeps to those.
    `netlink` must speak to the same namespace.
    """
    backend, prefix = config.wireguard.backend, config.wireguard.interface_prefix
    if backend == "userspace":
        return UserspaceWireGuard(netlink, namespace)
    if await kernel_has_wireguard(netlink, f"{prefix}test"):
        kernel = KernelWireGuard(netlink, namespace)
        if backend == "kernel" or not await made_otherwise(netlink, kernel, prefix):
            return kernel
        await kernel.close()
    if backend == "kernel":
        raise FeatureMissing("this kernel has no WireGuard: load the module, or set wireguard.backend to userspace")
    return UserspaceWireGuard(netlink, namespace)


async def machine(config: Agent, clock: BootClock) -> Machine:
    """Take possession: the instance's lock, the network, the key, kernel, BIRD's files. Raises one error that says
    what fails.
    """
    instance, network = Instance(config.state_dir, new_id), take_network()
    key = ensure_private_key(config.wireguard.private_key_file)
    make_folder(config.bird.config_dir)
    netlink = Netlink()
    bird = Bird(BirdClient(config.bird.socket, timeout_s=BIRD_TIMEOUT_S))
    applier = Applier(bird, clock, config_file=config.bird.config_file, announce_file=config.bird.announce_file)
    kernel = LinuxKernel(netlink, Nft(), sysctls(config))
    return Machine(instance, network, key.public, kernel, await wireguard_for(config, netlink), bird, applier)


def link(
    config: Agent,
    store: Store,
    clock: BootClock,
    describe: Callable[[], AgentRecord],
    agent: EdgeAgent | NodeAgent,
    blank: Callable[[], bool] = lambda: False,
) -> AgentLink:
    """An agent's link with the store; renewal depends on the agent's own progress. `blank`: it has no past."""
    role = describe().role
    keys, log = Keys(config.etcd.prefix), structlog.get_logger()
    lease = config.lease
    session = Session(store, clock, lease.ttl_ms, lease.renew_every_ms, lambda: agent.turns)
    beat_key = keys.heartbeat(role, config.name)
    heartbeat = Heartbeat(store, beat_key, clock, lease.heartbeat_every_ms, session, lambda: agent.turns)
    registration = Registration(
        store=store,
        keys=keys,
        clock=clock,
        session=session,
        role=role,
        name=config.name,
        describe=describe,
        log=log.info,
        recollection=recollection(config.state_dir, keys, keys.desired_prefix(role, config.name), blank),
    )
    agent.link = AgentLink(
        store=store,
        keys=keys,
        clock=clock,
        session=session,
        heartbeat=heartbeat,
        registration=registration,
        role=role,
        name=config.name,
        on_desired=agent.on_desired,
    )
    return agent.link


async def edge_main(config: EdgeAgentConfig) -> int:
    """Run an edge agent until a signal; everything stays in place."""
    asked, clock, log = until_signalled(), BootClock(), CountedLog(structlog.get_logger().info)
    parts = await machine(config, clock)
    path = config.state_dir / EDGE_STATE
    journal = EdgeJournal(path)
    state = journal.load(EdgeState(""))
    if not state.parking_key:
        state = EdgeState(parking_key())
        journal.save(state)
    monitor = Bird(BirdClient(config.bird.socket, timeout_s=BIRD_TIMEOUT_S, read_only=True))
    sessions = Sessions(monitor, clock, lambda gateway: agent.on_session(gateway))
    agent = EdgeAgent(
        config=config,
        instance=parts.instance.id,
        keys=Keys(config.etcd.prefix),
        clock=clock,
        kernel=parts.kernel,
        wireguard=parts.wireguard,
        sessions=sessions,
        applier=parts.applier,
        state=state,
        save=journal.save,
        log=log,
    )
    store = open_store(config.etcd, clock)

    def describe() -> AgentRecord:
        highest = agent.readings().fence.reserved_epoch
        return AgentRecord(config.name, "edge", parts.instance.id, VERSION, parts.public_key, highest_epoch=highest)

    link(config, store, clock, describe, agent, blank=lambda: not agent.readings().fence.floor)
    log("started", version=VERSION, instance=parts.instance.id)
    metrics = agent_metrics(agent, Keys(config.etcd.prefix), config.name, log.counts)
    await _serve(config, asked, agent, parts, store, registry_of(metrics))
    return DONE


async def node_main(config: NodeAgentConfig) -> int:
    """Run a node agent until a signal; it hands its pools over first, unless it is told to leave at once."""
    asked, clock, log = until_signalled(), BootClock(), CountedLog(structlog.get_logger().info)
    parts = await machine(config, clock)
    path = config.state_dir / NODE_STATE
    agent = NodeAgent(
        config=config,
        instance=parts.instance.id,
        keys=Keys(config.etcd.prefix),
        clock=clock,
        kernel=parts.kernel,
        wireguard=parts.wireguard,
        applier=parts.applier,
        reach=Reach(clock, source=config.lan.address, device=config.lan.interface),
        responder=ProbeNamespace(),
        state=load(path, NodeState, NodeState()),
        save=lambda value: save(path, value),
        log=log,
    )
    store = open_store(config.etcd, clock)
    record = AgentRecord(config.name, "node", parts.instance.id, VERSION, parts.public_key, config.lan.address)
    link(config, store, clock, lambda: record, agent)
    log("started", version=VERSION, instance=parts.instance.id)
    metrics = agent_metrics(agent, Keys(config.etcd.prefix), config.name, log.counts)
    await _serve(config, asked, agent, parts, store, registry_of(metrics))
    return DONE


async def _serve(
    config: Agent,
    asked: asyncio.Event,
    agent: EdgeAgent | NodeAgent,
    parts: Machine,
    store: Store,
    registry: CollectorRegistry,
) -> None:
    """Run the agent until it is asked to stop, or can't go on."""
    http = HttpServer(config.http.listen, registry, lambda: lacking(agent)) if config.http.listen else None
    running = asyncio.create_task(agent.run(), name="agent")
    try:
        if http is not None:
            await http.start()
        settle_memory()
        await first_end(asyncio.create_task(_asked(config, asked, agent), name="signal"), running)
    finally:
        if http is not None:
            await http.close()
        await parts.wireguard.close()
        await parts.kernel.close()
        await store.close()
        parts.instance.close()


def lacking(agent: EdgeAgent | NodeAgent) -> str:
    """What keeps an agent from doing its work, for /readyz; empty when nothing does."""
    of_store = (agent.link.refusal, agent.link.unsaved) if agent.link is not None else ()
    return "; ".join(text for text in (agent.lacking(), *of_store) if text)


async def _asked(config: Agent, asked: asyncio.Event, agent: EdgeAgent | NodeAgent) -> None:
    await asked.wait()
    if isinstance(agent, NodeAgent) and isinstance(config, NodeAgentConfig) and config.shutdown == "drain":
        again = asyncio.create_task(_again(asked), name="second signal")
        leave = asyncio.create_task(agent.leave(), name="leave")
        await asyncio.wait({again, leave}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        leave.cancel()


async def _again(asked: asyncio.Event) -> None:
    """A second signal ends the handover at once."""
    asked.clear()
    await asked.wait()


def state_files(config: Agent) -> tuple[Path, ...]:
    """Files of the agents' own in the state directory."""
    edge = config.state_dir / EDGE_STATE
    return (edge, journal_of(edge), config.state_dir / NODE_STATE, config.state_dir / STORE_STATE)
