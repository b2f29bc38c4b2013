"""BIRD's control protocol without IO: bytes in, replies out.

A reply is one or more lines `NNNN-text` and a last one `NNNN text`. A line that begins with a space
repeats the code of the line before it. A line that begins with `+` is an unasked log line (after
`echo`) and is skipped. Source: doc/reply_codes in BIRD's source, and BIRD 2.0.12 itself.
"""

from dataclasses import dataclass

from birdctl.errors import ProtocolError
from birdctl.replies import is_refusal

MAX_LINE_BYTES = 64 * 1024
MAX_REPLY_BYTES = 32 * 1024 * 1024

_CODE_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a reply: its code (0..9999), its own or the one it continues, and the text after it."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole reply. `code` is that of the last line; a table ends with 0."""

    code: int
    lines: tuple[Line, ...]

    @property
    def refused(self) -> bool:
        """Whether BIRD said no."""
        return is_refusal(self.code)

    @property
    def text(self) -> str:
        """The text of the last line: what a refusal explains itself with."""
        return self.lines[-1].text

    def texts(self, code: int) -> tuple[str, ...]:
        """The texts of all lines with this code, in order."""
        return tuple(line.text for line in self.lines if line.code == code)

    def has(self, code: int) -> bool:
        """Whether a line has this code."""
        return any(line.code == code for line in self.lines)


class Parser:
    """Cuts a byte stream into replies; keeps what is incomplete for the next `feed`.

    `max_line_bytes` and `max_reply_bytes` bound what a broken peer can make us hold. After a
    ProtocolError the stream has no meaning any more: each further `feed` raises it again.
    """

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        if max_line_bytes < _CODE_DIGITS + 1 or max_reply_bytes < max_line_bytes:
            raise ValueError("a line needs at least 5 bytes, and a reply at least as many as a line")
        self._max_line_bytes = max_line_bytes
        self._max_reply_bytes = max_reply_bytes
        self._rest = b""
        self._lines: list[Line] = []
        self._reply_bytes = 0
        self._broken: str | None = None

    @property
    def idle(self) -> bool:
        """Whether no part of a reply is being held."""
        return not self._rest and not self._lines

    def feed(self, data: bytes) -> list[Reply]:
        """Take more bytes, give the replies they complete. Raises ProtocolError."""
        if self._broken is not None:
            raise ProtocolError(self._broken)
        *whole, self._rest = (self._rest + data).split(b"\n")
        replies: list[Reply] = []
        for raw in whole:
            reply = self._line(raw)
            if reply is not None:
                replies.append(reply)
        if len(self._rest) > self._max_line_bytes:
            raise self._fault(f"a line of more than {self._max_line_bytes} bytes")
        return replies

    def _line(self, raw: bytes) -> Reply | None:
        if len(raw) > self._max_line_bytes:
            raise self._fault(f"a line of more than {self._max_line_bytes} bytes")
        if raw[:1] == b"+":
            return None
        self._reply_bytes += len(raw) + 1
        if self._reply_bytes > self._max_reply_bytes:
            raise self._fault(f"a reply of more than {self._max_reply_bytes} bytes")
        if raw[:1] == b" ":
            if not self._lines:
                raise self._fault(f"a continuation with nothing before it: {_shown(raw)}")
            self._lines.append(Line(self._lines[-1].code, _text(raw[1:])))
            return None
        digits, mark = raw[:_CODE_DIGITS], raw[_CODE_DIGITS : _CODE_DIGITS + 1]
        if len(digits) != _CODE_DIGITS or not digits.isdigit() or mark not in (b"-", b" "):
            raise self._fault(f"a line without a code: {_shown(raw)}")
        self._lines.append(Line(int(digits), _text(raw[_CODE_DIGITS + 1 :])))
        return self._complete() if mark == b" " else None

    def _complete(self) -> Reply:
        reply = Reply(self._lines[-1].code, tuple(self._lines))
        self._lines = []
        self._reply_bytes = 0
        return reply

    def _fault(self, what: str) -> ProtocolError:
        self._broken = f"not BIRD's control protocol: {what}; is this socket BIRD's?"
        self._rest, self._lines = b"", []
        return ProtocolError(self._broken)


def _text(raw: bytes) -> str:
    # Descriptions and interface names come from the operator and may be in any encoding.
    return raw.decode("utf-8", errors="replace").rstrip("\r")


def _shown(raw: bytes) -> str:
    return repr(raw[:80])
