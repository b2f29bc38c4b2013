"""Where the log goes, without ever holding up or ending the process that writes it.

Who reads a log may be asleep, gone, or out of space. A daemon that waits for him, or dies of him, is a worse loss than
some lines: what is not taken at once is dropped, and said to be once somebody reads again.
"""

import io
import json
import os
import select

AT_ONCE = select.PIPE_BUF
"""Bytes that a pipe takes without blocking if it takes any: 4096 on Linux, and a page is what it calls writable."""


class LossyStream(io.TextIOBase):
    """A text stream on a descriptor. Lines are whole or not there, but for one that a reader left in the middle."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._torn = False
        """The last line has no end."""
        self.lost = 0
        """Lines that were dropped and not spoken of yet."""

    def write(self, text: str) -> int:
        """Write what is taken at once; never raises OSError, and never waits."""
        if self.lost and self._put(self._notice()):
            self.lost = 0
        if self.lost or not self._put(text):
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        """Whether people read it as it comes."""
        return os.isatty(self._descriptor)

    def _notice(self) -> str:
        said = {"event": "lines of the log were lost", "lines": self.lost, "level": "warning"}
        return json.dumps(said, separators=(",", ":")) + "\n"

    def _put(self, text: str) -> bool:
        """Whether all of it was taken."""
        data = (("\n" if self._torn else "") + text).encode("utf-8", "replace")
        begun = 0
        try:
            while begun < len(data) and self._takes():
                begun += os.write(self._descriptor, data[begun : begun + AT_ONCE])
        except OSError:
            pass  # gone, or out of space: like one that takes nothing
        self._torn = (self._torn and begun == 0) or 0 < begun < len(data)
        return begun == len(data)

    def _takes(self) -> bool:
        """Whether it takes something without making us wait. A file always does."""
        return any(event & select.POLLOUT for _, event in self._ready.poll(0))
