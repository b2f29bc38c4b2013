"""The folder on the disk: read at rest, followed for ever, and never taken for empty when it can't be read."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from orchestrator.config.folder import (
    QUIET_MS,
    FolderUnreadable,
    IntentFolder,
    fingerprint,
    manifest_files,
    read_files,
    read_now,
)
from orchestrator.config.intent import Intent
from tests.config.texts import EDGE_GATEWAY, POOL


class SteppedClock:
    """A clock on which each sleep passes at once, after whatever the test does in that moment."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []
        self.meanwhile: list[Path] = []
        self.texts: list[str] = []

    def now(self) -> float:
        """Seconds of all sleeps so far."""
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        """Do what was planned for this sleep, and let others run."""
        self.seconds += seconds
        self.slept.append(seconds)
        if self.texts and seconds == QUIET_MS / 1000:
            self.meanwhile[0].write_text(self.texts.pop(0))
        await asyncio.sleep(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one good EdgeGateway and one good pool."""
    (tmp_path / "gateway.yaml").write_text(EDGE_GATEWAY)
    (tmp_path / "pool.yml").write_text(POOL)
    return tmp_path


async def following(stream: AsyncIterator[Intent]) -> Intent:
    """The next intent."""
    async with asyncio.timeout(20):
        return await anext(stream)


def test_which_files_are_read(folder: Path) -> None:
    for name in (".hidden.yaml", "notes.txt", "pool.yaml.bak", "pool.yaml~", "POOL.YAML"):
        (folder / name).write_text("kind: Foo\n")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "pool.yaml").write_text("kind: Foo\n")
    assert [path.name for path in manifest_files(folder)] == ["gateway.yaml", "pool.yml"]
    assert read_now(folder).ok


def test_an_absent_folder_is_a_problem(tmp_path: Path) -> None:
    intent = read_now(tmp_path / "absent")
    assert [str(problem) for problem in intent.problems] == [
        f"{tmp_path}/absent: cannot be read: No such file or directory; the last good state stays in force until it can"
    ]


def test_a_file_that_cannot_be_read_is_a_problem(folder: Path) -> None:
    (folder / "locked.yaml").mkdir()
    with pytest.raises(FolderUnreadable, match=r"locked\.yaml: cannot be read: Is a directory; make it readable"):
        read_files(folder)
    assert not read_now(folder).ok


def test_a_dangling_link_shows_once_it_matters(folder: Path) -> None:
    (folder / "link.yaml").symlink_to(folder / "nowhere")
    with pytest.raises(FolderUnreadable, match=r"link\.yaml: cannot be read"):
        read_files(folder)


def test_the_fingerprint_sees_a_change_of_equal_size_and_time(folder: Path) -> None:
    before = fingerprint(folder)
    path = folder / "pool.yml"
    stat = path.stat()
    draft = folder / ".draft"
    draft.write_text(POOL.replace("priority: 10", "priority: 20"))
    os.utime(draft, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    draft.rename(path)
    assert fingerprint(folder) != before


async def test_a_folder_is_read_only_after_it_was_quiet(folder: Path) -> None:
    clock = SteppedClock()
    half = EDGE_GATEWAY[: len(EDGE_GATEWAY) // 2]
    clock.meanwhile, clock.texts = [folder / "gateway.yaml"], [half, half + "\n", EDGE_GATEWAY]
    async with aclosing(IntentFolder(folder, clock).changes()) as stream:
        intent = await following(stream)
    assert intent.ok
    assert clock.texts == []
    assert clock.slept == [QUIET_MS / 1000] * 4


async def test_a_folder_that_never_rests_is_reported_and_read_once_it_does(folder: Path) -> None:
    clock = SteppedClock()
    clock.meanwhile, clock.texts = [folder / "gateway.yaml"], [f"# {number}" * number for number in range(1, 52)]
    async with aclosing(IntentFolder(folder, clock).changes()) as stream:
        intent = await following(stream)
        assert "keeps changing: was never quiet for 200 ms" in str(intent.problems[0])
        (folder / "gateway.yaml").write_text(EDGE_GATEWAY)
        clock.texts.clear()
        assert (await following(stream)).ok


async def test_changes_come_one_by_one_and_only_when_something_changed(folder: Path) -> None:
    clock = SteppedClock()
    async with aclosing(IntentFolder(folder, clock).changes()) as stream:
        first = await following(stream)
        assert [pool.name for pool in first.pools] == ["external-ip-pool-1"]

        (folder / "pool.yml").write_text(POOL + "# only a comment\n")
        waiting = asyncio.create_task(following(stream))
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert not waiting.done()

        (folder / "pool.yml").write_text(POOL.replace("192.0.2.0/26", "192.0.2.1/26"))
        refused = await waiting
        assert not refused.ok
        assert refused.pools == ()

        (folder / "pool.yml").write_text(POOL)
        assert (await following(stream)).pools == first.pools

        (folder / "pool.yml").unlink()
        gone = await following(stream)
        assert gone.ok
        assert gone.pools == ()

        for path in manifest_files(folder):
            path.unlink()
        assert "an empty folder deletes nothing" in str((await following(stream)).problems[0])

        await asyncio.to_thread(shutil.rmtree, folder)
        assert "cannot be read" in str((await following(stream)).problems[0])

        await asyncio.to_thread(folder.mkdir)
        (folder / "gateway.yaml").write_text(EDGE_GATEWAY)
        assert (await following(stream)).ok
