"""Finding the lab's machines and speaking to them: by the kernel's own record, never by a file of process ids."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bgplb_lab.errors import LabError, TimedOut, Unreachable

ANSWER_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 20.0
SERVICE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], T | None], timeout_s: float, every_s: float = 0.05) -> T:
    """Ask `probe` until it answers something other than None; raises TimedOut naming `what` after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while True:
        answer = probe()
        if answer is not None:
            return answer
        if time.monotonic() >= end:
            raise TimedOut(f"waited {timeout_s:g} s in vain: {what}")
        time.sleep(every_s)


def is_first_process(pid: int) -> bool:
    """Whether the process is number 1 of a process namespace of its own."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def processes_of(specs_folder: Path) -> dict[int, str]:
    """First processes of a lab's machines and those that are just starting one: process id -> machine.

    The kernel's table is the one record that a crash can't leave stale: a process counts when its last arguments are
    `machine.py` and a spec file in `specs_folder`.
    """
    found: dict[int, str] = {}
    prefix = f"{specs_folder}/".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")[:-1]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if len(argv) >= 2 and argv[-1].startswith(prefix) and argv[-2].endswith(b"/machine.py"):
            found[int(entry.name)] = Path(os.fsdecode(argv[-1])).stem
    return found


def machine_pids(specs_folder: Path) -> dict[str, int]:
    """The running machines of a lab: name -> process id of the one that is number 1 inside."""
    return {name: pid for pid, name in processes_of(specs_folder).items() if is_first_process(pid)}


def kill_machine(name: str, pid: int) -> None:
    """SIGKILL the first process, and with it all others of the machine; returns when it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

    def gone() -> bool | None:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return True if state in ("Z", "X") else None

    wait_for(f"machine {name} (process {pid}) to die after SIGKILL", gone, 10.0, 0.005)


def ask_socket(path: str, request: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    """One line of JSON to a unix socket, one line back; raises Unreachable naming the path."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as reader:
                line = reader.readline()
        answer = json.loads(line)
    except (OSError, ValueError) as failed:
        raise Unreachable(f"no answer on {path} to {request.get('cmd')}: {failed}") from failed
    if not isinstance(answer, dict):
        raise Unreachable(f"{path} answered something that is not an object: {line[:80]!r}")
    return answer


def command(pid: int, request: dict[str, Any]) -> dict[str, Any]:
    """One command to a machine's first process; raises Unreachable, or LabError when it refuses."""
    answer = ask_socket(f"/proc/{pid}/root/run/lab.sock", request)
    if not answer.get("ok"):
        raise LabError(f"the machine with process {pid} refused {request}: {answer.get('error')}")
    return answer


def enter(pid: int, argv: Sequence[str], whole: bool) -> list[str]:
    """The argument list that runs `argv` in a machine: in its network only, or in all of its namespaces."""
    kinds = ["--net", "--pid", "--mount", "--uts", "--ipc"] if whole else ["--net"]
    return ["nsenter", f"--target={pid}", *kinds, "--", *argv]


def run(
    argv: Sequence[str],
    stdin: str = "",
    timeout_s: float = COMMAND_TIMEOUT_S,
    more_environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program and answer its standard output; raises LabError with its complaint, TimedOut when it hangs."""
    environment = {"PATH": SERVICE_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root", **(more_environment or {})}
    try:
        done = subprocess.run(
            list(argv), input=stdin, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise TimedOut(f"{' '.join(argv)} did not end within {timeout_s:g} s") from late
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip()
        raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {complaint}")
    return done.stdout
