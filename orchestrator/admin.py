"""The admin socket: a daemon answers what it knows, one JSON object a line, to whoever may open the socket.

A request is `{"cmd": "dump", "history": 5}`; the answer is one line, `{"error": "..."}` when it cannot be given.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

SOCKET_MODE = 0o660
MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""A dump of 1000 machines with 200 transitions each has some 60 MB."""
REQUEST_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 16

Command = Callable[[Mapping[str, Any]], Awaitable[object]]
"""Takes the whole request, gives what is sent back as JSON. Raises CommandRefused for one it can't serve."""


class AdminError(Exception):
    """The socket cannot be served, or the daemon behind it not be asked. The text says where, why and what to do."""


class CommandRefused(Exception):
    """A command has no answer; the text is sent back."""


class AdminServer:
    """Serves commands on a unix socket until closed."""

    def __init__(self, path: Path, commands: Mapping[str, Command]) -> None:
        self._path = path
        self._commands = dict(commands)
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        """Begin to listen. Raises AdminError when the folder cannot be written to or another process answers there.

        The socket gets its mode before its name, so that nobody gets in between.
        """
        if self._path.is_socket() and await _answers(self._path):
            raise AdminError(f"{self._path}: another process serves this socket; stop it, or use another name")
        draft = self._path.with_name(f".{self._path.name}.new")
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, draft, limit=MAX_REQUEST_BYTES)
            draft.chmod(SOCKET_MODE)
            draft.rename(self._path)
        except OSError as error:
            raise AdminError(f"{self._path}: {error.strerror}; check run_dir and its owner") from error

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            while True:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    line = await _read_line(reader)
                    if line is None:
                        return
                    answer = await self._answer(line)
                    if writer.is_closing():
                        return  # the caller is gone; to write would be a RuntimeError of uvloop's
                    writer.write(answer + b"\n")
                    await writer.drain()
        except (TimeoutError, ConnectionError):
            pass  # the caller is silent or gone: nobody is left to be told
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, line: bytes) -> bytes:
        if self._open > MAX_CONNECTIONS:
            return _json({"error": f"more than {MAX_CONNECTIONS} connections; ask again later"})
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return _json({"error": "a request is one line of JSON"})
        name = request.get("cmd") if isinstance(request, dict) else None
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            return _json({"error": f"cmd is one of {', '.join(sorted(self._commands))}"})
        try:
            # In a thread, since an answer may be megabytes, and the commands' loop has other work to do.
            return await asyncio.to_thread(_json, await command(request))
        except CommandRefused as error:
            return _json({"error": str(error)})


def history_asked(request: Mapping[str, Any], most: int = 200) -> int:
    """How many transitions a request for a dump wants. Raises CommandRefused for anything but 0 to `most`."""
    wanted = request.get("history", 0)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted <= most:
        raise CommandRefused(f"history is a whole number of 0 to {most}")
    return wanted


async def ask(path: Path, request: Mapping[str, Any], timeout_s: float = 5.0) -> Any:
    """Send one request to a daemon's socket and give its answer.

    Raises AdminError when nobody answers in time, and CommandRefused when the daemon says that it can't.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_ANSWER_BYTES)
            try:
                writer.write(_json(request) + b"\n")
                await writer.drain()
                line = await _read_line(reader)
            finally:
                writer.close()
    except TimeoutError as error:
        raise AdminError(f"{path}: no answer within {timeout_s:.0f} s; look at the daemon's log") from error
    except OSError as error:
        raise AdminError(f"{path}: {error.strerror or error}; is the daemon running, and may you open it?") from error
    if line is None:
        raise AdminError(f"{path}: closed without an answer; look at the daemon's log")
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise AdminError(f"{path}: the answer is no JSON; is it a socket of bgplb?") from error
    if isinstance(answer, dict) and set(answer) == {"error"}:
        raise CommandRefused(str(answer["error"]))
    return answer


async def _answers(path: Path) -> bool:
    """Whether somebody accepts connections there; a socket that a killed process left does not."""
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _read_line(reader: asyncio.StreamReader) -> bytes | None:
    """One line without its end; None when the other side has closed, or sends a line that is too long."""
    try:
        return (await reader.readuntil(b"\n")).rstrip(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
