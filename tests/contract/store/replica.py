"""An orchestrator as far as the election sees it: session, heartbeat, election."""

import asyncio

from fsm.ports import Clock
from orchestrator.store.election import ROLE, Election
from orchestrator.store.heartbeat import Heartbeat
from orchestrator.store.keys import Keys
from orchestrator.store.lease import Session
from orchestrator.store.mirror import Mirror
from orchestrator.store.port import Store

KEYS = Keys()


class Replica:
    """One orchestrator as far as the election sees it."""

    def __init__(
        self, store: Store, clock: Clock, name: str, keys: Keys = KEYS, ttl_ms: int = 3000, instance: str | None = None
    ) -> None:
        self.store = store
        self.clock = clock
        self.name = name
        self.seen: list[int] = []
        self._progress = 0
        self.session = Session(store, clock, ttl_ms, ttl_ms // 3, self.progress)
        beat_key = keys.heartbeat("orchestrator", name)
        self.heartbeat = Heartbeat(store, beat_key, clock, 250, self.session, self.progress)
        self.beats = Mirror(store, keys.heartbeats(ROLE), clock, 10.0)
        self.election = Election(
            store,
            keys,
            clock,
            name,
            instance or f"instance-{name}",
            self.session,
            self.heartbeat,
            self.beats,
            stamp=lambda: "2030-01-01T00:00:00Z",
            on_change=self.seen.append,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def progress(self) -> int:
        """A loop that always works."""
        self._progress += 1
        return self._progress

    async def start(self) -> None:
        """Open the session and run everything."""
        await self.session.open()
        self._tasks = [
            asyncio.create_task(part.run(), name=f"{self.name}")
            for part in (self.session, self.heartbeat, self.beats, self.election)
        ]

    async def campaign(self) -> None:
        """The election alone, with the heartbeats that it looks at; for ever."""
        beats = asyncio.create_task(self.beats.run())
        try:
            await self.election.run()
        finally:
            beats.cancel()

    async def kill(self) -> None:
        """End all tasks and tell nobody."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise what ended a task, if one ended."""
        for task in self._tasks:
            if task.done():
                task.result()

    @property
    def running(self) -> bool:
        """Whether all tasks still run."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads."""
        return self.election.leads(self.clock.now())
