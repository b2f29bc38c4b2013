"""The folder of manifests: read when nobody writes, and never taken for less than it is."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from fsm.ports import Clock
from orchestrator.config.intent import Intent, read_intent
from orchestrator.config.problems import Problem
from orchestrator.config.yaml_text import MAX_BYTES

QUIET_MS = 200
"""How long a folder must not have changed before it is read: an editor writes a file in several steps."""
MAX_TRIES = 50
"""Quiet times to wait for, 10 s in all, before a folder that never rests is reported."""
POLL_MS = 1000
READ_TIMEOUT_S = 10.0
SUFFIXES = (".yaml", ".yml")

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""(name, inode, size, time of change in ns) of each manifest file."""


class FolderUnreadable(Exception):
    """The folder, or a file in it, cannot be read. The text says which, why and what to do."""


def manifest_files(folder: Path) -> list[Path]:
    """The files that are read: *.yaml and *.yml, no dot files, no subfolders. Raises FolderUnreadable."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise FolderUnreadable(
            f"cannot be read: {error.strerror}; the last good state stays in force until it can"
        ) from error
    return [entry for entry in entries if entry.suffix in SUFFIXES and not entry.name.startswith(".")]


def fingerprint(folder: Path) -> Fingerprint:
    """What changes when anything in the folder does. Raises FolderUnreadable."""
    marks = []
    for path in manifest_files(folder):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue  # it went between the listing and now: the next look will differ
        except OSError as error:
            raise FolderUnreadable(f"{path.name}: cannot be read: {error.strerror}; make it readable") from error
        marks.append((path.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(marks)


def read_files(folder: Path) -> dict[str, bytes]:
    """All manifest files by name. Raises FolderUnreadable."""
    files = {}
    for path in manifest_files(folder):
        try:
            with path.open("rb") as stream:
                files[path.name] = stream.read(MAX_BYTES + 1)
        except OSError as error:
            raise FolderUnreadable(f"{path.name}: cannot be read: {error.strerror}; make it readable") from error
    return files


def read_now(folder: Path, lease_ttl_ms: int = 3000) -> Intent:
    """The intent of a folder as it stands, for a command; an unreadable folder is a problem of its own."""
    try:
        files = read_files(folder)
    except FolderUnreadable as error:
        return Intent(problems=(Problem(str(folder), "", "", "", str(error)),))
    return read_intent(files, str(folder), lease_ttl_ms)


@dataclass(slots=True)
class IntentFolder:
    """Follows a folder: an Intent at the start, and one after each change that has come to rest.

    Every Intent is the whole folder, or the problems for which it is refused. Who reads it keeps the last good one.
    """

    folder: Path
    clock: Clock
    lease_ttl_ms: int = 3000

    async def changes(self) -> AsyncGenerator[Intent, None]:
        """For ever: the intent now, then each time it is another one."""
        last: Intent | None = None
        while True:
            intent, mark = await self._settled()
            if intent != last:
                yield intent
                last = intent
            while await self._look() == mark:
                await self.clock.sleep(POLL_MS / 1000)

    async def _settled(self) -> tuple[Intent, Fingerprint | str]:
        """Read once nothing has changed for QUIET_MS, before and during the reading."""
        mark: Fingerprint | str = ()
        for _ in range(MAX_TRIES):
            mark = await self._look()
            if isinstance(mark, str):
                return Intent(problems=(Problem(str(self.folder), "", "", "", mark),)), mark
            await self.clock.sleep(QUIET_MS / 1000)
            if await self._look() != mark:
                continue
            intent = await self._off_loop_read()
            if await self._look() == mark:
                return intent, mark
        text = f"keeps changing: was never quiet for {QUIET_MS} ms; the last good state stays in force until it is"
        return Intent(problems=(Problem(str(self.folder), "", "", "", text),)), mark

    async def _look(self) -> Fingerprint | str:
        """The fingerprint, or why there is none."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.to_thread(fingerprint, self.folder)
        except FolderUnreadable as error:
            return str(error)
        except TimeoutError:
            return f"did not answer within {READ_TIMEOUT_S:.0f} s; check the file system it is on"

    async def _off_loop_read(self) -> Intent:
        """A thousand pools take a tenth of a second to parse, which the loop of a leader does not have."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.to_thread(read_now, self.folder, self.lease_ttl_ms)
        except TimeoutError:
            text = f"did not answer within {READ_TIMEOUT_S:.0f} s; check the file system it is on"
            return Intent(problems=(Problem(str(self.folder), "", "", "", text),))
