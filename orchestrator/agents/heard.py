"""Announcements that came or went in the edge's signal table: noted at once, reported together.

A dead session takes the routes of all its pools, one after the other, while its plans are being carried out.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping

from fsm.fence import Accepted
from fsm.ports import Clock
from orchestrator.agents import edge_state as project

AFTER_S = 0.05
"""What was heard within this time is reported together, in seconds."""


class Heard:
    """`run` beside the agent. `pools`: its commands in force; `busy`: whether reports have to wait."""

    def __init__(
        self,
        clock: Clock,
        pools: Callable[[], Mapping[str, Accepted]],
        busy: Callable[[], bool],
        report: Callable[[Collection[str]], None],
    ) -> None:
        self._clock, self._pools, self._busy, self._report = clock, pools, busy, report
        self._names: set[str] = set()
        self._wake = asyncio.Event()
        self._by_prefix: tuple[object, dict[str, list[str]]] = (None, {})

    def note(self, prefix: str) -> None:
        """The route of that prefix changed. Called from inside the netlink reader."""
        pools = self._pools()
        if self._by_prefix[0] is not pools:
            self._by_prefix = (pools, project.by_prefix(pools))
        heard = self._by_prefix[1].get(prefix)
        if heard:
            self._names.update(heard)
            self._wake.set()

    async def run(self) -> None:
        """Report what was heard meanwhile, once nobody is busy: a thousand reports take their time. For ever."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(AFTER_S)
            while self._busy():
                await self._clock.sleep(AFTER_S)
            self._wake.clear()
            names, self._names = self._names, set()
            self._report(names)
