"""Small files that must survive: written beside, synced, renamed, and the folder synced."""

import os
from pathlib import Path
from typing import TypeVar

from orchestrator.store.records import RecordError, decode, encode

T = TypeVar("T")


class StateFileError(Exception):
    """A state file that can't be read or written; the text names it and what to do."""


def read(path: Path) -> bytes | None:
    """What is in the file; None when there is none. Raises StateFileError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateFileError(f"{path}: can't be read: {error.strerror}") from error


def load(path: Path, type_: type[T], default: T) -> T:
    """The record in the file, or `default` when there is no file. Raises StateFileError for one that is damaged."""
    data = read(path)
    if data is None:
        return default
    try:
        return decode(data, type_, str(path))
    except RecordError as error:
        raise StateFileError(f"{error}; move the file away to start from what the kernel holds") from error


def save(path: Path, value: object) -> None:
    """Make the file hold the record, durably: when this returns, a power cut does not lose it.

    About 0.5 ms on a local disk. Raises StateFileError.
    """
    write(path, encode(value))


def write(path: Path, content: bytes) -> None:
    """Make this the file's content, durably and whole or not at all. Raises StateFileError."""
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            data = memoryview(content)
            while data:
                data = data[os.write(descriptor, data) :]  # it may take less than it is given
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StateFileError(f"{path}: can't be written: {error.strerror}; is the disk full?") from error
