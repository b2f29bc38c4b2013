"""What the rest of the program may ask of the store, as values and one protocol.

The store is etcd's data model and nothing else: keys with revisions, leases, guarded transactions, watches. Keys are
text, values are bytes. All reads are linearizable: a decision is never taken on a stale answer.

A *revision* counts every change of the whole store. A key's ``create_revision`` is the revision that brought it into
being (a fresh one after each deletion), its ``mod_revision`` the one that changed it last.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_TXN_OPS = 128
"""Operations (and guards) that one transaction may hold: etcd's default for ``--max-txn-ops``."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it stands at some revision."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int
    """Id of the lease that the key dies with; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys below a prefix, as of one revision of one cluster."""

    revision: int
    cluster_id: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One key that was written, or deleted (``value`` is None and ``create_revision`` and ``lease`` are 0)."""

    key: str
    value: bytes | None
    create_revision: int
    mod_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """Holds if the key exists and was created at that revision; with revision 0, if the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class ModifiedAt:
    """Holds if the key exists and was last changed at that revision; with revision 0, if the key is absent."""

    key: str
    revision: int


Guard = CreatedAt | ModifiedAt


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key; ``lease`` 0 detaches it from any lease."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key; an absent one is fine."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Delete every key that starts with the prefix."""

    prefix: str


Op = Put | Delete | DeletePrefix


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Whether all guards held and the operations were done, and the store's revision afterwards.

    If it succeeded with at least one effective operation, ``revision`` is the ``mod_revision`` of every key it wrote.
    """

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease; ``ttl_s`` is what the server granted, which may be more than was asked for (etcd has a minimum)."""

    lease_id: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Status:
    """What one member says of itself and its cluster."""

    endpoint: str
    version: str
    cluster_id: int
    member_id: int
    leader_id: int
    """Member id of the cluster's leader; 0 if this member knows none."""
    revision: int
    db_size_bytes: int


class StoreError(Exception):
    """Base of everything that a store raises. The text names what failed, where, and what to do next."""


class Unavailable(StoreError):
    """No member answered in time and nothing was changed: ask again later."""


class Indeterminate(StoreError):
    """A write was sent and no answer came: it may or may not have been applied. Read before deciding anything."""


class Refused(StoreError):
    """The store understood the call and will not do it: missing permission, wrong password, no space left."""


class StoreChanged(StoreError):
    """The store is not the one it was: another cluster, or a revision that went backwards.

    Whoever sees this must stop acting on what it knows; ``bgplb store accept`` makes the new store usable.
    """


class Compacted(StoreError):
    """The asked-for revision is no longer kept; list again and watch from there."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"watch: the store has dropped history up to revision {revision}; list the prefix again")
        self.revision = revision
        """Lowest revision that can still be watched, as far as the store told."""


class LeaseLost(StoreError):
    """The lease has expired or was revoked; its keys are gone."""

    def __init__(self, lease_id: int) -> None:
        super().__init__(f"lease {lease_id:x}: unknown to the store (expired or revoked); grant a new one")
        self.lease_id = lease_id


class Store(Protocol):
    """The verbs. Every call ends within the store's call time limit.

    Reads raise `Unavailable` or `Refused`; writes raise also `Indeterminate`.
    """

    async def get(self, key: str) -> KeyValue | None:
        """The key as of now, or None."""
        ...

    async def list(self, prefix: str) -> Snapshot:
        """All keys that start with the prefix, in order of key."""
        ...

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write the key; returns its new mod_revision. Raises `LeaseLost` if the lease does not exist."""
        ...

    async def delete(self, key: str) -> int:
        """Delete the key (absent is fine); returns the store's revision afterwards."""
        ...

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        """Do all operations in one revision if all guards hold, else nothing.

        Raises ValueError as `check_txn` does, and `LeaseLost` if an operation names a lease that does not exist.
        """
        ...

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[tuple[Change, ...], None]:
        """Every change below the prefix from that revision on (0: from now on), in order, none twice, none left out.

        One item is one answer of the server, and a revision is never split over two items. An *empty* item says that
        the server was heard from and has nothing new. Survives the loss of members by itself; raises `Compacted`,
        `StoreChanged` or `Refused`. Close it (``contextlib.aclosing``) when done.
        """
        ...

    async def grant(self, ttl_s: int) -> Grant:
        """Make a lease of at least that many seconds."""
        ...

    async def keepalive(self, lease_id: int) -> int:
        """Renew the lease; returns its time to live in seconds, counted from some moment after this call began.

        Raises `LeaseLost` when it is gone, `Unavailable` when nobody answered (it may have been renewed or not).
        """
        ...

    async def revoke(self, lease_id: int) -> None:
        """End the lease and delete its keys now; one that is gone already is fine."""
        ...

    async def time_to_live(self, lease_id: int) -> int:
        """Whole seconds that the lease has left at the server. Raises `LeaseLost` when it is gone."""
        ...

    async def status(self) -> Status:
        """What the member in use says of itself; not a read that decisions may rest on."""
        ...

    async def close(self) -> None:
        """Close all connections; leases live on until they expire."""
        ...


def check_txn(guards: Sequence[Guard], ops: Sequence[Op]) -> None:
    """Raise ValueError for a transaction that etcd would refuse: too long, or one that writes a key twice."""
    if len(ops) > MAX_TXN_OPS or len(guards) > MAX_TXN_OPS:
        raise ValueError(f"transaction with {len(guards)} guards and {len(ops)} operations: at most {MAX_TXN_OPS} each")
    written: set[str] = set()
    for op in ops:
        if isinstance(op, Put):
            if op.key in written:
                raise ValueError(f"transaction writes {op.key!r} twice")
            written.add(op.key)
    for op in ops:
        if isinstance(op, Delete) and op.key in written:
            raise ValueError(f"transaction writes and deletes {op.key!r}")
        if isinstance(op, DeletePrefix):
            for key in written:
                if key.startswith(op.prefix):
                    raise ValueError(f"transaction writes {key!r} and deletes all of {op.prefix!r}")
