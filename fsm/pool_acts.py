"""Guards and acts of the pool's table. They see a `PoolDraft` and do nothing but change its record.

What follows for etcd, BIRD and the kernel is derived from the record by `fsm.desired`.
"""

from dataclasses import dataclass, replace

from fsm.events import Event
from fsm.records import Plan, PoolRecord
from fsm.types import (
    DAMPING_FIRST_MS,
    DAMPING_FREE_MOVES,
    DAMPING_LONGEST_MS,
    DAMPING_WINDOW_MS,
    Instant,
    PoolState,
)

S = PoolState

TOLD = 8
"""Numbers of plans that a record remembers to have told of: more than edges remember to have carried out."""


@dataclass(slots=True)
class PoolDraft:
    """A record while one event is put through the table. `epoch_counter` is the last number handed out."""

    state: str
    record: PoolRecord
    event: Event
    instant: Instant
    epoch_counter: int
    forgotten: bool = False

    def change(self, **fields: object) -> None:
        """Replace fields of the record."""
        self.record = replace(self.record, **fields)  # type: ignore[arg-type]


# ---- guards ------------------------------------------------------------------------------------------------------


def has_target(d: PoolDraft) -> bool:
    return d.event.target is not None


def not_switched(d: PoolDraft) -> bool:
    return not d.record.switched


def same_target(d: PoolDraft) -> bool:
    """The same once more, and every edge is the one that has heard the number; `targets` are those that are not."""
    return d.event.target is not None and d.event.target == d.record.target and not d.event.targets


def serves(d: PoolDraft) -> bool:
    return d.event.serves


def silent(d: PoolDraft) -> bool:
    return not d.record.announce


def was_pending(d: PoolDraft) -> bool:
    return d.record.held_from == S.PENDING


def was_stranded(d: PoolDraft) -> bool:
    return d.record.held_from == S.STRANDED


def was_idle(d: PoolDraft) -> bool:
    return d.record.held_from == S.IDLE


# ---- acts --------------------------------------------------------------------------------------------------------


def take_epoch(d: PoolDraft) -> None:
    """The next number of the global counter, with the target that it stands for. The old plan is void with it."""
    d.epoch_counter += 1
    d.change(target=d.event.target, base_epoch=d.record.epoch, epoch=d.epoch_counter, switched=False, plan=())


def standing(plans: tuple[Plan, ...], epoch: int) -> tuple[Plan, ...]:
    """The plans that may be carried out from that epoch on, each standing on the one before."""
    chain: list[Plan] = []
    for plan in plans:
        if plan.base == epoch:
            chain.append(plan)
            epoch = plan.epoch
    return tuple(chain)


def take_over(d: PoolDraft) -> None:
    """Where the edge's next plan names this very target, its number: both then do the same, in any order."""
    armed = next(iter(standing(d.record.plan, d.record.epoch)), None)
    if armed is None or armed.target != d.event.target:
        take_epoch(d)
    else:
        _stand_at(d, armed.target, armed.epoch)


def _stand_at(d: PoolDraft, target: str | None, epoch: int) -> None:
    """The number of a plan becomes the pool's; what the chain says from there on still holds."""
    rest = standing(d.record.plan, epoch)
    d.change(target=target, base_epoch=d.record.epoch, epoch=epoch, switched=False, plan=rest)
    _tell_of(d, epoch)


def _tell_of(d: PoolDraft, number: int) -> None:
    d.change(plans_told=tuple(sorted({*d.record.plans_told, number}))[-TOLD:])


def take_first(d: PoolDraft) -> None:
    """The first number. An edge may remember plans of a pool that had this name before; they are all below it."""
    take_epoch(d)
    _tell_of(d, d.epoch_counter)


def arm(d: PoolDraft) -> None:
    """A number for each target, each standing on the one before: what the edge may do by itself, and then once more."""
    plans: list[Plan] = []
    base = d.record.epoch
    for target in d.event.targets:
        d.epoch_counter += 1
        plans.append(Plan(target, d.epoch_counter, base))
        base = d.epoch_counter
    d.change(plan=tuple(plans))


