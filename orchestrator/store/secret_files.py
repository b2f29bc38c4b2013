"""Reading a file that holds a secret: only one that nobody else may read."""

import errno
import os
import stat
from pathlib import Path


class SecretFileError(OSError):
    """The file may be read by others, is not ours, or holds nothing; `filename` and `strerror` say which and why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


def read_secret(path: Path) -> bytes:
    """The content of a file that only its owner, we or root, may read.

    Raises OSError when it can't be opened, SecretFileError when its mode or owner is not fit for a secret. Neither
    ever shows what is in it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode):
            raise SecretFileError(path, "not a plain file")
        if mode & 0o077:
            text = f"others may read or change it (mode {mode:04o}): chmod 600 it, and think of the secret as known"
            raise SecretFileError(path, text)
        if status.st_uid not in (0, os.geteuid()):
            raise SecretFileError(path, f"it belongs to user {status.st_uid}, neither to us nor to root: chown it")
        return file.read()


def read_password(path: Path) -> str:
    """The first line of such a file. Raises as `read_secret` does, and SecretFileError when that line is empty."""
    try:
        lines = read_secret(path).decode().splitlines()
    except UnicodeDecodeError:
        raise SecretFileError(path, "its first line is no UTF-8 text") from None  # the cause would show the content
    if not lines or not lines[0]:
        raise SecretFileError(path, "its first line, which is the password, is empty")
    return lines[0]
