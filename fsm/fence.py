"""The edge's fence: which command may still be obeyed. Pure; the edge agent makes its state durable before it acts.

A command for a prefix is refused when its epoch is below the highest one accepted for any overlapping prefix; commands
of one pool order by (epoch, mod_revision).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_network

from fsm.records import EdgePool


@dataclass(frozen=True, slots=True)
class Accepted:
    """The newest command accepted for one pool, with the etcd revision it came from."""

    command: EdgePool
    mod_revision: int
    executed: bool = False
    """The edge came here by itself, by a plan; nobody has commanded since."""


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


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a command is not obeyed. `stale`: it is merely old, as after a reconnect; nothing is wrong."""

    reason: str
    stale: bool


def accept(state: FenceState, pool: str, command: EdgePool, mod_revision: int) -> FenceState | Refused:
    """The fence after that command, or why it is refused. The same command again changes nothing and is accepted."""
    before = state.pools.get(pool)
    if before is not None and (command.epoch, mod_revision) < (before.command.epoch, before.mod_revision):
        held = f"epoch {before.command.epoch} at revision {before.mod_revision}"
        return Refused(f"pool {pool}: epoch {command.epoch} at revision {mod_revision} is older than {held}", True)
    for prefix in command.prefixes:
        network = ip_network(prefix)
        for other, epoch in state.floor.items():
            theirs = ip_network(other)
            if command.epoch < epoch and network.version == theirs.version and network.overlaps(theirs):
                return Refused(f"pool {pool}: epoch {command.epoch} for {prefix} is below {epoch} for {other}", False)
    floor = {**state.floor, **{p: max(command.epoch, state.floor.get(p, 0)) for p in command.prefixes}}
    return replace(state, pools={**state.pools, pool: Accepted(command, mod_revision)}, floor=floor)


def forget(state: FenceState, pool: str) -> FenceState:
    """A pool whose deletion is confirmed; its prefixes' highest epochs stay."""
    return replace(state, pools={name: a for name, a in state.pools.items() if name != pool})


def execute(state: FenceState, pool: str) -> FenceState:
    """The fence after the edge has carried out the pool's next plan by itself.

    Raises ValueError if it has none, or if another pool took one of its prefixes under a higher number meanwhile.
    """
    before = state.pools[pool]
    plan = next((p for p in before.command.plan if p.base == before.command.epoch), None)
    if plan is None:
        raise ValueError(f"pool {pool}: no plan stands on epoch {before.command.epoch}")
    rest = tuple(p for p in before.command.plan if p.epoch > plan.epoch)
    command = replace(before.command, owner=plan.target, epoch=plan.epoch, planned=False, plan=rest)
    verdict = accept(state, pool, command, before.mod_revision)
    if isinstance(verdict, Refused):
        raise ValueError(verdict.reason)
    executed = replace(verdict.pools[pool], executed=True)
    return replace(verdict, pools={**verdict.pools, pool: executed})
