"""The control socket: one connection, one exchange at a time, a deadline on each."""

import asyncio
import select
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from birdctl.errors import BirdRefused, BirdTimeout, BirdUnreachable, ProtocolError
from birdctl.protocol import MAX_REPLY_BYTES, Parser, Reply
from birdctl.replies import Code

DEFAULT_TIMEOUT_S = 2.0
_READ_BYTES = 256 * 1024
PORTION_BYTES = 1000
"""Bytes of commands that are sent before the replies are waited for. BIRD 2.0.12 reads into a buffer of 1 kB, and takes
one that is full, because it has not come round to the commands in it, for the end of the connection (measured)."""


class _Connection:
    """An open socket past its greeting, with the replies that came in but were not asked for yet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_reply_bytes: int) -> None:
        self.reader = reader
        self.writer = writer
        self._parser = Parser(max_reply_bytes=max_reply_bytes)
        self._ready: deque[Reply] = deque()

    @property
    def usable(self) -> bool:
        """False once BIRD has closed it, or when something lies in it that nobody asked for."""
        if self.reader.at_eof() or self.writer.is_closing() or self._ready or not self._parser.idle:
            return False
        # The event loop may not have come round to see the end yet: ask the kernel.
        poll = select.poll()
        poll.register(self.writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return not poll.poll(0)

    async def reply(self) -> Reply:
        """The next reply. Raises EOFError when BIRD closes instead, OSError, ProtocolError."""
        while not self._ready:
            data = await self.reader.read(_READ_BYTES)
            if not data:
                raise EOFError("BIRD closed the connection")
            self._ready.extend(self._parser.feed(data))
        return self._ready.popleft()


class BirdClient:
    """A client of one BIRD's control socket.

    Connects when first used and again after any failure: a connection on which something went wrong
    is never used again, since its next reply could belong to an earlier command. Exchanges queue.
    `timeout_s` bounds each exchange from the call to the last reply, waiting in the queue included.
    `read_only` asks BIRD to restrict the connection, so that a monitor cannot change anything.
    """

    def __init__(
        self,
        socket_path: Path,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        read_only: bool = False,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be above 0, not {timeout_s}")
        self.socket_path = socket_path
        self.timeout_s = timeout_s
        self.read_only = read_only
        self._max_reply_bytes = max_reply_bytes
        self._lock = asyncio.Lock()
        self._connection: _Connection | None = None
        self.process = ""
        """Which process answered last: another text after each start of BIRD, the same one for as long as it runs."""

    async def command(self, text: str, *, timeout_s: float | None = None) -> Reply:
        """Send one command and return BIRD's reply, a refusal too (see `Reply.refused`).

        `timeout_s` replaces the client's deadline for this one exchange. Raises ValueError for an
        empty text or one with control characters, BirdUnreachable, BirdTimeout, ProtocolError.
        """
        (reply,) = await self.commands((text,), timeout_s=timeout_s)
        return reply

    async def commands(self, texts: Sequence[str], *, timeout_s: float | None = None) -> tuple[Reply, ...]:
        """Send several commands, as many at a time as BIRD can take, and return their replies in order.

        BIRD does them one after the other, the later ones also when an earlier one was refused.
        Raises as `command` does; after BirdTimeout or BirdUnreachable with `sent` any may have been done.
        """
        for text in texts:
            _check(text)
        if not texts:
            return ()
        deadline_s = self.timeout_s if timeout_s is None else timeout_s
        sent = False
        try:
            async with asyncio.timeout(deadline_s), self._lock:
                connection = await self._connected()
                sent = True
                replies = await self._exchange(connection, texts)
        except TimeoutError as error:
            raise BirdTimeout(self.socket_path, "; ".join(texts)[:200], deadline_s, sent=sent) from error
        except (OSError, EOFError) as error:
            raise BirdUnreachable(self.socket_path, str(error) or type(error).__name__, sent=sent) from error
        return replies

    async def close(self) -> None:
        """Drop the connection, if there is one. The client can be used again afterwards."""
        async with self._lock:
            self._drop()

    async def _exchange(self, connection: _Connection, texts: Sequence[str]) -> tuple[Reply, ...]:
        done = False
        try:
            replies: list[Reply] = []
            for some in _portions([f"{text}\n".encode() for text in texts]):
                connection.writer.write(b"".join(some))
                await connection.writer.drain()
                replies += [await connection.reply() for _ in some]
            done = True
        finally:
            if not done:
                self._drop()
        return tuple(replies)

    async def _connected(self) -> _Connection:
        # A BIRD that was restarted since the last exchange has closed the old connection.
        if self._connection is not None and not self._connection.usable:
            self._drop()
        if self._connection is None:
            self._connection = await self._open()
        return self._connection

    async def _open(self) -> _Connection:
        reader, writer = await asyncio.open_unix_connection(self.socket_path)
        connection = _Connection(reader, writer, self._max_reply_bytes)
        try:
            greeting = await connection.reply()
            if greeting.code != Code.WELCOME:
                raise ProtocolError(f"{self.socket_path} greeted with {greeting.code:04d} {greeting.text!r}, not 0001")
            if self.read_only:
                writer.write(b"restrict\n")
                answer = await connection.reply()
                if answer.code != Code.RESTRICTED:
                    raise BirdRefused(answer.code, answer.text, "restrict")
        except BaseException:
            writer.transport.abort()
            raise
        self.process = await asyncio.to_thread(_made, self.socket_path)
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.writer.transport.abort()
            self._connection = None


def _portions(lines: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The lines in groups that fit BIRD's buffer, each line in order; one that is longer is by itself."""
    group: list[bytes] = []
    for line in lines:
        if group and sum(map(len, group)) + len(line) > PORTION_BYTES:
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _check(text: str) -> None:
    if not text.strip():
        raise ValueError("an empty command")
    if not text.isprintable():
        raise ValueError(f"a command must be one line without control characters: {text!r}")


def _made(socket_path: Path) -> str:
    """When and as what the socket was made, which BIRD does once, at its start. Raises OSError.

    "Last reboot" of `show status` is no such mark: BIRD reckons it anew at each question from two clocks, so it differs
    by a microsecond between two answers, and by whatever the time of day was set by (measured, 2.0.12).
    """
    found = socket_path.stat()
    return f"{found.st_dev}.{found.st_ino}.{found.st_ctime_ns}"
