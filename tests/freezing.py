"""Stopping a process, all of it: a signal is on its way for a moment, in which another thread may still answer."""

import os
import signal
import time
from pathlib import Path

WITHIN_S = 5.0


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread stands still; the process goes on with SIGCONT. Raises AssertionError."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + WITHIN_S
    while running := [path.parent.name for path in Path(f"/proc/{pid}/task").glob("*/stat") if not _stands(path)]:
        assert time.monotonic() < end, f"process {pid}: threads {', '.join(running)} were not stopped"
        time.sleep(0.001)


def _stands(stat: Path) -> bool:
    """Whether a thread is stopped, or gone (proc_pid_stat(5): the state follows the name in brackets)."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in "TtXZ"
    except (FileNotFoundError, ProcessLookupError):
        return True
