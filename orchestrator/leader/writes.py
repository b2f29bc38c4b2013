"""What the leader writes besides the effects of the core, as values: intent, identities, answers."""

from dataclasses import dataclass

from fsm.effects import Effect, TakeEpoch
from fsm.records import Request


@dataclass(frozen=True, slots=True)
class SetSpec:
    """Accept intent: spec/KIND/NAME becomes `value`."""

    kind: str
    name: str
    value: object


@dataclass(frozen=True, slots=True)
class DropSpec:
    """Nothing is left of that intent."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A request with its answer in it."""

    request: Request


@dataclass(frozen=True, slots=True)
class DropRequest:
    """A request that was answered long ago."""

    id: str


Write = Effect | SetSpec | DropSpec | Answer | DropRequest


@dataclass(frozen=True, slots=True)
class Batch:
    """Writes that belong together: all are in one transaction or none is in etcd.

    `machine` is the pool whose record they continue, which must still be at `base_revision` (0: absent); empty for
    writes that continue no record. `more`: what follows for that pool did not fit; look at it again.
    """

    writes: tuple[Write, ...]
    machine: str = ""
    base_revision: int = 0
    epoch: int = 0
    seq: int = 0
    more: bool = False

    @property
    def last_number(self) -> int:
        """The highest number that it takes, those of plans included; 0 if it takes none."""
        return max((write.epoch for write in self.writes if isinstance(write, TakeEpoch)), default=0)
