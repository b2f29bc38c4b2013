"""/metrics, /healthz and /readyz over HTTP, and nothing else."""

import asyncio
import contextlib
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

READ_TIMEOUT_S = 5.0
MAX_HEAD_BYTES = 8192
MAX_CONNECTIONS = 32
TEXT = "text/plain; charset=utf-8"
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HttpError(Exception):
    """The server cannot be started. The text names the address, why, and what to do."""


class HttpServer:
    """Answers on one address until closed.

    `ready` says in a few words what is missing, or gives "" when the daemon does its work; it is called at each
    request of /readyz. /healthz answers as long as the loop runs.
    """

    def __init__(self, listen: str, registry: CollectorRegistry, ready: Callable[[], str]) -> None:
        """`listen` is ADDRESS:PORT, an IPv6 address in brackets; port 0 lets the kernel choose."""
        host, _, port = listen.rpartition(":")
        self._host = host.removeprefix("[").removesuffix("]")
        self._port = int(port)
        self._listen = listen
        self._registry = registry
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def port(self) -> int:
        """The port in use; 0 while closed."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server and self._server.sockets else 0

    async def start(self) -> None:
        """Begin to listen. Raises HttpError if the address cannot be taken."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            reason = error.strerror or str(error)
            raise HttpError(f"http {self._listen}: {reason}; set http.listen to another address, or to null") from error

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                status, kind, body, head_only = await self._reply(reader)
                head = (
                    f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + (b"" if head_only else body))
                await writer.drain()
        except (TimeoutError, ConnectionError):
            pass  # the caller is slow or gone: nobody is left to be told
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _reply(self, reader: asyncio.StreamReader) -> tuple[int, str, bytes, bool]:
        if self._open > MAX_CONNECTIONS:
            return 503, TEXT, b"too many connections\n", False
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            return 400, TEXT, b"a request of HTTP/1.1, please\n", False
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return 400, TEXT, b"a request of HTTP/1.1, please\n", False
        if words[0] not in (b"GET", b"HEAD"):
            return 405, TEXT, b"GET or HEAD\n", False
        return (*self._answer(words[1].split(b"?", 1)[0].decode("latin-1")), words[0] == b"HEAD")

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == "/healthz":
            return 200, TEXT, b"ok\n"
        if path == "/readyz":
            missing = self._ready()
            return (503, TEXT, f"{missing}\n".encode()) if missing else (200, TEXT, b"ready\n")
        return 404, TEXT, b"/metrics, /healthz or /readyz\n"
