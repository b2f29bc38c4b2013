"""The store on a real etcd (3.4 or newer), over its gRPC interface."""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from functools import partial

from fsm.ports import Clock
from orchestrator.store.etcd_keepalive import EtcdKeepalive
from orchestrator.store.etcd_login import Login, ReadAgain, Tls
from orchestrator.store.etcd_members import Member, Members, Metadata
from orchestrator.store.etcd_watch import EtcdWatch, Head
from orchestrator.store.key_text import key_text
from orchestrator.store.port import (
    Change,
    Compacted,
    CreatedAt,
    Delete,
    Grant,
    Guard,
    KeyValue,
    LeaseLost,
    Op,
    Put,
    Snapshot,
    Status,
    TxnResult,
    check_txn,
)
from orchestrator.store.stubs import etcd_pb2 as pb

__all__ = ["EtcdStore", "Login", "Tls"]

PAGE_KEYS = 1000
"""Keys in one answer: some milliseconds of work."""


class EtcdStore:
    """`Store` on etcd: one channel per member, rotation, a deadline on everything.

    A read is repeated at the next member until the call's time is over. A write is repeated only while it certainly
    was not applied; else the call ends with `Indeterminate`. Every read is linearizable.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        clock: Clock,
        tls: Tls | None = None,
        username: str | None = None,
        password: str | None = None,
        attempt_timeout_s: float = 0.7,
        call_timeout_s: float = 2.0,
        read_again: ReadAgain | None = None,
    ) -> None:
        """Endpoints are ``http://HOST:PORT`` or, with ``tls``, ``https://HOST:PORT``; ValueError for others.

        ``read_again``: see `LogIn`.

        Must be made inside a running event loop.
        """
        login = Login(tls, username, password)
        self._members = Members(endpoints, clock, login, attempt_timeout_s, call_timeout_s, read_again)
        self._keepalive = EtcdKeepalive(self._members)

    async def get(self, key: str) -> KeyValue | None:
        """See `Store.get`."""
        response = await self._range(f"read of {key}", pb.RangeRequest(key=key.encode()))
        return _key_value(response.kvs[0]) if response.kvs else None

    async def list(self, prefix: str) -> Snapshot:
        """See `Store.list`. Read in pages of one revision: thousands of keys at once would hold up all else here."""
        while True:
            with suppress(Compacted):  # of that revision, while we read: begin again with the one of now
                return await self._pages(prefix)

    async def _pages(self, prefix: str) -> Snapshot:
        start, end = prefix.encode(), prefix_end(prefix.encode())
        items: list[KeyValue] = []
        head: pb.ResponseHeader | None = None
        more = True
        while more:
            request = pb.RangeRequest(key=start, range_end=end, limit=PAGE_KEYS, revision=head.revision if head else 0)
            response = await self._range(f"list of {prefix}", request)
            head = head or response.header
            items += map(_key_value, response.kvs)
            more = response.more
            start = response.kvs[-1].key + b"\0" if more else start
        assert head is not None
        return Snapshot(head.revision, head.cluster_id, tuple(items))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """See `Store.put`."""
        request = pb.PutRequest(key=key.encode(), value=value, lease=lease)

        def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Awaitable[pb.PutResponse]:
            return member.kv.Put(request, metadata=metadata, timeout=timeout_s)

        response = await self._members.call(f"write of {key}", invoke, write=True, lease_id=lease)
        return response.header.revision

    async def delete(self, key: str) -> int:
        """See `Store.delete`."""
        request = pb.DeleteRangeRequest(key=key.encode())

        def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Awaitable[pb.DeleteRangeResponse]:
            return member.kv.DeleteRange(request, metadata=metadata, timeout=timeout_s)

        response = await self._members.call(f"deletion of {key}", invoke, write=True)
        return response.header.revision

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        """See `Store.txn`."""
        check_txn(guards, ops)
        request = pb.TxnRequest(compare=[_compare(guard) for guard in guards], success=[_request_op(op) for op in ops])
        lease_id = next((op.lease for op in ops if isinstance(op, Put) and op.lease), 0)

        def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Awaitable[pb.TxnResponse]:
            return member.kv.Txn(request, metadata=metadata, timeout=timeout_s)

        what = f"transaction of {len(ops)} operations{_about(ops)}"
        response = await self._members.call(what, invoke, write=True, lease_id=lease_id)
        return TxnResult(response.succeeded, response.header.revision)

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[tuple[Change, ...], None]:
        """See `Store.watch`."""
        start = prefix.encode()
        head = partial(self._head, prefix)
        return EtcdWatch(self._members, head, start, prefix_end(start), start_revision).changes()

    async def grant(self, ttl_s: int) -> Grant:
        """See `Store.grant`. A grant whose answer got lost is repeated: the first lease then expires unused."""
        request = pb.LeaseGrantRequest(TTL=ttl_s)

        def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Awaitable[pb.LeaseGrantResponse]:
            return member.lease.LeaseGrant(request, metadata=metadata, timeout=timeout_s)

        response = await self._members.call(f"grant of a lease of {ttl_s} s", invoke, write=False)
        return Grant(response.ID, response.TTL)

    async def keepalive(self, lease_id: int) -> int:
        """See `Store.keepalive`."""
        return await self._keepalive.renew(lease_id)

    async def revoke(self, lease_id: int) -> None:
        """See `Store.revoke`. Repeating it does no harm, so it is never indeterminate."""
        request = pb.LeaseRevokeRequest(ID=lease_id)

        def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Awaitable[pb.LeaseRevokeResponse]:
            return member.lease.LeaseRevoke(request, metadata=metadata, timeout=timeout_s)

        try:
            await self._members.call(f"end of lease {lease_id:x}", invoke, write=False, lease_id=lease_id)
        except LeaseLost:
            return

    async def time_to_live(self, lease_id: int) -> int:
        """See `Store.time_to_live`."""
        request = pb.LeaseTimeToLiveRequest(ID=lease_id)

        def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Awaitable[pb.LeaseTimeToLiveResponse]:
            return member.lease.LeaseTimeToLive(request, metadata=metadata, timeout=timeout_s)

        response = await self._members.call(f"age of lease {lease_id:x}", invoke, write=False, lease_id=lease_id)
        if response.TTL < 0:
            raise LeaseLost(lease_id)
        return response.TTL

    async def status(self) -> Status:
        """See `Store.status`."""

        async def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Status:
            answer = await member.maintenance.Status(pb.StatusRequest(), metadata=metadata, timeout=timeout_s)
            head = answer.header
            return Status(
                member.endpoint,
                answer.version,
                head.cluster_id,
                head.member_id,
                answer.leader,
                head.revision,
                answer.dbSize,
            )

        return await self._members.call("status", invoke, write=False)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._keepalive.close()
        await self._members.close()

    async def _range(self, what: str, request: pb.RangeRequest) -> pb.RangeResponse:
        def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Awaitable[pb.RangeResponse]:
            return member.kv.Range(request, metadata=metadata, timeout=timeout_s)

        return await self._members.call(what, invoke, write=False)

    async def _head(self, prefix: str) -> Head:
        """Cluster id and revision as of now; asked about a key of the prefix, which our user may read."""
        response = await self._range(f"revision for {prefix}", pb.RangeRequest(key=prefix.encode(), count_only=True))
        return response.header.cluster_id, response.header.revision


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that start with the prefix, as etcd's ``range_end``; a zero byte means no end."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def _about(ops: Sequence[Op]) -> str:
    """Where a transaction writes, for the text of an error."""
    if not ops:
        return ""
    first = ops[0]
    return f", first on {first.key if isinstance(first, Put | Delete) else first.prefix}"


def _key_value(kv: pb.KeyValue) -> KeyValue:
    return KeyValue(key_text(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _compare(guard: Guard) -> pb.Compare:
    key = guard.key.encode()
    if isinstance(guard, CreatedAt):
        return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.CREATE, key=key, create_revision=guard.revision)
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=guard.revision)


def _request_op(op: Op) -> pb.RequestOp:
    if isinstance(op, Put):
        return pb.RequestOp(request_put=pb.PutRequest(key=op.key.encode(), value=op.value, lease=op.lease))
    if isinstance(op, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=op.key.encode()))
    start = op.prefix.encode()
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=start, range_end=prefix_end(start)))
