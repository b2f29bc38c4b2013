"""Removing from a machine all that an agent has made there, and nothing else."""

import structlog

from dataplane.diff import diff
from dataplane.kernel import LinuxKernel
from dataplane.model import TABLE_MAIN, KernelState
from dataplane.netlink import Netlink
from dataplane.nft import Nft
from dataplane.probe_namespace import ProbeNamespace
from fsm.desired import MAX_EDGES
from orchestrator.agents.instance import Instance
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.config.sections import Agent
from orchestrator.wiring.act import state_files, sysctls
from orchestrator.wiring.possession import take_network
from orchestrator.wiring.process import DONE, new_id


async def edge(config: EdgeAgentConfig) -> int:
    """Tunnels, steering routes, nft table, sysctls and files of an edge."""
    return await _clean(config, {TABLE_MAIN, config.tables.main}, None)


async def node(config: NodeAgentConfig) -> int:
    """Tunnels, answers, responder, nft table, sysctls and files of a gateway."""
    answers = range(config.tables.first, config.tables.first + MAX_EDGES)
    return await _clean(config, {TABLE_MAIN, *answers}, ProbeNamespace())


async def _clean(config: Agent, tables: set[int], responder: ProbeNamespace | None) -> int:
    """Raises InstanceError while an agent runs here: it would make everything anew, or lose what is its own."""
    log = structlog.get_logger()
    instance, network = Instance(config.state_dir, new_id), take_network()
    kernel = LinuxKernel(Netlink(), Nft(), sysctls(config))
    try:
        ops = diff(await kernel.netlink.read(sorted(tables)), KernelState())
        for op in ops:
            log.info("removing", what=str(op))
        await kernel.apply(ops)
        if responder is not None:
            await responder.remove(kernel.netlink)
        await kernel.nft.ensure(None)
        for name, value in kernel.sysctls.restore().items():
            log.info("restored", sysctl=name, value=value)
        for path in (config.bird.config_file, config.bird.announce_file, *state_files(config)):
            path.unlink(missing_ok=True)
    finally:
        await kernel.close()
        network.close()
        instance.close()
    return DONE
