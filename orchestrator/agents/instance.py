"""Who this installation is: a UUID in its state directory, held by one process at a time."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


class InstanceError(Exception):
    """The state directory can't be used, or another process of this name runs on this machine."""


class Instance:
    """The UUID, and the lock on its file: it is free again when this process ends, however it ends."""

    def __init__(self, state_dir: Path, make_id: Callable[[], str]) -> None:
        """Raises InstanceError."""
        self.path = state_dir / "instance"
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InstanceError(f"{self.path}: {error.strerror}: state_dir must be a folder we may write") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise InstanceError(f"{self.path}: in use: another process with this state_dir is running") from None
        text = os.read(self._descriptor, 64).decode("ascii", "replace").strip()
        if not text:
            text = make_id()
            os.write(self._descriptor, text.encode())
            os.fsync(self._descriptor)
        self.id = text

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
