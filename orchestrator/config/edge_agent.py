"""The file of an edge agent: /etc/bgplb/edge-agent.yaml."""

from typing import ClassVar

from orchestrator.config.sections import Agent


class EdgeAgentConfig(Agent):
    """An edge agent steers each pool to one gateway."""

    LISTEN: ClassVar[str] = "127.0.0.1:9178"
