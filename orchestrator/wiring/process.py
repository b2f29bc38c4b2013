"""What every daemon's process has: clock, store, signals, exit codes, and garbage collection out of the way."""

import asyncio
import gc
import signal
import time
import uuid
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any

import structlog
import uvloop

from birdctl.errors import BirdError
from dataplane.errors import DataplaneError, FeatureMissing, KeyFileError, ProgramMissing
from orchestrator.admin import AdminError
from orchestrator.agents.instance import InstanceError
from orchestrator.agents.link import NameTaken
from orchestrator.agents.statefile import StateFileError
from orchestrator.http import HttpError
from orchestrator.store.port import StoreError
from orchestrator.store.records import RecordError
from orchestrator.wiring.hardening import Privileges, harden

VERSION = version("bgplb")

DONE, BAD_INPUT, UNREACHABLE, REFUSED, PREREQUISITE = 0, 3, 5, 6, 8

_CODES: tuple[tuple[type[Exception], int], ...] = (
    (NameTaken, REFUSED),
    (InstanceError, REFUSED),
    (KeyFileError, BAD_INPUT),
    (StateFileError, BAD_INPUT),
    (ProgramMissing, PREREQUISITE),
    (FeatureMissing, PREREQUISITE),
    (AdminError, REFUSED),
    (HttpError, REFUSED),
    (OSError, BAD_INPUT),
    (RecordError, BAD_INPUT),
    (StoreError, UNREACHABLE),
    (BirdError, UNREACHABLE),
    (DataplaneError, REFUSED),
)
"""Errors that end a daemon with one sentence, and its exit code; the first that fits counts."""


def stamp() -> str:
    """The time of day, RFC 3339 in UTC, for records that people read."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def new_id() -> str:
    """A UUID for a new installation."""
    return str(uuid.uuid4())


def run(main: Coroutine[Any, Any, int], privileges: Privileges | None = None) -> int:
    """Run a daemon's coroutine; what it can't go on with becomes one log line and an exit code.

    With `privileges` the whole process first gives up all others, for good. The event loop is uvloop's: a daemon at
    rest does little but wait, for hundreds of small messages a second (docs/decisions/0027, 0028).
    """
    try:
        if privileges is not None:
            harden(privileges)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    except BaseExceptionGroup as group:
        return _ended(group)
    except Exception as error:  # noqa: BLE001 - `_ended` raises again what it does not know
        return _ended(error)
    finally:
        main.close()  # of use only if it was never begun


def _ended(error: BaseException) -> int:
    leaf = error
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    for kind, code in _CODES:
        if isinstance(leaf, kind):
            structlog.get_logger().error("ended", error=_sentence(leaf))
            return code
    raise error


def _sentence(error: BaseException) -> str:
    """One sentence; a file that the configuration names and that can't be read is told by its name."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: can't be read: {error.strerror}; it is named in the configuration"
    return str(error)


def until_signalled() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    return asked


def settle_memory() -> None:
    """Start-up is over: what it left is never looked at again, and collections become rare.

    A full collection of a started daemon takes several milliseconds, which is as long as a whole failover's decision.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


async def first_end(*tasks: asyncio.Task[Any]) -> None:
    """Wait until the first of them ends, cancel the others, and raise what it raised.

    Tasks here are for ever, but for the one that waits for a signal.
    """
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
