"""`bgplb pool`: what an operator may ask for a pool."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.environment import ConfigOption, environment
from orchestrator.cli.requests import ask_leader

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Move a pool to another gateway with no packet lost, or pause its automation.\n\n"
    "Every order takes a reason, which stands in the pool's history ('bgplb fsm dump --history 5').",
)

Pool = Annotated[str, typer.Argument(metavar="POOL", help="Name of the EIPPool.")]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the history.")]


@app.command()
def drain(
    ctx: typer.Context,
    pool: Pool,
    reason: ReasonOption,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="GATEWAY", help="The gateway to move to; the best ready one if not given."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Move a pool off its gateway, make-before-break.

    The target is prepared and confirmed first, then the route moves, then the old owner stops. Refused while no other
    gateway is ready.

    \b
    Examples:
      bgplb pool drain external-ip-pool-1 --reason "kernel update on gw-a"
      bgplb pool drain external-ip-pool-1 --to gw-b --reason "kernel update on gw-a"
    """
    _ask(ctx, config, "drain", pool, reason, to)


@app.command()
def move(
    ctx: typer.Context,
    pool: Pool,
    to: Annotated[str, typer.Option("--to", metavar="GATEWAY", help="The gateway to move to.")],
    reason: ReasonOption,
    config: ConfigOption = None,
) -> None:
    """Move a pool to the gateway that you name, make-before-break.

    \b
    Example:
      bgplb pool move external-ip-pool-1 --to gw-b --reason "gw-b has the bigger link"
    """
    _ask(ctx, config, "move", pool, reason, to)


@app.command()
def hold(ctx: typer.Context, pool: Pool, reason: ReasonOption, config: ConfigOption = None) -> None:
    """Pause automation: the pool stays where it is, whatever happens, until it is released.

    A move that is under way is finished first.

    \b
    Example:
      bgplb pool hold external-ip-pool-1 --reason "fibre work until noon"
    """
    _ask(ctx, config, "hold", pool, reason, None)


@app.command()
def release(ctx: typer.Context, pool: Pool, reason: ReasonOption, config: ConfigOption = None) -> None:
    """End a hold.

    \b
    Example:
      bgplb pool release external-ip-pool-1 --reason "fibre work done"
    """
    _ask(ctx, config, "release", pool, reason, None)


def _ask(ctx: typer.Context, config: Path | None, verb: str, pool: str, reason: str, target: str | None) -> None:
    print(ask_leader(environment(ctx), config, verb, pool, reason, target))
