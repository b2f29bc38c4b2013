"""A lab for the time of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bgplb_lab import fault_clocks
from bgplb_lab.errors import MissingPrerequisite
from bgplb_lab.world import World, check_prerequisites


@contextmanager
def or_skip() -> Iterator[None]:
    """Skip, by name, where this machine lacks what the block asks for."""
    try:
        yield
    except MissingPrerequisite as missing:
        pytest.skip(f"needs {missing}")


def need_prerequisites() -> None:
    """Skip where this machine lacks what a lab needs."""
    with or_skip():
        check_prerequisites()


def need_movable_clocks() -> None:
    """Skip where daemons' clocks can't be moved."""
    with or_skip():
        fault_clocks.library()


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
