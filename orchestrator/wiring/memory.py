"""What a daemon remembers of its store, on its disk."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from orchestrator.agents.statefile import StateFileError, load, save
from orchestrator.store.generation import Memory, Recollection
from orchestrator.store.keys import Keys

STORE_STATE = "store.json"


def recollection(state_dir: Path, keys: Keys, ground: str, blank: Callable[[], bool] = lambda: False) -> Recollection:
    """The memory in that state directory. Raises StateFileError for a file that is damaged.

    It is written by a thread of its own: a disk that is slow must not hold up a failover.
    """
    path = state_dir / STORE_STATE
    newest, turn = [Memory()], threading.Lock()

    def write() -> None:
        with turn:  # a writer whose task was cancelled goes on, and must not meet the next one at the file
            save(path, newest[0])

    async def remember(memory: Memory) -> str:
        newest[0] = memory
        try:
            await asyncio.to_thread(write)
        except StateFileError as error:
            return str(error)
        return ""

    return Recollection(keys, ground, load(path, Memory, Memory()), remember, blank)
