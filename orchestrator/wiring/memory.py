"""What a daemon remembers of its store, on its disk."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.agents.statefile import StateFileError, load, save
from orchestrator.store.generation import Memory, Recollection
from orchestrator.store.keys import Keys

STORE_STATE = "store.json"


def recollection(state_dir: Path, keys: Keys, ground: str, blank: Callable[[], bool] = lambda: False) -> Recollection:
    """The memory in that state directory. Raises StateFileError for a file that is damaged.

    It is written by a thread of its own: a disk that is slow must not hold up a failover, nor names that nobody
    resolves, which take the loop's own threads, a registration.
    """
    path = state_dir / STORE_STATE
    newest = [Memory()]
    writer = ThreadPoolExecutor(1, "memory")  # one at a time: whose task was cancelled goes on writing

    def write() -> None:
        save(path, newest[0])

    async def remember(memory: Memory) -> str:
        newest[0] = memory
        try:
            await asyncio.get_running_loop().run_in_executor(writer, write)
        except StateFileError as error:
            return str(error)
        return ""

    return Recollection(keys, ground, load(path, Memory, Memory()), remember, blank)
