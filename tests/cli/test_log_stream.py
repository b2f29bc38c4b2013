"""The stream that a log is written to: never a wait, never an error, and what was dropped is told."""

import fcntl
import json
import os
from collections.abc import Iterator

import pytest

from orchestrator.log_stream import LossyStream

SMALL = 8192


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(reader, writer) of a pipe that holds two pages; what a test leaves open is closed."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALL)
    os.set_blocking(reader, False)
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def drained(reader: int) -> list[str]:
    try:
        return os.read(reader, 1 << 20).decode().splitlines()
    except BlockingIOError:
        return []


def test_lines_pass_as_they_come(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream = LossyStream(writer)
    assert stream.write("one\n") == 4
    stream.write("zwei \u00fc\n")
    assert drained(reader) == ["one", "zwei \u00fc"]
    assert stream.lost == 0


def test_what_nobody_reads_is_dropped_and_told_once_somebody_does(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream = LossyStream(writer)
    for number in range(100):
        stream.write(f"{number:099}\n")
    lost = stream.lost
    assert lost > 0, "a hundred lines of a hundred bytes do not fit"
    taken = drained(reader)
    assert [int(line) for line in taken] == list(range(100 - lost)), "what was taken is whole and in order"
    stream.write("again\n")
    notice, line = drained(reader)
    assert json.loads(notice) == {"event": "lines of the log were lost", "lines": lost, "level": "warning"}
    assert (line, stream.lost) == ("again", 0)


def test_a_line_longer_than_the_pipe_is_cut_and_the_next_one_begins_anew(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream = LossyStream(writer)
    stream.write("x" * (3 * SMALL) + "\n")
    assert stream.lost == 1
    stream.write("nothing of this is taken\n")
    (torn,) = drained(reader)
    assert set(torn) == {"x"}
    stream.write("next\n")
    assert drained(reader) == ["", '{"event":"lines of the log were lost","lines":2,"level":"warning"}', "next"]


def test_a_reader_that_is_gone_is_no_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    stream = LossyStream(writer)
    stream.write("to nobody\n")
    stream.write("to nobody\n")
    assert stream.lost == 2


def test_a_file_without_space_is_no_error() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        stream = LossyStream(full.fileno())
        stream.write("nothing fits\n")
        assert stream.lost == 1
