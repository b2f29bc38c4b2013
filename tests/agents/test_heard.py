"""Announcements that came or went: reported together, and not while something more urgent is under way."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import suppress

import pytest

from fsm.fence import Accepted
from fsm.records import EdgePool
from orchestrator.agents.heard import AFTER_S, Heard
from tests.agents.fakes import MAIL, WEB
from tests.contract.store.clocks import VirtualClock


class Agent:
    """Two pools, what is reported of them, and whether it is busy."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.pools = {name: Accepted(EdgePool(found, "gw-a", 3), 7) for name, found in (("web", WEB), ("mail", MAIL))}
        self.busy = False
        self.told: list[set[str]] = []
        self.heard = Heard(self.clock, lambda: self.pools, lambda: self.busy, self._report)

    def _report(self, names: Collection[str]) -> None:
        self.told.append(set(names))


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    made = Agent()
    task = asyncio.create_task(made.heard.run())
    await made.clock.settle()
    yield made
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_what_is_heard_within_a_moment_is_reported_together(agent: Agent) -> None:
    agent.heard.note(WEB[0])
    await agent.clock.advance(AFTER_S / 2)
    agent.heard.note(MAIL[0])
    assert agent.told == []
    await agent.clock.advance(AFTER_S)
    assert agent.told == [{"web", "mail"}]
    await agent.clock.advance(10 * AFTER_S)
    assert len(agent.told) == 1


async def test_it_waits_until_nobody_is_busy(agent: Agent) -> None:
    agent.busy = True
    agent.heard.note(WEB[0])
    await agent.clock.advance(10 * AFTER_S)
    assert agent.told == []
    agent.busy = False
    await agent.clock.advance(AFTER_S)
    assert agent.told == [{"web"}]


async def test_prefixes_are_those_of_the_commands_in_force(agent: Agent) -> None:
    agent.heard.note(WEB[0])
    await agent.clock.advance(AFTER_S)
    agent.pools = {"other": Accepted(EdgePool(WEB, "gw-a", 4), 8)}
    for prefix in (WEB[0], MAIL[0]):
        agent.heard.note(prefix)
    await agent.clock.advance(AFTER_S)
    assert agent.told == [{"web"}, {"other"}]
