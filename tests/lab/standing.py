"""A lab for the time of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bgplb_lab.errors import MissingPrerequisite
from bgplb_lab.world import World, check_prerequisites


def need_prerequisites() -> None:
    """Skip, by name, where this machine lacks what a lab needs."""
    try:
        check_prerequisites()
    except MissingPrerequisite as missing:
        pytest.skip(f"needs {missing}")


@contextmanager
def standing(world: World) -> Iterator[World]:
    """Up, and down again whatever happened."""
    need_prerequisites()
    try:
        world.up()
        yield world
    finally:
        if world.exists():
            world.down()
