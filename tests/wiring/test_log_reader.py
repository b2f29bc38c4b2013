"""Real daemons whose log goes nowhere: its reader is gone, asleep, or its disk is full. They work all the same."""

import fcntl
import json
import os
import subprocess
from contextlib import suppress

import pytest

from tests.wiring.box import BGPLB, REPOSITORY, Box

pytestmark = [pytest.mark.root]


def leading(box: Box) -> bool:
    return "/bgplb/v1/leader" in box.stored()


def start(box: Box, log: int) -> "subprocess.Popen[bytes]":
    """An orchestrator whose standard error is that descriptor."""
    config = box.config("orchestrator", manifests=str(box.folder))
    command = box._inside((*BGPLB, "orchestrator", "--config", str(config)))
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY)


def ends_well(box: Box, process: "subprocess.Popen[bytes]") -> None:
    try:
        box.wait(lambda: leading(box) or process.poll() is not None, "it leads")
        assert process.poll() is None, f"it ended with {process.returncode}"
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(10)


def test_one_whose_reader_is_gone(box: Box) -> None:
    box.etcd()
    reader, writer = os.pipe()
    os.close(reader)
    process = start(box, writer)
    os.close(writer)
    ends_well(box, process)


def test_one_whose_disk_for_logs_is_full(box: Box) -> None:
    box.etcd()
    with open("/dev/full", "wb", buffering=0) as full:
        process = start(box, full.fileno())
    ends_well(box, process)


def test_one_whose_reader_is_asleep(box: Box) -> None:
    """Nobody reads, and the pipe is full before it says its first word."""
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    os.write(writer, b"." * (size - 1) + b"\n")
    process = start(box, writer)
    os.close(writer)
    box.wait(lambda: "orchestrator.sock" in box.run("ls", "/run/bgplb", check=False).stdout, "it starts")
    box.etcd()
    box.wait(lambda: leading(box) or process.poll() is not None, "it leads")
    assert process.poll() is None
    os.set_blocking(reader, False)
    os.read(reader, size)
    (box.folder / "bad.yaml").write_text("half a fi: [")  # something to speak of
    lines: list[bytes] = []

    def spoken() -> list[bytes]:
        with suppress(BlockingIOError):
            lines.extend(os.read(reader, size).splitlines())
        return lines

    box.wait(spoken, "a word")
    ends_well(box, process)
    os.close(reader)
    first = json.loads(lines[0])
    assert first["event"] == "lines of the log were lost"
    assert first["lines"] > 0
    assert len(lines) > 1
