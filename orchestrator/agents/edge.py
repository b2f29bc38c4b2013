"""The edge agent: obeys fenced commands, steers pools, watches gateways. Crash-only: started again it converges.

Three things run beside each other: commands (the hot path of a move), reconciliation of all else, and observation.
Commands and reconciliation take turns on the kernel.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from birdctl.apply import Applier
from birdctl.errors import BirdError
from birdctl.render import edge_text
from dataplane.diff import DeleteLink, DeleteRoute, Op, diff
from dataplane.errors import DataplaneError
from dataplane.events import RouteChange, RouteEvents
from dataplane.kernel import LinuxKernel
from dataplane.wireguard import WireGuard
from fsm import fence
from fsm.ports import Clock
from fsm.records import AgentBase, EdgePool, EdgeReport, GatewayWitness
from orchestrator.agents import edge_state as project
from orchestrator.agents.edge_pool import PoolAtEdge
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.link import AgentLink
from orchestrator.agents.plans import due_plan, next_plan
from orchestrator.agents.problems import Problems
from orchestrator.agents.sessions import Sessions
from orchestrator.agents.steering import Sight, Steering
from orchestrator.agents.tunnels import Tunnels
from orchestrator.agents.watch import Watch
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.store.keys import DesiredBaseKey, DesiredKey, Keys
from orchestrator.store.port import Change
from orchestrator.store.records import RecordError, decode

RECONCILE_EVERY_S = 10.0
RETRY_S = 0.2
TICK_S = 0.25

Log = Callable[..., None]


class EdgeAgent:
    """All that an edge does. `save` makes a state durable before it returns."""

    def __init__(
        self,
        *,
        config: EdgeAgentConfig,
        instance: str,
        keys: Keys,
        clock: Clock,
        kernel: LinuxKernel,
        wireguard: WireGuard,
        sessions: Sessions,
        applier: Applier,
        state: EdgeState,
        save: Callable[[EdgeState], None],
        log: Log,
    ) -> None:
        self._config, self._instance, self._keys, self._clock = config, instance, keys, clock
        self._kernel, self._wireguard, self._sessions, self._applier = kernel, wireguard, sessions, applier
        self._state, self._save, self._log = state, save, log
        self._steering = Steering(wireguard, kernel.netlink, clock, config.tables.main, state.parking_key)
        self._events = RouteEvents(config.tables.signal, self._on_route, self._report_all)
        self._watch = Watch(config, clock, sessions, lambda _state: self._observe())
        self._pools: dict[str, PoolAtEdge] = {name: PoolAtEdge() for name in state.fence.pools}
        self._orders: dict[str, tuple[EdgePool, int]] = {}
        self._orders_wake, self._base_wake = asyncio.Event(), asyncio.Event()
        self._kernel_turn = asyncio.Lock()
        self._problems = Problems(log)
        self._lingering: dict[str, asyncio.Task[None]] = {}
        self._tunnels = Tunnels(config, wireguard, state.parking_key, state.endpoints)
        self._told = False
        """Whether the store has said what this edge is: an edge that knows nothing must not tidy up."""
        self._acting: set[str] = set()
        self._group: asyncio.TaskGroup | None = None
        self.link: AgentLink | None = None
        self.turns = 0

    # ---- being told ------------------------------------------------------------------------------------------------

    def on_desired(self, changes: tuple[Change, ...]) -> None:
        """What the leader wants, as the mirror brings it. Only noted here; obeyed in `_obey`."""
        for change in changes:
            try:
                key = self._keys.parse(change.key)
                if isinstance(key, DesiredBaseKey) and change.value is not None:
                    base = decode(change.value, AgentBase, change.key)
                    self._told = True
                    self._state = replace(self._state, base=base)
                    self._save(self._state)
                    self._base_wake.set()
                elif isinstance(key, DesiredKey) and key.type == "pool":
                    self._note(key.name, change)
                self._problems.clear(change.key)
            except (ValueError, RecordError) as error:
                self._problems.set(change.key, error)

    def _note(self, pool: str, change: Change) -> None:
        if change.value is not None:
            self._orders[pool] = (decode(change.value, EdgePool, change.key), change.mod_revision)
            self._orders_wake.set()
            return
        accepted = self._state.fence.pools.get(pool)
        if accepted is not None and accepted.command.deleted:
            self._forget(pool)  # without that order a missing key changes nothing

    def _forget(self, pool: str) -> None:
        """Its deletion was confirmed everywhere; only the fence's numbers stay."""
        self._orders.pop(pool, None)
        self._pools.pop(pool, None)
        self._state = replace(self._state, fence=fence.forget(self._state.fence, pool))
        self._save(self._state)
        self._tell(self._keys.observed("edge", self._config.name, "pool", pool), None)

    def _forget_deleted(self) -> None:
        """Pools that were deleted for good while this agent was away: nobody tells of them any more."""
        if self.link is None or not self.link.mirror.ready.is_set():
            return
        for pool, command in project.commands(self._state).items():
            key = self._keys.desired("edge", self._config.name, "pool", pool)
            if command.deleted and pool not in self._orders and self.link.mirror.get(key) is None:
                self._forget(pool)

    # ---- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Starts from disk and kernel, with or without the store."""
        await self._recover_plans()
        await self._reconcile()
        await self._events.start()
        self._sessions.follow(self._state.base.tunnels, self._events.routes)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._obey_all(), name="commands")
                group.create_task(self._reconcile_all(), name="reconcile")
                group.create_task(self._sessions.run(), name="sessions")
                group.create_task(self._events.until_broken(), name="signals")
                if self.link is not None:
                    group.create_task(self.link.run(), name="link")
        finally:
            self._events.close()
            self._watch.close()

    async def _obey_all(self) -> None:
        pause_s = TICK_S
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._orders_wake.wait()
            except TimeoutError:
                self._settle_outages()
            self._orders_wake.clear()
            self.turns += 1
            pause_s = TICK_S
            for pool in list(self._orders):
                order = self._orders.pop(pool, None)
                if order is not None and not await self._obey(pool, *order):
                    self._orders.setdefault(pool, order)
                    pause_s = RETRY_S  # and meanwhile a new order is obeyed at once

    async def _obey(self, pool: str, command: EdgePool, revision: int) -> bool:
        """One command: fence, disk, kernel, read back, report. False if it has to be tried again.

        All in one turn at the kernel: nobody else acts on a command that is accepted and not carried out.
        """
        received_s = self._clock.now()
        async with self._kernel_turn:
            before = self._state.fence.pools.get(pool)
            verdict = fence.accept(self._state.fence, pool, command, revision)
            if isinstance(verdict, fence.Refused):
                if not verdict.stale:
                    self._log("command refused", pool=pool, reason=verdict.reason)
                    self._pools.setdefault(pool, PoolAtEdge()).error = verdict.reason
                    self._report_pool(pool)
                return True
            if verdict != self._state.fence:
                self._state = replace(self._state, fence=verdict)
                self._save(self._state)
            known = self._pools.setdefault(pool, PoolAtEdge())
            old = before.command if before else None
            if old != command:
                known.sight = None  # what was read back of the last command must not pass for a confirmation of this
            if old is not None and old.owner != command.owner:
                self._leave(known, old.owner, received_s)
            try:
                known.sight = await self._carry_out(pool, command, old)
                known.error, known.removed = "", command.deleted
            except (DataplaneError, KeyError) as error:
                known.error = str(error) if isinstance(error, DataplaneError) else f"no tunnel to {error}"
                self._report_pool(pool)
                self._base_wake.set()
                return False
        known.moved(self._clock.now())
        self._report_pool(pool)
        return True

    def _leave(self, known: PoolAtEdge, left: str | None, now: float) -> None:
        known.leave(self._watch.probe(left), self._sessions.fell_s(left or ""), now)

    def _consider_plans(self, witnesses: Mapping[str, GatewayWitness]) -> None:
        """Carry out every plan whose moment has come, at once."""
        for pool, accepted in self._state.fence.pools.items():
            if pool not in self._acting and due_plan(accepted.command, witnesses) and self._group is not None:
                self._acting.add(pool)
                self._group.create_task(self._execute(pool), name=f"plan of {pool}")

    async def _execute(self, pool: str) -> None:
        """One plan: it was on disk before anything happened, so the kernel comes first and the disk afterwards."""
        began_s = self._clock.now()
        try:
            async with self._kernel_turn:
                accepted = self._state.fence.pools.get(pool)
                if accepted is None or due_plan(accepted.command, self._witnesses()) is None:
                    return
                if not self._advance(pool):
                    return
                known, command = self._pools[pool], self._state.fence.pools[pool].command
                known.sight = None
                self._leave(known, accepted.command.owner, began_s)
                try:
                    known.sight = await self._carry_out(pool, command, accepted.command)
                    known.error = ""
                except DataplaneError as error:
                    known.error = str(error)
                    self._base_wake.set()
                known.moved(self._clock.now())
                self._save(self._state)
            self._log("plan carried out", pool=pool, owner=command.owner, epoch=command.epoch)
            self._report_pool(pool)
        finally:
            self._acting.discard(pool)

    def _advance(self, pool: str) -> bool:
        """Take the plan's number; False if it is refused: another pool has one of the prefixes by now."""
        self._pools.setdefault(pool, PoolAtEdge())
        try:
            self._state = replace(self._state, fence=fence.execute(self._state.fence, pool))
        except ValueError as error:
            self._pools[pool].error = str(error)
            return False
        return True

    async def _recover_plans(self) -> None:
        """A plan that was carried out just before we died, and is not on disk yet: the kernel knows."""
        tunnels = project.by_gateway(self._state.base)
        for pool, accepted in list(self._state.fence.pools.items()):
            plan = next_plan(accepted.command)
            if plan is None or plan.target not in tunnels:
                continue
            device, table = project.device_name(self._config, tunnels[plan.target]), self._config.tables.main
            routes = [await self._kernel.netlink.route(prefix, table) for prefix in accepted.command.prefixes]
            if all(route is not None and route.device == device for route in routes) and self._advance(pool):
                self._save(self._state)
                self._log("plan found carried out", pool=pool, owner=plan.target, epoch=plan.epoch)

    async def _carry_out(self, pool: str, command: EdgePool, old: EdgePool | None) -> Sight:
        lingering = self._lingering.pop(pool, None)
        if lingering is not None:
            lingering.cancel()
        kept = {p for other in project.commands(self._state).values() for p in other.prefixes}
        lost = tuple(p for p in (old.prefixes if old else ()) if p not in kept)
        if lost:
            await self._steering.remove(lost, self._tunnels.lanes)
        if command.owner is None:
            return await self._steering.remove(command.prefixes, self._tunnels.lanes)
        sight = await self._steering.point(command, self._tunnels.lanes, self._state.base.mtu)
        if command.planned:
            self._lingering[pool] = asyncio.create_task(self._linger(pool, command), name=f"linger {pool}")
        return sight

    async def _linger(self, pool: str, command: EdgePool) -> None:
        await self._clock.sleep(self._state.base.drain_linger_ms / 1000)
        async with self._kernel_turn:
            await self._park(pool, command)
        self._lingering.pop(pool, None)

    async def _park(self, pool: str, command: EdgePool) -> None:
        try:
            await self._steering.park(command, self._tunnels.lanes)
            self._pools[pool].sight = await self._steering.look(
                command, self._tunnels.lanes, self._pools[pool].phases()
            )
        except DataplaneError as error:
            self._pools[pool].error = str(error)
            self._base_wake.set()
        self._report_pool(pool)

    # ---- reconciling -----------------------------------------------------------------------------------------------

    async def _reconcile_all(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RECONCILE_EVERY_S if not self._problems else 1.0):
                    await self._base_wake.wait()
            except TimeoutError:
                pass
            self._base_wake.clear()
            await self._reconcile()

    async def _reconcile(self) -> None:
        """Make everything as it should be; what can't be done is reported and tried again."""
        base = self._state.base
        self._forget_deleted()
        await self._ensure_tunnels(base)
        try:
            if base.tunnels or self._told:
                await self._converge()
                await self._kernel.nft.ensure(project.nft_rules(self._config, base))
            self._problems.clear("kernel")
        except DataplaneError as error:
            self._problems.set("kernel", error)
        try:
            wanted = project.bird_config(self._config, base)
            if wanted is not None:
                await self._applier.configure(edge_text(wanted))
            self._problems.clear("bird")
        except BirdError as error:
            self._problems.set("bird", error)
        self._sessions.follow(base.tunnels, self._events.routes)
        self._watch.follow(base)
        await self._audit()
        self._report_all()

    async def _ensure_tunnels(self, base: AgentBase) -> None:
        await self._tunnels.ensure(base)
        if self._tunnels.endpoints != self._state.endpoints:
            self._state = replace(self._state, endpoints=self._tunnels.endpoints)
            self._save(self._state)
        self._problems.exactly("tunnel", self._tunnels.problems)
        try:
            async with self._kernel_turn:
                pools = (*project.commands(self._state).values(), *self._ordered())
                held = frozenset(prefix for pool in pools for prefix in pool.prefixes)
                await self._steering.learn(self._tunnels.lanes, held)
            self._problems.clear("steering")
        except DataplaneError as error:
            self._problems.set("steering", error)

    def _ordered(self) -> list[EdgePool]:
        """Commands that have come and are not carried out yet."""
        return [command for command, _ in self._orders.values()]

    async def _converge(self) -> None:
        """Links, addresses, routes and sysctls. Compared with the commands in force at the moment of writing."""
        async with self._kernel_turn:
            lanes = self._tunnels.lanes
            there = tuple(tunnel for tunnel in self._state.base.tunnels if tunnel.name in lanes)
            state = replace(self._state, base=replace(self._state.base, tunnels=there))
            desired = project.kernel_state(self._config, state, project.commands(state))
            actual = await self._kernel.netlink.read([self._config.tables.main])
            actual = replace(actual, sysctls=self._kernel.sysctls.read(desired.sysctls))
            for op in diff(actual, desired):
                if not self._premature(op):
                    await self._kernel.apply((op,))

    def _premature(self, op: Op) -> bool:
        """Whether it would sweep what is only not known yet: of a tunnel in trouble, of a command not carried out."""
        if isinstance(op, DeleteRoute):
            awaited = {prefix for command in self._ordered() for prefix in command.prefixes}
            return bool(self._tunnels.problems) or op.route.prefix in awaited
        if isinstance(op, DeleteLink) and not self._tunnels.problems:
            self._log("tunnel removed", device=op.name)
        return isinstance(op, DeleteLink) and bool(self._tunnels.problems)

    async def _audit(self) -> None:
        """Every command in force once more against the kernel: what another hand changed is put right."""
        for pool in list(self._state.fence.pools):
            async with self._kernel_turn:
                accepted = self._state.fence.pools.get(pool)  # only now: it may have moved while we waited for our turn
                if accepted is not None and pool not in self._lingering and pool not in self._orders:
                    await self._audit_pool(pool, accepted.command)

    async def _audit_pool(self, pool: str, command: EdgePool) -> None:
        known = self._pools.setdefault(pool, PoolAtEdge())
        owner = frozenset({command.owner} if command.owner else ())
        if not command.deleted and command.owner not in self._tunnels.lanes:
            known.error = f"no tunnel to {command.owner}"
            return
        try:
            sight = await self._steering.look(command, self._tunnels.lanes, self._pools[pool].phases())
            if sight.accepts_from != owner or (not command.deleted and not sight.installed):
                sight = await self._carry_out(pool, replace(command, planned=False), None)
            known.sight, known.error, known.removed = sight, "", command.deleted
        except DataplaneError as error:
            known.error = str(error)

    def on_session(self, _gateway: str) -> None:
        """A session's word may have changed; called from inside the netlink reader when one falls."""
        self._observe()

    def _observe(self) -> None:
        witnesses = self._witnesses()
        self._consider_plans(witnesses)
        self._report_base(witnesses)

    def _witnesses(self) -> dict[str, GatewayWitness]:
        return {name: self._watch.witness(name) for name in self._tunnels.lanes}

    def _on_route(self, change: RouteChange) -> None:
        self._sessions.on_route(change)
        for pool, accepted in self._state.fence.pools.items():
            if change.prefix in accepted.command.prefixes:
                self._report_pool(pool)

    # ---- reporting -------------------------------------------------------------------------------------------------

    def _tell(self, key: str, value: object | None) -> None:
        if self.link is not None:
            self.link.reports.set(key, value)

    def lacking(self) -> str:
        """What keeps this agent from doing its work, for /readyz; empty when nothing does."""
        return "; ".join(self._problems.told())

    def _report_base(self, witnesses: Mapping[str, GatewayWitness]) -> None:
        report = EdgeReport(
            instance=self._instance,
            gateways=witnesses,
            bird="up" if self._sessions.bird_answers else "silent",
            highest_epoch=self._state.fence.highest_epoch,
            problems=self._problems.told(),
        )
        self._tell(self._keys.observed_base("edge", self._config.name), report)

    def _report_pool(self, pool: str) -> None:
        accepted, known = self._state.fence.pools.get(pool), self._pools.get(pool)
        if accepted is None or known is None:
            return
        devices = {lane.device: name for name, lane in self._tunnels.lanes.items()}
        routes = [self._events.routes.get(prefix) for prefix in accepted.command.prefixes]
        speakers = {devices.get(route.device or "", "") if route else "" for route in routes}
        announced_by = tuple(sorted(speakers - {""})) if "" not in speakers else ()
        report = known.report(accepted, announced_by)
        self._tell(self._keys.observed("edge", self._config.name, "pool", pool), report)

    def _settle_outages(self) -> None:
        """The first answer through the new gateway after a move ends the outage, to within a probe interval."""
        for pool, known in self._pools.items():
            accepted = self._state.fence.pools.get(pool)
            if accepted is not None and known.settle_outage(self._watch.probe(accepted.command.owner)):
                self._report_pool(pool)

    def _report_all(self) -> None:
        self._observe()
        for pool in self._state.fence.pools:
            self._report_pool(pool)
