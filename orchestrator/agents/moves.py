"""Commands carried out at the kernel, many at once: a dead gateway takes all its pools with it in one instant.

What is due together is fenced, moved and read back together. Where that fails, the pools are tried in smaller groups,
so that one that can't be carried out does not hold up the others.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dataplane.errors import DataplaneError, KernelTimeout
from fsm.ports import Clock
from fsm.records import EdgePool
from orchestrator.agents import edge_state as project
from orchestrator.agents.edge_pool import PoolAtEdge
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.steering import Steering
from orchestrator.agents.tunnels import Tunnels


@dataclass(frozen=True, slots=True)
class Order:
    """A command that the fence has accepted; `before` is the one whose place it takes."""

    pool: str
    command: EdgePool
    before: EdgePool | None = None


class Moves:
    """The pools as this edge has them. `turn` is the turn at the kernel: all but the end of a linger is done in one."""

    def __init__(
        self,
        *,
        steering: Steering,
        tunnels: Tunnels,
        clock: Clock,
        turn: asyncio.Lock,
        state: Callable[[], EdgeState],
        spawn: Callable[[Coroutine[None, None, None], str], object],
        on_parked: Callable[[Collection[str], bool], None],
    ) -> None:
        """`spawn` starts a task; `on_parked` is told which pools linger no more, and whether all is well."""
        self._steering, self._tunnels, self._clock, self._turn = steering, tunnels, clock, turn
        self._state, self._spawn, self._on_parked = state, spawn, on_parked
        self.pools: dict[str, PoolAtEdge] = {name: PoolAtEdge() for name in state().fence.pools}
        self.lingering: dict[str, EdgePool] = {}
        """Planned commands whose old gateway may still send."""

    def at(self, pool: str) -> PoolAtEdge:
        """What is known of a pool."""
        return self.pools.setdefault(pool, PoolAtEdge())

    def forget(self, pool: str) -> None:
        """Nothing of it is left."""
        self.pools.pop(pool, None)
        self.lingering.pop(pool, None)

    async def carry_out(self, orders: Sequence[Order]) -> set[str]:
        """Make the commands true and read them back; the pools of those that have to be tried again."""
        failed: set[str] = set()
        fit: list[Order] = []
        for order in orders:
            self.lingering.pop(order.pool, None)
            owner = order.command.owner
            if owner is not None and owner not in self._tunnels.lanes:
                self.at(order.pool).error = f"no tunnel to {owner}"
                failed.add(order.pool)
            else:
                fit.append(order)
        # Two commands for one prefix are one after the other: which of them holds is a matter of their order.
        for group in [fit] if _apart(fit) else [[order] for order in fit]:
            failed |= await self._together(group)
        return failed

    async def _together(self, orders: Sequence[Order]) -> set[str]:
        if not orders:
            return set()
        try:
            await self._attempt(orders)
            return set()
        except DataplaneError as error:
            groups = self._split(orders, error)
            if len(groups) < 2:
                for order in orders:
                    self.at(order.pool).error = str(error)
                return {order.pool for order in orders}
        failed: set[str] = set()
        for group in groups:
            failed |= await self._together(group)
        return failed

    def _split(self, orders: Sequence[Order], error: DataplaneError) -> list[list[Order]]:
        """Smaller groups to try. A time limit is not waited for once a pool, but once for each set of tunnels."""
        if not isinstance(error, KernelTimeout):
            return [[order] for order in orders]
        groups: dict[frozenset[str], list[Order]] = {}
        for order in orders:
            groups.setdefault(self._steering.touched(order.command, self._tunnels.lanes), []).append(order)
        return list(groups.values())

    async def _attempt(self, orders: Sequence[Order]) -> None:
        state, lanes = self._state(), self._tunnels.lanes
        kept = {prefix for command in project.commands(state).values() for prefix in command.prefixes}
        gone = {p for order in orders if order.before for p in order.before.prefixes if p not in kept}
        sights = await self._steering.carry_out([order.command for order in orders], gone, lanes, state.base.mtu)
        for order, sight in zip(orders, sights, strict=True):
            known = self.at(order.pool)
            known.sight, known.error, known.removed = sight, "", order.command.deleted
        planned = {order.pool: order.command for order in orders if order.command.planned and order.command.owner}
        if planned:
            self.lingering |= planned
            self._spawn(self._linger(planned), f"linger of {len(planned)} pools")

    async def _linger(self, commands: Mapping[str, EdgePool]) -> None:
        await self._clock.sleep(self._state().base.drain_linger_ms / 1000)
        async with self._turn:
            ended = {pool: command for pool, command in commands.items() if self.lingering.get(pool) is command}
            well = not ended or await self._park(ended)
            for pool in ended:
                self.lingering.pop(pool, None)
        self._on_parked(ended, well)

    async def _park(self, commands: Mapping[str, EdgePool]) -> bool:
        lanes = self._tunnels.lanes
        try:
            await self._steering.park(commands.values(), lanes)
            phases = [(command, self.at(pool).phases()) for pool, command in commands.items()]
            sights = await self._steering.look(phases, lanes)
        except DataplaneError as error:
            for pool in commands:
                self.at(pool).error = str(error)
            return False
        for pool, sight in zip(commands, sights, strict=True):
            self.at(pool).sight = sight
        return True

    async def audit(self, commands: Mapping[str, EdgePool]) -> None:
        """These commands once more against the kernel: what another hand changed is put right."""
        lanes = self._tunnels.lanes
        there: dict[str, EdgePool] = {}
        for pool, command in commands.items():
            if command.deleted or command.owner in lanes:
                there[pool] = command
            else:
                self.at(pool).error = f"no tunnel to {command.owner}"
        if not there:
            return
        try:
            sights = await self._steering.look([(c, self.at(pool).phases()) for pool, c in there.items()], lanes)
        except DataplaneError as error:
            for pool in there:
                self.at(pool).error = str(error)
            return
        wrong: list[Order] = []
        for (pool, command), sight in zip(there.items(), sights, strict=True):
            owner = frozenset({command.owner} if command.owner else ())
            if sight.accepts_from != owner or (not command.deleted and not sight.installed):
                wrong.append(Order(pool, replace(command, planned=False)))
            else:
                known = self.at(pool)
                known.sight, known.error, known.removed = sight, "", command.deleted
        await self.carry_out(wrong)


def _apart(orders: Iterable[Order]) -> bool:
    """Whether no prefix is in two of these commands."""
    prefixes = [prefix for order in orders for prefix in order.command.prefixes]
    return len(prefixes) == len(set(prefixes))
