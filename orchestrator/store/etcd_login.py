"""Logging in to etcd: the certificates, the user and the password, the token that comes of it, and their renewal."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import grpc
import grpc.aio

from fsm.ports import Clock
from orchestrator.store.port import Refused
from orchestrator.store.stubs import etcd_pb2 as pb
from orchestrator.store.stubs import etcd_pb2_grpc as rpc

_READ_AGAIN_S = 1.0
"""How often what we log in with is read again while something is wrong with it."""
LONGEST_S = 5.0
"""etcd hashes each password that it is shown, at a cost that it sets: a busy machine may take seconds over it."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts: the authority that signed the members' certificates, and our own certificate if they ask for one."""

    ca: bytes
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    """Name to expect in the members' certificates instead of the one in the endpoint."""


@dataclass(frozen=True, slots=True)
class Login:
    """How we show who we are: certificates for https, and a user with a password where those do not say it."""

    tls: Tls | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)


ReadAgain = Callable[[Login], Login]
"""Told what we log in with, answers what the files say now; raises OSError for files that can't be used."""


class NotConnected(Exception):
    """No connection to this member yet; nothing was sent. Never leaves the client."""


class LogInUnderWay(NotConnected):
    """A log-in takes longer than one try may; it goes on by itself."""


class LogIn:
    """The login in use and its token. However many calls want a token, there is one log-in at a time.

    ``read_again`` is asked before each log-in and after each connection that failed, at most once a second: so a
    certificate or a password that is replaced in its file needs no restart. What can't be used (half a pair, while it
    is being replaced) leaves in force what was known.
    """

    def __init__(self, login: Login, clock: Clock, attempt_timeout_s: float, read_again: ReadAgain | None) -> None:
        if (login.username is None) != (login.password is None):
            raise ValueError("etcd user name and password go together")
        self.login = login
        self.unreadable = ""
        """What is wrong with the files, to be told with the failure that made us look; empty if nothing is."""
        self._clock = clock
        self._read = read_again
        self._read_at_s = clock.now()
        self._attempt_timeout_s = self._limit_s = attempt_timeout_s
        self._token: str | None = None
        self._open_to_all = False
        self._task: asyncio.Task[None] | None = None

    def look_again(self) -> None:
        """Take what the files say now."""
        now_s = self._clock.now()
        if self._read is None or now_s < self._read_at_s + _READ_AGAIN_S:
            return
        self._read_at_s = now_s
        try:
            self.login = self._read(self.login)
            self.unreadable = ""
        except OSError as error:
            self.unreadable = f"; {error.filename}: {error.strerror}"

    def forget(self) -> None:
        """Log in again before the next call."""
        self._token = None
        self._open_to_all = False

    async def token(self, auth: "rpc.AuthAsyncStub", endpoint: str) -> str | None:
        """What goes with every call, None if nothing has to. Logs in first if needed, at that member.

        Where access control is off nobody logs in, until etcd says that it is on: so it can be turned on under running
        daemons. Raises AioRpcError, `Refused`, `LogInUnderWay`.
        """
        if self.login.username is None or self._token is not None or self._open_to_all:
            return self._token
        if self._task is None:
            self._task = asyncio.create_task(self._log_in(auth, endpoint), name="log-in to etcd")
        task = self._task
        await asyncio.wait({task}, timeout=self._attempt_timeout_s)
        if not task.done():
            raise LogInUnderWay(f"{endpoint}: logging in as {self.login.username!r} takes long")
        if self._task is task:
            self._task = None
        task.result()
        return self._token

    async def _log_in(self, auth: "rpc.AuthAsyncStub", endpoint: str) -> None:
        """One try. One that comes to nothing for lack of time leaves more time to the next, at another member."""
        self.look_again()
        name = self.login.username or ""
        request = pb.AuthenticateRequest(name=name, password=self.login.password or "")
        try:
            self._token = (await auth.Authenticate(request, timeout=self._limit_s)).token
            self._limit_s = self._attempt_timeout_s
        except grpc.aio.AioRpcError as error:
            text = error.details() or ""
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise Refused(
                    f"log-in of {name!r} at {endpoint}: {text}; check user and password{self.unreadable}"
                ) from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._limit_s = min(2 * self._limit_s, LONGEST_S)
            if "authentication is not enabled" not in text:
                raise
            self._open_to_all = True

    async def close(self) -> None:
        """End a log-in that is under way."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, grpc.aio.AioRpcError, Refused):
                await self._task
