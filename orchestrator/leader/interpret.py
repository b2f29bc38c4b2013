"""Effects to transactions: every write of the leader goes through here, guarded by its leadership.

A batch answers with one outcome: `Done` with the revision, or `Failed`, and then nothing of it is in etcd.
"""

from collections.abc import Iterable, Sequence

from fsm.effects import (
    AppendHistory,
    Done,
    DropDesired,
    Failed,
    FailureKind,
    ForgetMachine,
    Outcome,
    SaveMachine,
    SetDesired,
    TakeEpoch,
)
from orchestrator.leader.writes import Answer, Batch, DropRequest, DropSpec, SetSpec, Write
from orchestrator.store.keys import Keys
from orchestrator.store.port import (
    MAX_TXN_OPS,
    Delete,
    DeletePrefix,
    Guard,
    Indeterminate,
    KeyValue,
    ModifiedAt,
    Op,
    Put,
    Refused,
    Store,
    StoreError,
)
from orchestrator.store.records import encode

HISTORY_KEPT = 200
"""Transition records kept of each machine."""

GUARD_FAILED = "a guard did not hold"
"""The reason of a failure that says: somebody else wrote, or leads."""


def operations(keys: Keys, write: Write) -> list[Op]:
    """The store operations that one write consists of."""
    match write:
        case SaveMachine(type_, name, record):
            return [Put(keys.machine(type_, name), encode(record))]
        case ForgetMachine(type_, name):
            return [Delete(keys.machine(type_, name)), DeletePrefix(keys.history_prefix(type_, name))]
        case AppendHistory(type_, name, entry):
            ops: list[Op] = [Put(keys.history(type_, name, entry.seq), encode(entry))]
            if entry.seq > HISTORY_KEPT:
                ops.append(Delete(keys.history(type_, name, entry.seq - HISTORY_KEPT)))
            return ops
        case TakeEpoch(epoch):
            return [Put(keys.epoch_counter, encode(epoch))]
        case SetDesired(role, agent, type_, name, value):
            return [Put(desired_key(keys, role, agent, type_, name), encode(value))]
        case DropDesired(role, agent, type_, name):
            return [Delete(desired_key(keys, role, agent, type_, name))]
        case SetSpec(kind, name, value):
            return [Put(keys.spec(kind, name), encode(value))]
        case DropSpec(kind, name):
            return [Delete(keys.spec(kind, name))]
        case Answer(request):
            return [Put(keys.request(request.id), encode(request))]
        case DropRequest(id_):
            return [Delete(keys.request(id_))]


def desired_key(keys: Keys, role: str, agent: str, type_: str, name: str) -> str:
    """The key of a part of an agent's desired state; an empty `name` is its base."""
    return keys.desired(role, agent, type_, name) if name else keys.desired_base(role, agent)


def chunks(batches: Iterable[Batch]) -> list[list[Batch]]:
    """Batches grouped so that each group fits one transaction. Raises ValueError for a batch that fits none."""
    groups: list[list[Batch]] = []
    room = 0
    for batch in batches:
        need = sum(map(_size, batch.writes)) + 1
        if need > MAX_TXN_OPS - 1:
            raise ValueError(f"{batch.machine or 'batch'}: {need} operations do not fit one transaction")
        if not groups or need > room:
            groups.append([])
            room = MAX_TXN_OPS - 1
        groups[-1].append(batch)
        room -= need
    return groups


def _size(write: Write) -> int:
    """How many store operations a write consists of."""
    if isinstance(write, AppendHistory):
        return 2 if write.entry.seq > HISTORY_KEPT else 1
    return 2 if isinstance(write, ForgetMachine) else 1


class Interpreter:
    """Commits batches. `guard` gives the proof of leadership at the moment of the call."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def commit(self, batches: Sequence[Batch], guard: Guard, counter_revision: int) -> tuple[Outcome, ...]:
        """One transaction with all of these batches; one outcome each, all of the same kind.

        `counter_revision`: mod_revision of the epoch counter that the epochs taken continue.
        """
        guards: list[Guard] = [guard]
        ops: list[Op] = []
        epochs: list[Op] = []
        for batch in batches:
            if batch.machine:
                guards.append(ModifiedAt(self._keys.machine("pool", batch.machine), batch.base_revision))
            for write in batch.writes:
                if isinstance(write, TakeEpoch):
                    epochs = operations(self._keys, write)
                else:
                    ops += operations(self._keys, write)
        if epochs:
            guards.append(ModifiedAt(self._keys.epoch_counter, counter_revision))
        ops += epochs
        try:
            result = await self._store.txn(guards, ops)
        except Indeterminate as error:
            return await self._read_back(batches, ops, str(error))
        except Refused as error:
            return _failed(batches, FailureKind.PERMANENT, str(error))
        except StoreError as error:
            return _failed(batches, FailureKind.RETRYABLE, str(error))
        if not result.succeeded:
            return _failed(batches, FailureKind.RETRYABLE, GUARD_FAILED)
        return _done(batches, result.revision)

    async def _read_back(self, batches: Sequence[Batch], ops: Sequence[Op], reason: str) -> tuple[Outcome, ...]:
        """Whether a transaction without an answer was applied: all of it was if one of its keys is as it wrote it.

        A machine's record says who wrote it; any other value a new leader may have written in just the same way.
        """
        puts = [op for op in ops if isinstance(op, Put)]
        records = [op for op in puts if op.key.startswith(self._keys.machines_prefix)]
        witness = next(iter([*records, *puts]), None)
        if witness is None:
            return _failed(batches, FailureKind.RETRYABLE, reason)
        try:
            kv: KeyValue | None = await self._store.get(witness.key)
        except StoreError as error:
            return _failed(batches, FailureKind.RETRYABLE, f"{reason}; reading back: {error}")
        if kv is not None and kv.value == witness.value:
            return _done(batches, kv.mod_revision)
        return _failed(batches, FailureKind.RETRYABLE, reason)


def _done(batches: Sequence[Batch], revision: int) -> tuple[Outcome, ...]:
    return tuple(Done(b.machine, b.epoch, b.seq, revision) for b in batches)


def _failed(batches: Sequence[Batch], kind: FailureKind, reason: str) -> tuple[Outcome, ...]:
    return tuple(Failed(b.machine, b.epoch, b.seq, kind, reason) for b in batches)
