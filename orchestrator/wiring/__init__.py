"""Where everything meets: the only place that makes clocks, stores, kernels and BIRDs and hands them to the parts.

Each function runs one daemon, or a clean-up, to its end and returns the exit code.
"""

from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.config.orchestrator import OrchestratorConfig


def run_orchestrator(config: OrchestratorConfig) -> int:
    """Run an orchestrator until SIGTERM."""
    from orchestrator.wiring.decide import main
    from orchestrator.wiring.hardening import ORCHESTRATOR
    from orchestrator.wiring.process import run

    return run(main(config), ORCHESTRATOR)


def run_edge_agent(config: EdgeAgentConfig) -> int:
    """Run an edge agent until SIGTERM; everything stays in place."""
    from orchestrator.wiring.act import edge_main
    from orchestrator.wiring.hardening import EDGE
    from orchestrator.wiring.process import run

    return run(edge_main(config), EDGE)


def run_node_agent(config: NodeAgentConfig) -> int:
    """Run a node agent until SIGTERM; it hands its pools over first."""
    from orchestrator.wiring.act import node_main
    from orchestrator.wiring.hardening import NODE
    from orchestrator.wiring.process import run

    return run(node_main(config), NODE)


def cleanup_edge(config: EdgeAgentConfig) -> int:
    """Remove what an edge agent has made."""
    from orchestrator.wiring.cleanup import edge
    from orchestrator.wiring.hardening import EDGE
    from orchestrator.wiring.process import run

    return run(edge(config), EDGE)


def cleanup_node(config: NodeAgentConfig) -> int:
    """Remove what a node agent has made."""
    from orchestrator.wiring.cleanup import node
    from orchestrator.wiring.hardening import NODE
    from orchestrator.wiring.process import run

    return run(node(config), NODE)
