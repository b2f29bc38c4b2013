"""Channels to the members of an etcd cluster: choice of the member, deadlines, log-in, and what each failure means."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc
import grpc.aio

from fsm.ports import Clock
from orchestrator.store.etcd_login import LONGEST_S, LogIn, Login, LogInUnderWay, NotConnected, ReadAgain, Tls
from orchestrator.store.port import Compacted, Indeterminate, LeaseLost, Refused, StoreError, Unavailable
from orchestrator.store.stubs import etcd_pb2_grpc as rpc

Metadata = tuple[tuple[str, str], ...]
Result = TypeVar("Result")

# Pings of the transport are only a backstop; a hung member is found by deadlines and by the heartbeat of each watch.
# etcd answers pings more often than every 5 s, and any without a call under way, with GOAWAY too_many_pings.
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 1_500),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 1_500),
    ("grpc.http2.bdp_probe", 0),  # these are pings as well
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 600),  # how long one connection may take to stand, TLS included
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),  # only we know which calls may be repeated
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 << 20),
)

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.1

_TOKEN_TEXTS = ("invalid auth token", "revision of auth store is old", "user name is empty")
_NOT_APPLIED_TEXTS = ("etcdserver: no leader", "etcdserver: too many requests")


class Member:
    """One channel and the stubs on it. A channel per member lets TLS check each member's own name."""

    def __init__(self, endpoint: str, tls: Tls | None) -> None:
        scheme, separator, rest = endpoint.rpartition("://")
        if scheme not in ("", "http", "https") or not rest or "/" in rest.rstrip("/"):
            raise ValueError(f"etcd endpoint {endpoint!r}: expected http://HOST:PORT or https://HOST:PORT")
        if separator and (scheme == "https") != (tls is not None):
            raise ValueError(f"etcd endpoint {endpoint!r}: https needs a CA, and a CA needs https")
        self.endpoint = rest.rstrip("/")
        self._former: grpc.aio.Channel | None = None
        self._connect(tls)

    def _connect(self, tls: Tls | None) -> None:
        """A new channel, that is not used before somebody calls."""
        self.tls = tls
        options: list[tuple[str, int | str]] = list(_CHANNEL_OPTIONS)
        if tls is None:
            self.channel = grpc.aio.insecure_channel(self.endpoint, options=options)
        else:
            if tls.server_name is not None:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
            self.channel = grpc.aio.secure_channel(self.endpoint, credentials, options=options)
        self.kv = rpc.KVStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self.maintenance = rpc.MaintenanceStub(self.channel)

    async def renew(self, tls: Tls | None) -> None:
        """Throw away a channel that can't connect, for one with these certificates.

        Others may be waiting on the old one at this moment, and closing it would cancel them: it is closed later.
        """
        former, self._former = self._former, self.channel
        self._connect(tls)
        if former is not None:
            await former.close()

    async def close(self) -> None:
        """Close what is open; calls under way end with an error."""
        channels = [self.channel] if self._former is None else [self.channel, self._former]
        await asyncio.gather(*(channel.close() for channel in channels))

    async def connected(self, limit_s: float) -> None:
        """Wait until the channel is ready; raises `NotConnected` at the first failure or after the limit.

        Waiting here, before the call, is what makes a write to an unreachable member known not to have happened.
        """
        if self.channel.get_state() is grpc.ChannelConnectivity.READY:
            return  # as nearly always: without a timer
        try:
            async with asyncio.timeout(limit_s):
                while (state := self.channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        raise NotConnected(f"{self.endpoint}: connection refused or lost")
                    await self.channel.wait_for_state_change(state)
        except TimeoutError as error:
            raise NotConnected(f"{self.endpoint}: no connection after {limit_s:.1f} s") from error


def wants_new_token(error: grpc.aio.AioRpcError) -> bool:
    """Whether the call failed only because the log-in token is missing or too old."""
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(text in details for text in _TOKEN_TEXTS)


def final_error(error: grpc.aio.AioRpcError, what: str, endpoint: str, lease_id: int) -> StoreError | None:
    """The error for an answer that no other member would change; None if another try makes sense."""
    code, details = error.code(), error.details() or ""
    text = f"{what} at {endpoint}: {details} ({code.name})"
    match code:
        case grpc.StatusCode.NOT_FOUND if "lease" in details:
            return LeaseLost(lease_id)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "space exceeded" in details:
            return Refused(f"{text}; compact and defragment etcd, then disarm its NOSPACE alarm")
        case grpc.StatusCode.OUT_OF_RANGE:  # a read at a revision that is no more, or not yet
            return Compacted(0)
        case grpc.StatusCode.PERMISSION_DENIED:
            return Refused(f"{text}; grant this user the key range in etcd")
        case (
            grpc.StatusCode.INVALID_ARGUMENT
            | grpc.StatusCode.FAILED_PRECONDITION
            | grpc.StatusCode.NOT_FOUND
            | grpc.StatusCode.UNIMPLEMENTED
        ):
            return Refused(f"{text}; the request can't succeed as it is, check the configuration of the store")
    return None


def surely_not_applied(error: grpc.aio.AioRpcError) -> bool:
    """Whether a write that failed so can't have been applied. In doubt: it can."""
    details = error.details() or ""
    return any(text in details for text in _NOT_APPLIED_TEXTS)


class Members:
    """All members, the one in use, and calls with rotation.

    ``attempt_timeout_s`` bounds one try at one member, ``call_timeout_s`` all tries of a call. ``read_again``: see
    `LogIn`.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        clock: Clock,
        login: Login,
        attempt_timeout_s: float,
        call_timeout_s: float,
        read_again: ReadAgain | None = None,
    ) -> None:
        if not endpoints:
            raise ValueError("the store needs at least one etcd endpoint")
        self.attempt_timeout_s = attempt_timeout_s
        self.call_timeout_s = call_timeout_s
        self.clock = clock
        self._members = [Member(endpoint, login.tls) for endpoint in endpoints]
        self._current = 0
        self._log_in = LogIn(login, clock, attempt_timeout_s, read_again)

    @property
    def current(self) -> Member:
        """The member that calls go to."""
        return self._members[self._current]

    def rotate(self, failed: Member) -> None:
        """Go to the next member, unless another call that saw the same failure has done so."""
        if self.current is failed:
            self._current = (self._current + 1) % len(self._members)

    def forget_token(self) -> None:
        """Log in again before the next call."""
        self._log_in.forget()

    async def ready(self, member: Member, limit_s: float) -> None:
        """Wait for the member's connection, as `Member.connected`; after a failure the next try has today's files."""
        try:
            await member.connected(limit_s)
        except NotConnected as error:
            self._log_in.look_again()
            tls = self._log_in.login.tls
            if member.tls != tls:
                await member.renew(tls)
            raise NotConnected(f"{error}{self._log_in.unreadable}") from error

    async def metadata(self, member: Member) -> Metadata:
        """What goes with every call; logs in first if needed. Raises AioRpcError, `Refused`, `NotConnected`.

        ``hasleader`` makes a member that lost its quorum say so at once instead of hanging or going deaf.
        """
        token = await self._log_in.token(member.auth, member.endpoint)
        leader: Metadata = (("hasleader", "true"),)
        return leader if token is None else (*leader, ("token", token))

    async def call(
        self,
        what: str,
        invoke: Callable[[Member, Metadata, float], Awaitable[Result]],
        *,
        write: bool,
        lease_id: int = 0,
    ) -> Result:
        """Call until a member answers or the call's time is over.

        With ``write`` a try whose outcome is unknown ends the call with `Indeterminate`; otherwise it is repeated.
        While a log-in takes its time the call is given up to 5 s more: nothing else could be answered before it.
        Raises `Unavailable`, `Indeterminate`, `Refused`, `LeaseLost`.
        """
        end = self.clock.now() + self.call_timeout_s
        longest = end + LONGEST_S
        pause_s = _FIRST_PAUSE_S
        last = "no try was made"
        while (left_s := end - self.clock.now()) > 0:
            member = self.current
            sent = False
            try:
                await self.ready(member, min(left_s, self.attempt_timeout_s))
                metadata = await self.metadata(member)
                sent = True
                # gRPC itself ends the call at this deadline, so no other time limit is needed around it.
                return await invoke(member, metadata, min(max(end - self.clock.now(), 0.001), self.attempt_timeout_s))
            except LogInUnderWay as error:
                last = str(error)
                end = min(self.clock.now() + self.call_timeout_s, longest)
            except NotConnected as error:
                last = str(error)
            except grpc.aio.AioRpcError as error:
                last = f"{member.endpoint}: {error.details()} ({error.code().name})"
                if wants_new_token(error) and self._log_in.login.username is not None:
                    self.forget_token()
                elif (final := final_error(error, what, member.endpoint, lease_id)) is not None:
                    raise final from error
                elif write and sent and not surely_not_applied(error):
                    self.rotate(member)
                    raise Indeterminate(
                        f"{what}: sent, but no answer ({last}); read the key before deciding anything"
                    ) from error
            self.rotate(member)
            await self.clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        raise Unavailable(f"{what}: no etcd member answered within {self.call_timeout_s} s, last {last}; is etcd up?")

    async def close(self) -> None:
        """Close all channels; calls under way end with an error."""
        await self._log_in.close()
        await asyncio.gather(*(member.close() for member in self._members))
