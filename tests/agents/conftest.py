"""A store with agents' links for each test that asks for one."""

from collections.abc import AsyncIterator

import pytest

from tests.agents.link_world import Net


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    made = Net()
    yield made
    for linked in made.links:
        await made.stop(linked)
    await made.server.close()
