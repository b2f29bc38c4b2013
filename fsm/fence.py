"""The edge's fence: which command may still be obeyed. Pure; the edge agent makes its state durable before it acts.

A command for a prefix is refused when its epoch is below the highest one accepted for any overlapping prefix; commands
of one pool order by (epoch, mod_revision).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_network

from fsm.records import EdgePool, Plan

REMEMBERED = 4
"""Plans that were carried out last, kept of each pool: two chains of two."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The newest command accepted for one pool, with the etcd revision it came from."""

    command: EdgePool
    mod_revision: int
    executed: bool = False
    """The edge came here by itself, by a plan; nobody has commanded since."""
    carried_out: tuple[Plan, ...] = ()
    """The last plans that the edge carried out by itself, newest last; a command does not take them away."""


@dataclass(frozen=True, slots=True)
class FenceState:
    """All that the fence remembers. `floor`: the highest epoch accepted per prefix, kept after the pool is gone."""

    pools: Mapping[str, Accepted] = field(default_factory=dict)
    floor: Mapping[str, int] = field(default_factory=dict)
    schema: int = 1

    @property
    def highest_epoch(self) -> int:
        """The highest epoch ever accepted."""
        return max(self.floor.values(), default=0)

    @property
    def reserved_epoch(self) -> int:
        """The highest epoch that was accepted, or that a plan in force may take without asking anybody."""
        plans = (plan.epoch for accepted in self.pools.values() for plan in accepted.command.plan)
        return max(self.highest_epoch, max(plans, default=0))


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a command is not obeyed. `stale`: it is merely old, as after a reconnect; nothing is wrong."""

    reason: str
    stale: bool


def accept(state: FenceState, pool: str, command: EdgePool, mod_revision: int) -> FenceState | Refused:
    """The fence after that command, or why it is refused. The same command again changes nothing and is accepted."""
    after, refused = accept_all(state, [(pool, command, mod_revision)])
    return refused.get(pool, after)


def accept_all(
    state: FenceState, commands: Sequence[tuple[str, EdgePool, int]]
) -> tuple[FenceState, Mapping[str, Refused]]:
    """The fence after these commands, taken one after the other, and why some are refused.

    Each is (pool, command, mod_revision), one a pool. What one is refused for does not touch the others.
    """
    pools, floor = dict(state.pools), dict(state.floor)
    rivals = overlapping((prefix for _, command, _ in commands for prefix in command.prefixes), floor)
    refused: dict[str, Refused] = {}
    for pool, command, mod_revision in commands:
        refusal = _refusal(pools.get(pool), floor, rivals, pool, command, mod_revision)
        if refusal is not None:
            refused[pool] = refusal
            continue
        known = pools.get(pool)
        pools[pool] = Accepted(command, mod_revision, carried_out=known.carried_out if known else ())
        for prefix in command.prefixes:
            floor[prefix] = max(command.epoch, floor.get(prefix, 0))
    return replace(state, pools=pools, floor=floor), refused


def _refusal(
    before: Accepted | None,
    floor: Mapping[str, int],
    rivals: Mapping[str, Sequence[str]],
    pool: str,
    command: EdgePool,
    mod_revision: int,
) -> Refused | None:
    if before is not None and (command.epoch, mod_revision) < (before.command.epoch, before.mod_revision):
        held = f"epoch {before.command.epoch} at revision {before.mod_revision}"
        return Refused(f"pool {pool}: epoch {command.epoch} at revision {mod_revision} is older than {held}", True)
    for prefix in command.prefixes:
        for other in rivals[prefix]:
            epoch = floor.get(other, 0)
            if command.epoch < epoch:
                return Refused(f"pool {pool}: epoch {command.epoch} for {prefix} is below {epoch} for {other}", False)
    return None


def forget(state: FenceState, *pools: str) -> FenceState:
    """Without these pools, whose deletion is confirmed; their prefixes' highest epochs stay."""
    return replace(state, pools={name: a for name, a in state.pools.items() if name not in pools})


def execute(state: FenceState, pool: str) -> FenceState:
    """The fence after the edge has carried out the pool's next plan by itself.

    Raises ValueError if it has none, or if another pool took one of its prefixes under a higher number meanwhile.
    """
    after, refused = execute_all(state, [pool])
    if pool in refused:
        raise ValueError(refused[pool])
    return after


def execute_all(state: FenceState, pools: Sequence[str]) -> tuple[FenceState, Mapping[str, str]]:
    """The fence after the next plans of these pools, one after the other, and why some could not be carried out."""
    reasons: dict[str, str] = {}
    steps: list[tuple[str, EdgePool, int]] = []
    done: dict[str, tuple[Plan, ...]] = {}
    for pool in pools:
        before = state.pools[pool]
        plan = next((p for p in before.command.plan if p.base == before.command.epoch), None)
        if plan is None:
            reasons[pool] = f"pool {pool}: no plan stands on epoch {before.command.epoch}"
            continue
        rest = tuple(p for p in before.command.plan if p.epoch > plan.epoch)
        command = replace(before.command, owner=plan.target, epoch=plan.epoch, planned=False, plan=rest)
        steps.append((pool, command, before.mod_revision))
        done[pool] = (*before.carried_out, plan)[-REMEMBERED:]
    after, refused = accept_all(state, steps)
    reasons |= {pool: refusal.reason for pool, refusal in refused.items()}
    moved = {
        pool: Accepted(command, revision, True, done[pool]) for pool, command, revision in steps if pool not in refused
    }
    return replace(after, pools={**after.pools, **moved}), reasons


def overlapping(prefixes: Iterable[str], others: Iterable[str]) -> dict[str, list[str]]:
    """For each of these prefixes those of `others`, and of `prefixes` themselves, that overlap it, itself included.

    Two prefixes are either apart or one is inside the other: so one pass over all of them in order of address is
    enough, with those that are still open on a stack. A thousand against a thousand is some milliseconds of work.
    """
    wanted = dict.fromkeys(prefixes)
    found: dict[str, list[str]] = {prefix: [] for prefix in wanted}
    open_: list[tuple[int, int, str]] = []
    for version, first, last, text in sorted(map(_span, {**wanted, **dict.fromkeys(others)})):
        while open_ and (open_[-1][0] != version or -open_[-1][1] < first):
            open_.pop()
        for _, _, outer in open_:
            if outer in wanted:
                found[outer].append(text)
            if text in wanted:
                found[text].append(outer)
        if text in wanted:
            found[text].append(text)
        open_.append((version, last, text))
    return found


@lru_cache(maxsize=65536)
def _span(prefix: str) -> tuple[int, int, int, str]:
    """(version, first address, minus last address, text): in this order a prefix comes before what is inside it."""
    network = ip_network(prefix)
    return network.version, int(network.network_address), -int(network.broadcast_address), prefix
