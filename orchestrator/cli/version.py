"""`bgplb version`."""

import platform
import sys
from typing import Annotated

import typer

from orchestrator.cli.output import Format, structured


def version(
    output: Annotated[
        Format, typer.Option("--output", "-o", metavar="FORMAT", help="table, json, yaml or wide.")
    ] = Format.TABLE,
) -> None:
    """Print the version of bgplb, of Python and of the kernel."""
    from importlib.metadata import version as installed

    found = {
        "schema": 1,
        "bgplb": installed("bgplb"),
        "python": sys.version.split()[0],
        "kernel": f"{platform.system()} {platform.release()}",
    }
    if not structured(found, output):
        print(f"bgplb {found['bgplb']}, Python {found['python']}, {found['kernel']}")
