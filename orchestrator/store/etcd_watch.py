"""One watch that outlives members: it resumes after the last event seen and notices a member that hangs."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import grpc
import grpc.aio

from orchestrator.store.etcd_login import NotConnected
from orchestrator.store.etcd_members import Member, Members, wants_new_token
from orchestrator.store.key_text import key_text
from orchestrator.store.port import Change, Compacted, Refused, StoreChanged, Unavailable
from orchestrator.store.stubs import etcd_pb2 as pb

_IDLE_S = 0.5
"""Silence after which the member is asked for a sign of life. gRPC's own pings need 2.5 s or more to find a hang."""
_DEAD_S = 1.0
"""Silence after the question that makes the member dead."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5

Call = grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]
Head = tuple[int, int]
"""Cluster id and revision, from a linearizable read."""


class _StreamEnded(Exception):
    """The stream is of no use any more; open another."""


class EtcdWatch:
    """The changes below one prefix; see `Store.watch` for what it promises.

    It resumes at the last *event's* revision + 1, never at a revision from a header: a header may be ahead of the
    events that are still to come on the stream.
    """

    def __init__(
        self,
        members: Members,
        read_head: Callable[[], Awaitable[Head]],
        key: bytes,
        range_end: bytes,
        start_revision: int,
    ) -> None:
        self._members = members
        self._read_head = read_head
        self._key = key
        self._range_end = range_end
        self._next = start_revision
        self._cluster_id: int | None = None
        self._call: Call | None = None

    async def changes(self) -> AsyncGenerator[tuple[Change, ...], None]:
        """One item for each answer of the server. Raises `Compacted`, `StoreChanged`, `Refused`."""
        pause_s = _FIRST_PAUSE_S
        while True:
            member = self._members.current
            try:
                response = await self._open(member)
                while True:
                    if not response.created:
                        pause_s = _FIRST_PAUSE_S
                        yield self._take(response)
                    response = await self._next_response()
            except (NotConnected, _StreamEnded, TimeoutError, Unavailable):
                pass
            except grpc.aio.AioRpcError as error:
                self._check_final(error, member)
            finally:
                self._drop()
            self._members.rotate(member)
            await self._members.clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _open(self, member: Member) -> pb.WatchResponse:
        """Start the stream; returns the first answer, which pins where the watch begins."""
        await self._members.ready(member, self._members.attempt_timeout_s)
        call = member.watch.Watch(metadata=await self._members.metadata(member))
        self._call = call
        create = pb.WatchCreateRequest(key=self._key, range_end=self._range_end, start_revision=self._next)
        async with asyncio.timeout(self._members.attempt_timeout_s):
            await _write(call, pb.WatchRequest(create_request=create))
            response = await call.read()
        self._check(response)
        assert isinstance(response, pb.WatchResponse)
        if self._next == 0:
            self._next = response.header.revision + 1
        await self._check_store(response.header)
        return response

    async def _check_store(self, header: pb.ResponseHeader) -> None:
        """Refuse another or an older store: there our next revision lies in the future, and a watch just waits."""
        if self._cluster_id is None:
            self._cluster_id = header.cluster_id
            return
        cluster_id, revision = await self._read_head()
        if cluster_id != self._cluster_id or revision < self._next - 1:
            raise StoreChanged(
                f"watch of {self._key.decode()}: cluster {cluster_id:x} at revision {revision} answers, it was "
                f"{self._cluster_id:x} at {self._next - 1}; if that is intended, run 'bgplb store accept'"
            )

    async def _next_response(self) -> pb.WatchResponse:
        """The next answer; asks for a sign of life after a silence. Raises TimeoutError if none comes.

        A read must not be cancelled while the stream is to be kept: gRPC then ends the stream. So it runs as a task.
        """
        call = self._call
        assert call is not None
        read = asyncio.ensure_future(call.read())
        try:
            done, _ = await asyncio.wait({read}, timeout=_IDLE_S)
            if not done:
                async with asyncio.timeout(_DEAD_S):
                    await _write(call, pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
                    await asyncio.wait({read})
            response = read.result()
        finally:
            if not read.done():
                read.cancel()
                await asyncio.gather(read, return_exceptions=True)
        self._check(response)
        assert isinstance(response, pb.WatchResponse)
        return response

    def _check(self, response: object) -> None:
        if not isinstance(response, pb.WatchResponse):
            raise _StreamEnded
        if response.compact_revision:
            raise Compacted(response.compact_revision)
        if response.canceled:
            if "permission denied" in response.cancel_reason:
                raise Refused(
                    f"watch of {self._key.decode()}: {response.cancel_reason}; grant this user the key range in etcd"
                )
            if "auth" in response.cancel_reason:
                self._members.forget_token()
            raise _StreamEnded

    def _take(self, response: pb.WatchResponse) -> tuple[Change, ...]:
        changes = tuple(_change(event) for event in response.events if event.kv.mod_revision >= self._next)
        if changes:
            self._next = changes[-1].mod_revision + 1
        return changes

    def _check_final(self, error: grpc.aio.AioRpcError, member: Member) -> None:
        if wants_new_token(error):
            self._members.forget_token()
        elif error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT):
            raise Refused(
                f"watch of {self._key.decode()} at {member.endpoint}: {error.details()}; check the configuration"
            ) from error

    def _drop(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


async def _write(call: Call, request: pb.WatchRequest) -> None:
    """Send on the stream. Raises `_StreamEnded` if it ended in the same instant, which gRPC calls an invalid state."""
    try:
        await call.write(request)
    except asyncio.InvalidStateError as error:
        raise _StreamEnded from error


def _change(event: pb.Event) -> Change:
    kv = event.kv
    if event.type == pb.Event.DELETE:
        return Change(key_text(kv.key), None, 0, kv.mod_revision, 0)
    return Change(key_text(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.lease)
