"""Running one step of the set-up: say what is done, keep the full output, turn a failure into one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

PROGRESS_EVERY_S = 5.0
# What apt-get and pip write when the network, not the package, is at fault.
NO_NETWORK = (
    "temporary failure resolving",
    "could not resolve",
    "name or service not known",
    "name resolution",
    "network is unreachable",
    "no route to host",
    "connection refused",
    "connection timed out",
    "could not connect",
    "newconnectionerror",
    "connecttimeouterror",
    "unable to connect",
)


class SetupError(Exception):
    """A step cannot be done; the text is one sentence that says which, why and what to do."""


def say(text: str, stream: TextIO | None = None) -> None:
    """Print one line of progress at once."""
    print(f"setup: {text}", file=stream or sys.stdout, flush=True)


def run_logged(argv: list[str], log: Path, failure: str, tolerate_failure: bool = False) -> bool:
    """Run `argv` with its output appended to `log`, showing its last line every few seconds.

    Returns whether it succeeded; False only with `tolerate_failure`.

    Raises:
        SetupError: it did not, or it could not be started.
    """
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C.UTF-8")
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(argv)}\n".encode())
        output.flush()
        start = output.tell()
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        except OSError as problem:
            raise SetupError(f"{failure}: {argv[0]} cannot be started ({problem.strerror})") from problem
        started_s = time.monotonic()
        while True:
            try:
                code = process.wait(timeout=PROGRESS_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                say(f"  {time.monotonic() - started_s:3.0f} s  {last_line(log, start)[:100]}")
            except BaseException:
                process.terminate()
                process.wait()
                raise
    if code == 0 or tolerate_failure:
        return code == 0
    raise SetupError(f"{failure}: {reason(log, start)} (all of it: {log})")


def written_since(log: Path, start: int) -> list[str]:
    """The non-empty lines that the log got after the byte offset `start`."""
    with log.open("rb") as stream:
        stream.seek(start)
        text = stream.read().decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def last_line(log: Path, start: int) -> str:
    """The newest line of output, or an empty string."""
    lines = written_since(log, start)
    return lines[-1] if lines else ""


def reason(log: Path, start: int) -> str:
    """The line of output that best says why a step failed."""
    lines = written_since(log, start)
    for line in lines:
        if any(sign in line.lower() for sign in NO_NETWORK):
            return f"no network: {line[:160]}"
    for line in reversed(lines):
        if line.startswith(("E:", "ERROR:", "Error:", "error:")):
            return line[:200]
    return lines[-1][:200] if lines else "it ended without a word"
