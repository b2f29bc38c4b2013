"""One stream that renews any number of leases."""

import asyncio
from collections import deque

import grpc
import grpc.aio

from orchestrator.store.etcd_login import NotConnected
from orchestrator.store.etcd_members import Member, Members, wants_new_token
from orchestrator.store.port import LeaseLost, Refused, StoreError, Unavailable
from orchestrator.store.stubs import etcd_pb2 as pb

Call = grpc.aio.StreamStreamCall[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]


class EtcdKeepalive:
    """Renews leases over one stream; a stream that fails once is thrown away with all renewals under way on it."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._call: Call | None = None
        self._member: Member | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, deque[asyncio.Future[int]]] = {}
        self._open_lock = asyncio.Lock()
        self._write_lock = asyncio.Lock()
        self.opened = 0
        """Streams opened so far; one is enough as long as nothing fails."""

    async def renew(self, lease_id: int) -> int:
        """Renew at whichever member answers within the call's time; returns the seconds to live.

        Raises `LeaseLost`, `Unavailable`, `Refused`.
        """
        end = self._members.clock.now() + self._members.call_timeout_s
        last = "no try was made"
        while self._members.clock.now() < end:
            try:
                ttl_s = await self._attempt(lease_id)
            except Unavailable as error:
                last = str(error)
                await self._members.clock.sleep(0.02)
                continue
            if ttl_s <= 0:
                raise LeaseLost(lease_id)
            return ttl_s
        raise Unavailable(f"renewal of lease {lease_id:x}: no etcd member answered, last {last}; is etcd up?")

    async def _attempt(self, lease_id: int) -> int:
        limit_s = self._members.attempt_timeout_s
        call: Call | None = None
        try:
            call = await self._open()
            answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(limit_s):
                async with self._write_lock:  # gRPC allows one write at a time on a stream
                    self._waiting.setdefault(lease_id, deque()).append(answer)
                    await call.write(pb.LeaseKeepAliveRequest(ID=lease_id))
                return await answer
        except (TimeoutError, NotConnected, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            # InvalidStateError: the stream had ended before the write
            if isinstance(error, grpc.aio.AioRpcError) and wants_new_token(error):
                self._members.forget_token()
            if call is not None:
                self._drop(call)
            raise Unavailable(f"keepalive stream: {error!r}") from error

    async def _open(self) -> Call:
        async with self._open_lock:
            if self._call is None:
                member = self._members.current
                try:
                    await self._members.ready(member, self._members.attempt_timeout_s)
                    metadata = await self._members.metadata(member)
                except (NotConnected, grpc.aio.AioRpcError):
                    self._members.rotate(member)
                    raise
                self.opened += 1
                self._member = member
                self._call = member.lease.LeaseKeepAlive(metadata=metadata)
                self._reader = asyncio.create_task(self._read(self._call), name="keepalive answers")
            return self._call

    async def _read(self, call: Call) -> None:
        """Hand each answer to the oldest renewal of that lease; when the stream ends, all under way have failed.

        etcd 3.7 (not 3.4) ends the stream of who renews a lease with keys that he may not write.
        """
        failure: StoreError = Unavailable("keepalive stream lost")
        try:
            while True:
                response = await call.read()
                if not isinstance(response, pb.LeaseKeepAliveResponse):
                    break
                waiting = self._waiting.get(response.ID)
                if waiting:
                    answer = waiting.popleft()
                    if not waiting:
                        del self._waiting[response.ID]
                    if not answer.done():
                        answer.set_result(response.TTL)
        except grpc.aio.AioRpcError as error:
            if wants_new_token(error):
                self._members.forget_token()
            elif error.code() is grpc.StatusCode.PERMISSION_DENIED:
                failure = Refused(f"renewal of a lease: {error.details()}; it has keys that this user may not write")
        self._drop(call, failure)

    def _drop(self, call: Call, failure: StoreError | None = None) -> None:
        if self._call is not call:
            return
        self._call = None
        if self._member is not None:
            self._members.rotate(self._member)
        call.cancel()
        waiting, self._waiting = self._waiting, {}
        for answers in waiting.values():
            for answer in answers:
                if not answer.done():
                    answer.set_exception(failure or Unavailable("keepalive stream lost"))
                    answer.exception()  # its waiter may be gone already; that is no error of its own

    async def close(self) -> None:
        """End the stream; leases live on until they expire."""
        if self._call is not None:
            self._drop(self._call)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
