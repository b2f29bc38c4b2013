"""Every command of `bgplb`, from its parsers: for tests whose sentence begins with "every command"."""

from collections.abc import Iterator
from typing import Any

import typer.main

from orchestrator.cli.main import app

LAB = "lab"
"""The plug-in that has tests of its own."""


def words(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command that does something, by its words; also a group that is a command itself, as the agents are."""
    context = type(command).context_class(command)
    names = command.list_commands(context) if hasattr(command, "list_commands") else []
    for name in names:
        yield from words(command.get_command(context, name), (*path, name))
    if not names or (path and command.invoke_without_command):
        yield " ".join(path)


EVERY = frozenset(words(typer.main.get_command(app)))
OF_THE_LAB = frozenset(each for each in EVERY if each.split()[0] == LAB)
OTHERS = EVERY - OF_THE_LAB
