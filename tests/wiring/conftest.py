"""A box for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wiring.box import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Box]:
    """A second machine."""
    made = Box(tmp_path)
    yield made
    made.close()
