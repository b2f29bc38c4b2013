"""What a step asks for, as values. The interpreter performs them and answers each with an outcome."""

from dataclasses import dataclass
from enum import StrEnum

from fsm.records import AgentBase, EdgePool, HistoryEntry, NodePool, PoolRecord


@dataclass(frozen=True, slots=True)
class SaveMachine:
    """Write a machine's record over the one that the step started from."""

    type: str
    name: str
    record: PoolRecord


@dataclass(frozen=True, slots=True)
class ForgetMachine:
    """Remove a machine's record: its deletion is confirmed everywhere."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class AppendHistory:
    """Write one transition; `entry.seq` names its place."""

    type: str
    name: str
    entry: HistoryEntry


@dataclass(frozen=True, slots=True)
class TakeEpoch:
    """Raise the global counter to `epoch`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SetDesired:
    """What an agent shall make true; `name` empty means its base."""

    role: str
    agent: str
    type: str
    name: str
    value: EdgePool | NodePool | AgentBase


@dataclass(frozen=True, slots=True)
class DropDesired:
    """An agent no longer has to care for it."""

    role: str
    agent: str
    type: str
    name: str


Effect = SaveMachine | ForgetMachine | AppendHistory | TakeEpoch | SetDesired | DropDesired


class FailureKind(StrEnum):
    """Whether doing it again can help."""

    RETRYABLE = "retryable"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class Done:
    """All effects of a step of that machine are in etcd, at this revision."""

    machine: str
    epoch: int
    seq: int
    revision: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The step of that machine is not in etcd; nothing of it is."""

    machine: str
    epoch: int
    seq: int
    kind: FailureKind
    reason: str


Outcome = Done | Failed
