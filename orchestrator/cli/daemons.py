"""`bgplb orchestrator`, `edge-agent`, `node-agent`: the daemons, in the foreground, for a service manager."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from orchestrator.cli.environment import CliError, Environment, Exit, environment

if TYPE_CHECKING:
    from orchestrator.config.edge_agent import EdgeAgentConfig
    from orchestrator.config.node_agent import NodeAgentConfig
    from orchestrator.config.sections import Root

CONFIG = "bgplb.config"
"""Where an agent's command leaves the path of its configuration for its subcommand."""

Model = TypeVar("Model", bound="Root")


def _file_option(name: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        "--config", metavar="FILE", help=f"Its configuration. Default: /etc/bgplb/{name}.yaml."
    )
    return found


edge_app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
node_app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


def orchestrator(
    ctx: typer.Context,
    config: Annotated[Path | None, _file_option("orchestrator")] = None,
    manifests: Annotated[
        Path | None, typer.Option("--manifests", metavar="DIR", help="Folder of intent, over the configuration's.")
    ] = None,
) -> None:
    """Run an orchestrator: it decides which gateway owns each pool. Several run, one leads.

    Runs in the foreground until SIGTERM, and then hands its leadership over. Needs no root.

    \b
    Examples:
      bgplb orchestrator
      bgplb orchestrator --config ./orchestrator.yaml --manifests ./manifests
    """
    from orchestrator.config.orchestrator import OrchestratorConfig

    loaded = _load(environment(ctx), config, "orchestrator", OrchestratorConfig)
    if manifests is not None:
        loaded = loaded.model_copy(update={"manifests": manifests.absolute()})
    from orchestrator import wiring

    _run(wiring.run_orchestrator, loaded)


@edge_app.callback()
def edge_agent(ctx: typer.Context, config: Annotated[Path | None, _file_option("edge-agent")] = None) -> None:
    """Run an edge agent: it steers each pool to one gateway. Needs root.

    Runs in the foreground. When it ends, by SIGTERM or otherwise, everything stays in place and traffic goes on;
    `cleanup` is what removes it.

    \b
    Examples:
      bgplb edge-agent
      bgplb edge-agent --config ./edge-agent.yaml
      bgplb edge-agent cleanup
    """
    if ctx.invoked_subcommand is not None:
        ctx.meta[CONFIG] = config  # not read yet: `cleanup --help` needs neither root nor a file
        return
    loaded = _edge_config(environment(ctx), config)
    from orchestrator import wiring

    _run(wiring.run_edge_agent, loaded)


@edge_app.command("cleanup")
def cleanup_edge(ctx: typer.Context) -> None:
    """Remove from this machine all that an edge agent has made, and restore the sysctls that it changed.

    Nothing else is touched. Stop the agent first; its pools are unreachable from here on.

    \b
    Example:
      systemctl stop bgplb-edge-agent && bgplb edge-agent cleanup
    """
    loaded = _edge_config(environment(ctx), ctx.meta[CONFIG])
    from orchestrator import wiring

    _run(wiring.cleanup_edge, loaded)


@node_app.callback()
def node_agent(ctx: typer.Context, config: Annotated[Path | None, _file_option("node-agent")] = None) -> None:
    """Run a node agent: it makes its machine a gateway. Needs root.

    Runs in the foreground. On SIGTERM it hands its pools to a ready standby and leaves; `shutdown: leave` in its
    configuration leaves at once.

    \b
    Examples:
      bgplb node-agent
      bgplb node-agent --config ./node-agent.yaml
      bgplb node-agent cleanup
    """
    if ctx.invoked_subcommand is not None:
        ctx.meta[CONFIG] = config  # not read yet: `cleanup --help` needs neither root nor a file
        return
    loaded = _node_config(environment(ctx), config)
    from orchestrator import wiring

    _run(wiring.run_node_agent, loaded)


@node_app.command("cleanup")
def cleanup_node(ctx: typer.Context) -> None:
    """Remove from this machine all that a node agent has made, and restore the sysctls that it changed.

    Nothing else is touched. Stop the agent first.

    \b
    Example:
      systemctl stop bgplb-node-agent && bgplb node-agent cleanup
    """
    loaded = _node_config(environment(ctx), ctx.meta[CONFIG])
    from orchestrator import wiring

    _run(wiring.cleanup_node, loaded)


def _edge_config(env: Environment, path: Path | None) -> "EdgeAgentConfig":
    from orchestrator.config.edge_agent import EdgeAgentConfig

    _need_root(env, "edge-agent")
    return _load(env, path, "edge-agent", EdgeAgentConfig)


def _node_config(env: Environment, path: Path | None) -> "NodeAgentConfig":
    from orchestrator.config.node_agent import NodeAgentConfig

    _need_root(env, "node-agent")
    return _load(env, path, "node-agent", NodeAgentConfig)


def _run(daemon: Callable[[Model], int], config: Model) -> NoReturn:
    """Run a daemon to its end. What nobody foresaw is logged with its place, and ends the process with code 1."""
    from orchestrator import log

    log.configure(config.log.level, config.log.format, role=daemon.__name__.partition("_")[2], name=config.name)
    try:
        code = daemon(config)
    except CliError:
        raise
    except Exception:  # noqa: BLE001 - logged whole, and the process ends: the service manager starts it anew
        log.failed()
        code = Exit.CHECK_FAILED
    raise typer.Exit(code)


def _need_root(env: Environment, command: str) -> None:
    if not env.is_root():
        text = f"{command} needs root: it makes interfaces, routes and rules; run it as root or by its service"
        raise CliError(Exit.PREREQUISITE, text)


def _load(env: Environment, path: Path | None, role: str, model: type[Model]) -> Model:
    from orchestrator.config.files import load
    from orchestrator.config.problems import ConfigError

    where = path if path is not None else env.etc / f"{role}.yaml"
    try:
        return load(where, model)
    except ConfigError as error:
        hint = "" if where.exists() else f"\n'bgplb config example {role}' prints one to begin with"
        raise CliError(Exit.BAD_INPUT, f"{error}{hint}") from error