def outbid(d: PoolDraft) -> None:
    """A number above those of a plan that an edge may be carrying out at this moment: what comes now is obeyed.

    Also where the record has no plan any more: an edge may not have heard yet that it was revoked.
    """
    if d.record.epoch:
        d.epoch_counter += 1
        d.change(epoch=d.epoch_counter, base_epoch=d.record.epoch, plan=())


def count_move(d: PoolDraft) -> None:
    """Damping: the third move within a minute starts a back-off; each further one doubles it, until all is quiet."""
    now, record = d.instant.now_s, d.record
    recent = (*(m for m in record.moves_s if m > now - DAMPING_WINDOW_MS / 1000), now)
    quiet = not record.moves_s or now - record.moves_s[-1] > max(DAMPING_WINDOW_MS, 2 * record.backoff_ms) / 1000
    backoff = 0 if quiet else 2 * record.backoff_ms
    if len(recent) >= DAMPING_FREE_MOVES:
        backoff = max(backoff, DAMPING_FIRST_MS)
    d.change(moves_s=recent, backoff_ms=min(backoff, DAMPING_LONGEST_MS))


def adopt_plan(d: PoolDraft) -> None:
    """The edge moved by itself, under a number that was reserved for it: that number becomes the pool's."""
    if d.event.epoch is None:
        raise ValueError("an executed plan without its epoch")
    _stand_at(d, d.event.target, d.event.epoch)


def note_superseded(d: PoolDraft) -> None:
    """What the edge did by itself counts for nothing: it is told a higher number, or has been already."""
    if d.event.epoch is None:
        raise ValueError("a superseded plan without its epoch")
    said = {"epoch": d.event.epoch, "target": d.event.target or "", "edge": d.event.evidence.get("edge", "")}
    d.change(superseded={**said, "by_epoch": d.record.epoch, "at_ms": d.instant.wall_ms})
    _tell_of(d, d.event.epoch)


def renumber(d: PoolDraft) -> None:
    """Other prefixes, same owner: one that comes from another pool may have been commanded under a higher number."""
    d.epoch_counter += 1
    d.change(addresses=d.event.addresses, epoch=d.epoch_counter, base_epoch=d.record.epoch, plan=())


def switch(d: PoolDraft) -> None:
    """The target is prepared: from here on the edges are told to point at it."""
    d.change(switched=True)


def own(d: PoolDraft) -> None:
    """The target is the owner now."""
    d.change(previous=d.record.owner, owner=d.record.target, target=None)


def keep_where_sent(d: PoolDraft) -> None:
    """Edges that were already told to point at the target keep doing so: nothing is withdrawn without a target.

    What is left of the plan stands on the number that they were told.
    """
    if d.state == S.DRAINING and not d.record.switched:
        stay(d)
    else:
        d.change(owner=d.record.target, target=None)


def stay(d: PoolDraft) -> None:
    """The edges never heard of the target: the owner stays.

    Under a number of its own: the target's agent has accepted the move's number, so that the one before could not be
    given to it again, and the move's number stands for the target.
    """
    d.epoch_counter += 1
    d.change(target=None, epoch=d.epoch_counter, switched=False, plan=())


def remember_state(d: PoolDraft) -> None:
    """The plan is revoked at the edges, but stays known: one that is carried out before that arrives is adopted."""
    d.change(held_from=d.state)


def forget_held(d: PoolDraft) -> None:
    d.change(held_from=None)


def announce(d: PoolDraft) -> None:
    d.change(announce=True)


def silence(d: PoolDraft) -> None:
    d.change(announce=False)


def be_patient(d: PoolDraft) -> None:
    """Wait longer the next time. The same order is not given again under another number: the edge has it already."""
    d.change(retries=d.record.retries + 1)


def clear_target(d: PoolDraft) -> None:
    d.change(target=None, switched=False)


def forget(d: PoolDraft) -> None:
    d.forgotten = True
