"""What the lab's commands have in common: options, words for people, errors as exit codes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from bgplb_lab import scenario, world
from bgplb_lab.errors import LabError
from bgplb_lab.topology import EDGES, Auth, Family
from rich.console import Console

out, err = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)

FamilyOption = Annotated[
    Family, typer.Option("--family", help="IP versions of the probes; with both, a number counts only if both answer.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the record here.", show_default=False)]
PictureOption = Annotated[Path | None, typer.Option("--picture", help="Write the picture here, an SVG.")]
NewIdOption = Annotated[
    str | None, typer.Option("--id", help="Name of the lab; a random one unless given.", show_default=False)
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Leave the lab standing, to look at.")]
AuthOption = Annotated[
    Auth,
    typer.Option("--auth", help="How daemons and commands log in to etcd; with any but none it speaks TLS."),
]
EdgesOption = Annotated[
    int, typer.Option("--edges", min=1, max=len(EDGES), help="How many edges; with two, probes go through both.")
]


def say(line: str) -> None:
    """Progress for people, on standard error, so that standard output stays clean."""
    err.print(line, style="dim", highlight=False)


@contextmanager
def telling_errors() -> Iterator[None]:
    """Turn the lab's errors into one sentence and their exit code."""
    try:
        yield
    except scenario.Interrupted as signalled:
        raise typer.Exit(1) from signalled
    except LabError as problem:
        err.print(f"bgplb lab: {problem}", style="red", highlight=False, markup=False)
        raise typer.Exit(problem.exit_code) from problem


def write(path: Path | None, text: str) -> None:
    """Write a result, making its folder."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        say(f"written: {path}")


def check_writable(*paths: Path | None) -> None:
    """Refuse a path that can't be written before the work and not after it."""
    for path in paths:
        if path is not None and (path.is_dir() or (path.exists() and not os.access(path, os.W_OK))):
            raise typer.BadParameter(f"{path} can't be written")


def probed_world(lab_id: str | None, family: Family, auth: Auth = Auth.NONE, edges: int = 1) -> world.World:
    """A lab that does not stand yet, what its probes will ask over, how daemons will log in to etcd, how many edges."""
    lab = world.World(lab_id or world.new_lab_id(), say)
    lab.family, lab.auth, lab.edges = family, auth, edges
    return lab
