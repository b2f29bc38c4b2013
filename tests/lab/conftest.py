"""A whole lab for each module that asks for one; its tests leave it healthy."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bgplb_lab import faults
from bgplb_lab.scenario import settled_at_owner
from bgplb_lab.world import World, existing_labs

from tests.lab.standing import need_prerequisites, standing


@pytest.fixture(scope="module")
def whole_lab(request: pytest.FixtureRequest) -> Iterator[World]:
    """A lab with every daemon, named after the module and this process; of as many edges as the module's `EDGES`.

    Probes ask over the module's `FAMILY`.
    """
    need_prerequisites()
    others = [name for name in existing_labs() if World(name, print).pids()]
    if others:
        # Measured: with three labs on two cores an idle one loses packets and moves pools without any fault.
        pytest.skip(f"needs the machine for itself to count packets: lab {', '.join(others)} is running too")
    module = Path(str(request.path)).stem.removeprefix("test_lab_")
    world = World(f"{module[:4]}{os.getpid()}", print)
    world.edges = getattr(request.module, "EDGES", 1)
    world.family = getattr(request.module, "FAMILY", world.family)
    with standing(world):
        yield world


@pytest.fixture
def healthy(whole_lab: World) -> Iterator[dict[str, Any]]:
    """The pool at its usual owner with a ready standby; whatever a failed test left broken is mended afterwards."""
    yield settled_at_owner(whole_lab, "a test begins")
    faults.heal_all(whole_lab, print)
