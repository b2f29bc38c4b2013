"""`bgplb gateway`: take a gateway out of service and back."""

from typing import Annotated

import typer

from orchestrator.cli.environment import ConfigOption, environment
from orchestrator.cli.requests import ask_leader

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Take a gateway out of service for work on it, and back.",
)

Gateway = Annotated[str, typer.Argument(metavar="GATEWAY", help="Name of the node agent.")]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the order.")]


@app.command()
def drain(ctx: typer.Context, gateway: Gateway, reason: ReasonOption, config: ConfigOption = None) -> None:
    """Move every pool off a gateway and give it none until it is undrained.

    Its pools move make-before-break, each as soon as another gateway is ready to take it.

    \b
    Example:
      bgplb gateway drain gw-a --reason "new disks"
    """
    print(ask_leader(environment(ctx), config, "gateway-drain", gateway, reason))


@app.command()
def undrain(ctx: typer.Context, gateway: Gateway, reason: ReasonOption, config: ConfigOption = None) -> None:
    """Let a drained gateway carry pools again. Nothing moves back by itself unless the EdgeGateway says preempt.

    \b
    Example:
      bgplb gateway undrain gw-a --reason "disks are in"
    """
    print(ask_leader(environment(ctx), config, "gateway-undrain", gateway, reason))
