"""Finding a Python that can carry the project: 3.11 or newer, able to make virtual environments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CANDIDATES = ("python3.11", "python3.12", "python3.13", "python3.14", "python3")
OLDEST = (3, 11)
# ensurepip is what Debian splits off into python3-venv: without it `-m venv` fails half-way.
PROBE = (
    "import sys, ensurepip, venv; print(sys.version_info[0], sys.version_info[1], sys.version_info[2], sys.executable)"
)


class Interpreter(NamedTuple):
    """A Python that was started and answered."""

    path: str
    version: str

    @staticmethod
    def probe(command: str) -> Interpreter | None:
        """Start `command`; None if it is absent, does not run, is too old, or cannot make environments.

        Version managers leave stubs of versions that are not selected, so that a name on PATH proves nothing.
        """
        try:
            answer = subprocess.run(
                [command, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        words = answer.stdout.decode().split(None, 3)
        if answer.returncode != 0 or len(words) != 4:
            return None
        if (int(words[0]), int(words[1])) < OLDEST:
            return None
        return Interpreter(words[3].strip(), ".".join(words[:3]))


def find_interpreter(venv: Path) -> Interpreter | None:
    """The existing environment's own Python if it works, so that it is kept; else the one that runs
    this script if it will do, else the first of the usual names that does."""
    for command in (str(venv / "bin" / "python"), sys.executable, *CANDIDATES):
        found = Interpreter.probe(command) if command else None
        if found is not None:
            return found
    return None
