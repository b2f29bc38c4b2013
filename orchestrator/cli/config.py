"""`bgplb config`: check a configuration file, or print one to begin with."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.environment import CliError, Exit

if TYPE_CHECKING:
    from pydantic import BaseModel

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check a configuration file, or print an example.")


class Role(enum.StrEnum):
    """Whose file it is."""

    ORCHESTRATOR = "orchestrator"
    EDGE_AGENT = "edge-agent"
    NODE_AGENT = "node-agent"
    CLI = "cli"


RoleArgument = Annotated[Role, typer.Argument(metavar="ROLE", help="orchestrator, edge-agent, node-agent or cli.")]


def model_of(role: str) -> "type[BaseModel]":
    """The model of a role's file."""
    if role == Role.ORCHESTRATOR:
        from orchestrator.config.orchestrator import OrchestratorConfig

        return OrchestratorConfig
    if role == Role.EDGE_AGENT:
        from orchestrator.config.edge_agent import EdgeAgentConfig

        return EdgeAgentConfig
    if role == Role.NODE_AGENT:
        from orchestrator.config.node_agent import NodeAgentConfig

        return NodeAgentConfig
    from orchestrator.config.cli import CliConfig

    return CliConfig


@app.command()
def check(
    role: RoleArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to check.")],
) -> None:
    """Check a file; every problem is named at once. Nothing is started or changed.

    \b
    Example:
      bgplb config check node-agent /etc/bgplb/node-agent.yaml
    """
    from orchestrator.config.files import load
    from orchestrator.config.problems import ConfigError

    try:
        load(file, model_of(role))
    except ConfigError as error:
        raise CliError(Exit.BAD_INPUT, str(error)) from error
    print(f"{file}: good")


@app.command()
def example(role: RoleArgument) -> None:
    """Print a file with every setting, its meaning, its unit and its default.

    \b
    Example:
      bgplb config example edge-agent > /etc/bgplb/edge-agent.yaml
    """
    from orchestrator.config.example import example_text

    print(example_text(model_of(role), role.value), end="")
