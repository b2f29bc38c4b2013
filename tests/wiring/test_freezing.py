"""That a process stands still when a test says so: all its threads, and at once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from tests import freezing
from tests.freezing import freeze

THREADS = 4
BUSY = f"""
import threading
def turn():
    while True: pass
for _ in range({THREADS - 1}): threading.Thread(target=turn, daemon=True).start()
print("busy", flush=True)
turn()
"""


@pytest.fixture
def pid() -> Iterator[int]:
    """A process all of whose threads are busy."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"busy\n"
        yield process.pid
        process.kill()


def states(pid: int) -> str:
    """The state of each thread (proc_pid_stat(5))."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return "".join(text.rpartition(")")[2].split()[0] for text in texts)


def test_all_threads_stand_still(pid: int) -> None:
    freeze(pid)
    assert states(pid) == "T" * THREADS


def test_a_signal_that_takes_its_time_is_waited_for(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.kill
    monkeypatch.setattr(os, "kill", lambda *arguments: Timer(0.1, kill, arguments).start())
    freeze(pid)
    assert states(pid) == "T" * THREADS


def test_one_that_does_not_stop_fails_the_test(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: None)
    monkeypatch.setattr(freezing, "WITHIN_S", 0.05)
    with pytest.raises(AssertionError, match=f"process {pid}: threads {pid}, .* were not stopped"):
        freeze(pid)
