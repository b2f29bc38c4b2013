"""The entry point: all commands, their plug-ins, and the one place where an error becomes a sentence and a code."""

import os
import sys
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from orchestrator.cli import config, daemons, etcd, fsm, gateway, manifests, pool, store
from orchestrator.cli.environment import CliError, Exit
from orchestrator.cli.status import status
from orchestrator.cli.version import version

PLUGINS = "bgplb.cli"
"""Entry point group: a name, and the typer application that is added under it."""

ORDER = (
    "orchestrator",
    "edge-agent",
    "node-agent",
    "status",
    "fsm",
    "pool",
    "gateway",
    "manifests",
    "config",
    "store",
    "etcd",
    "version",
)

HELP = """Keep every public address pool on exactly one live gateway, and move it when that gateway fails.

Daemons: `orchestrator` decides, `edge-agent` steers on the edge, `node-agent` makes a machine a gateway. All other
commands look, or ask the leading orchestrator for something and print its answer.

\b
First steps:
  bgplb config example cli             what a configuration looks like
  bgplb manifests check DIR            is this folder of EIPPool and EdgeGateway good?
  bgplb status                         who owns what, and is it well?
  bgplb fsm dump --history 5           how did it come to be so?
  bgplb pool drain POOL --reason WHY   move a pool, no packet lost

\b
Exit codes:
  0 done              3 bad input     6 refused by the state it is in
  1 a check failed    4 not found     7 timed out
  2 wrong usage       5 store or daemon unreachable
                                      8 a prerequisite is missing (not root, package, kernel feature)
"""


class Root(TyperGroup):
    """Commands that end in a CliError end in its sentence on standard error and its code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except CliError as error:
            for line in str(error).splitlines():
                print(f"bgplb: {line}", file=sys.stderr)
            raise typer.Exit(error.code) from error

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name; a plug-in is loaded only when it is asked for."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            found = self._plugin(cmd_name)
        return found

    def list_commands(self, ctx: Any) -> list[str]:
        """All names in the order of ORDER, plug-ins last."""
        own = sorted(super().list_commands(ctx), key=ORDER.index)
        return own + sorted(point.name for point in entry_points(group=PLUGINS) if point.name not in own)

    def _plugin(self, name: str) -> Any:
        for point in entry_points(group=PLUGINS, name=name):
            try:
                loaded = point.load()
            except ImportError as error:
                text = f"the plug-in '{name}' ({point.value}) cannot be loaded: {error}; install it anew"
                raise CliError(Exit.PREREQUISITE, text) from error
            command = typer.main.get_command(loaded)
            command.name = name
            return command
        return None


app = typer.Typer(
    cls=Root,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("orchestrator")(daemons.orchestrator)
app.add_typer(daemons.edge_app, name="edge-agent")
app.add_typer(daemons.node_app, name="node-agent")
app.command("status")(status)
app.add_typer(pool.app, name="pool")
app.add_typer(gateway.app, name="gateway")
app.add_typer(manifests.app, name="manifests")
app.add_typer(config.app, name="config")
app.add_typer(fsm.app, name="fsm")
app.add_typer(store.app, name="store")
app.add_typer(etcd.app, name="etcd")
app.command("version")(version)


def main() -> None:
    """Run the command line. Whatever goes wrong, a person gets a sentence; BGPLB_TRACEBACK=1 shows where."""
    try:
        app(prog_name="bgplb")
    except Exception as error:  # the last door: what nobody foresaw ends the process here
        if os.environ.get("BGPLB_TRACEBACK"):
            raise
        text = " ".join(str(error).split()) or "no text"
        print(
            f"bgplb: internal error, please report it: {type(error).__name__}: {text}; "
            "BGPLB_TRACEBACK=1 shows where it happened",
            file=sys.stderr,
        )
        sys.exit(Exit.CHECK_FAILED)


if __name__ == "__main__":
    main()
