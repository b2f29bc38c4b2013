"""What a daemon remembers of its store, while its disk takes nothing, or all other threads hang."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

from orchestrator.agents.statefile import load
from orchestrator.store.generation import Memory
from orchestrator.store.keys import Keys
from orchestrator.wiring.memory import STORE_STATE, recollection

SEEN = Memory(cluster_id=7, generation="one", revision=5)


async def test_a_disk_that_takes_nothing_is_named_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    remembered = recollection(folder, Keys(), "/")
    folder.rmdir()
    folder.write_text("a file where the folder was")
    remembered.memory = SEEN
    await remembered.write()
    assert f"{folder / STORE_STATE}: can't be written" in remembered.unsaved
    folder.unlink()
    await remembered.write()
    assert remembered.unsaved == ""
    assert load(folder / STORE_STATE, Memory, Memory()) == SEEN
    remembered.memory = replace(SEEN, revision=6)
    await remembered.write()
    assert load(folder / STORE_STATE, Memory, Memory()).revision == 6


async def test_threads_that_hang_over_names_keep_nothing_from_the_disk(tmp_path: Path) -> None:
    """Where names are not resolved, those who ask hang for many seconds each, and all of the loop's own threads ask."""
    over, loop = threading.Event(), asyncio.get_running_loop()
    hanging = [loop.run_in_executor(None, over.wait, 30) for _ in range(100)]
    try:
        remembered = recollection(tmp_path, Keys(), "/")
        remembered.memory = SEEN
        await asyncio.wait_for(remembered.write(), 5)
    finally:
        over.set()
        await asyncio.gather(*hanging)
    assert load(tmp_path / STORE_STATE, Memory, Memory()) == SEEN
