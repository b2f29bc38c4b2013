"""The edge agent: obeys fenced commands, steers pools, watches gateways. Crash-only: started again it converges.

Three things run beside each other: commands (the hot path of a move), reconciliation of all else, and observation.
Commands and reconciliation take turns on the kernel.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from birdctl.apply import Applier
from birdctl.errors import BirdError
from birdctl.render import edge_text
from dataplane.diff import DeleteLink, DeleteRoute, Op, diff
from dataplane.errors import DataplaneError
from dataplane.events import RouteChange, RouteEvents
from dataplane.kernel import LinuxKernel
from dataplane.model import ROUTE_PROTOCOL
from dataplane.wireguard import WireGuard
from fsm import fence
from fsm.ports import Clock
from fsm.records import AgentBase, EdgePool, EdgeReport, GatewayWitness
from orchestrator.agents import edge_state as project
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.heard import Heard
from orchestrator.agents.kept import Kept
from orchestrator.agents.link import AgentLink
from orchestrator.agents.moves import Moves, Order
from orchestrator.agents.plans import carried_out, due_plans
from orchestrator.agents.problems import Problems
from orchestrator.agents.readings import EdgeReadings
from orchestrator.agents.sessions import Sessions
from orchestrator.agents.steering import Steering
from orchestrator.agents.tunnels import Tunnels
from orchestrator.agents.watch import Watch
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.store.keys import DesiredBaseKey, DesiredKey, Keys
from orchestrator.store.port import Change
from orchestrator.store.records import RecordError, decode

RECONCILE_EVERY_S = 10
RETRY_S = 0.2
TICK_S = 0.25
ACTING_S = 0.1
"""Plans that take longer than this are not waited for: what is seen is told without them."""

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
        self._problems, self._log = Problems(log), log
        self._kept = Kept(state, save, self._problems)
        self._steering = Steering(wireguard, kernel.netlink, clock, config.tables.main, state.parking_key)
        self._events = RouteEvents(config.tables.signal, self._on_route, self._report_all)
        self._watch = Watch(config, clock, sessions, lambda _state: self._observe())
        self._orders: dict[str, tuple[EdgePool, int]] = {}
        self._orders_wake, self._base_wake = asyncio.Event(), asyncio.Event()
        self._kernel_turn = asyncio.Lock()
        self._stirred = False  # a session came or went: look within a second what else did
        self._tunnels = Tunnels(config, wireguard, state.parking_key, state.endpoints)
        self._moves = Moves(
            steering=self._steering, tunnels=self._tunnels, clock=clock, turn=self._kernel_turn,
            state=lambda: self._state, spawn=self._start, on_parked=self._parked,
        )  # fmt: skip
        self._told = False
        """Whether the store has said what this edge is: an edge that knows nothing must not tidy up."""
        self._unanswered: set[str] = set()
        """Pools whose move was after an outage that is not known to be over: not to look at a thousand each time."""
        self._acting: set[str] = set()
        self._acting_s = 0.0
        self._heard = Heard(clock, lambda: self._state.fence.pools, lambda: bool(self._acting), self._report_pools)
        self._group: asyncio.TaskGroup | None = None
        self.link: AgentLink | None = None
        self.turns = 0

    @property
    def _state(self) -> EdgeState:
        return self._kept.state

    # ---- being told ------------------------------------------------------------------------------------------------

    def on_desired(self, changes: tuple[Change, ...]) -> None:
        """What the leader wants, as the mirror brings it. Only noted here; obeyed in `_obey`."""
        forgotten: list[str] = []
        for change in changes:
            try:
                key = self._keys.parse(change.key)
                if isinstance(key, DesiredBaseKey) and change.value is not None:
                    self._told = True
                    self._kept.soon(project.told(self._state, decode(change.value, AgentBase, change.key)))
                    self._base_wake.set()
                elif isinstance(key, DesiredKey) and key.type == "pool":
                    if change.value is not None:
                        self._orders[key.name] = (decode(change.value, EdgePool, change.key), change.mod_revision)
                        self._orders_wake.set()
                    elif (was := self._state.fence.pools.get(key.name)) is not None and was.command.deleted:
                        forgotten.append(key.name)  # without that order a missing key changes nothing
                self._problems.clear(change.key)
            except (ValueError, RecordError) as error:
                self._problems.set(change.key, error)
        self._forget(forgotten)

    def _forget(self, pools: Collection[str]) -> None:
        """Their deletion was confirmed everywhere; only the fence's numbers stay."""
        if not pools:
            return
        self._kept.soon(replace(self._state, fence=fence.forget(self._state.fence, *pools)))
        for pool in pools:
            self._orders.pop(pool, None)
            self._moves.forget(pool)
            self._tell(self._keys.observed("edge", self._config.name, "pool", pool), None)

    def _forget_deleted(self) -> None:
        """Pools that were deleted for good while this agent was away: nobody tells of them any more."""
        if self.link is None or not self.link.mirror.ready.is_set():
            return
        key = partial(self._keys.desired, "edge", self._config.name, "pool")
        deleted = (pool for pool, command in project.commands(self._state).items() if command.deleted)
        self._forget([p for p in deleted if p not in self._orders and self.link.mirror.get(key(p)) is None])

    # ---- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Starts from disk and kernel, with or without the store."""
        try:
            await self._recover_plans()
            await self._reconcile()
            await self._events.start()
            self._sessions.follow(self._state.base.tunnels, self._events.routes)
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._obey_all(), name="commands")
                group.create_task(self._reconcile_all(), name="reconcile")
                group.create_task(self._sessions.run(), name="sessions")
                group.create_task(self._heard.run(), name="announcements heard")
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
            # A command that failed waits for its next try; meanwhile a new one is obeyed at once.
            pause_s = RETRY_S if self._orders and not await self._obey() else TICK_S

    async def _obey(self) -> bool:
        """All commands that have come: fence, disk, kernel, read back, report. False if some are to be tried again.

        All in one turn at the kernel: nobody else acts on a command that is accepted and not carried out.
        """
        received_s = self._clock.now()
        async with self._kernel_turn:
            due, self._orders = self._orders, {}
            orders = self._accept(due)
            self._depart(orders, received_s)
            failed = await self._moves.carry_out(orders)
            self._arrive(order.pool for order in orders if order.pool not in failed)
            for pool in failed:
                self._orders.setdefault(pool, due[pool])
        self._report_pools(due)
        if failed:
            self._base_wake.set()
        return not failed and not self._kept.trouble

    def _accept(self, due: Mapping[str, tuple[EdgePool, int]]) -> list[Order]:
        """The commands that the fence lets pass, and it is on disk that it did."""
        before = self._state.fence
        verdict, refused = fence.accept_all(before, [(pool, *order) for pool, order in due.items()])
        for pool, refusal in refused.items():
            if not refusal.stale:
                self._log("command refused", pool=pool, reason=refusal.reason)
                self._moves.at(pool).error = refusal.reason
        passed = {pool: order for pool, order in due.items() if pool not in refused}
        if verdict != before and not self._kept.first(replace(self._state, fence=verdict)):
            for pool in passed:
                self._moves.at(pool).error = self._kept.trouble
                self._orders.setdefault(pool, due[pool])
            return []
        old = {pool: accepted.command for pool, accepted in before.pools.items()}
        return [Order(pool, command, old.get(pool)) for pool, (command, _) in passed.items()]

    def _depart(self, orders: Iterable[Order], now: float) -> None:
        """What was read back of the last command must not pass for a confirmation of this one; and clocks start."""
        probes = {name: self._watch.probe(name) for name in self._tunnels.lanes}
        for order in orders:
            known = self._moves.at(order.pool)
            if order.before != order.command:
                known.sight = None
            left = order.before.owner if order.before else None
            if order.before is not None and left != order.command.owner:
                known.leave(probes.get(left or ""), self._sessions.fell_s(left or ""), now)

    def _arrive(self, pools: Iterable[str]) -> None:
        now = self._clock.now()
        for pool in pools:
            known = self._moves.at(pool)
            known.moved(now)
            if known.unanswered:
                self._unanswered.add(pool)

    def _consider_plans(self, witnesses: Mapping[str, GatewayWitness]) -> None:
        """Carry out every plan whose moment has come, at once and together."""
        due = [pool for pool in due_plans(self._state.fence.pools, witnesses) if pool not in self._acting]
        if due and self._group is not None:
            self._acting.update(due)
            self._acting_s = self._clock.now()
            self._group.create_task(self._execute(due), name=f"plans of {len(due)} pools")

    async def _execute(self, pools: Collection[str]) -> None:
        """Plans: they were on disk before anything happened, so the kernel comes first and the disk afterwards."""
        began_s = self._clock.now()
        try:
            async with self._kernel_turn:
                held = self._state.fence.pools
                due = due_plans({pool: held[pool] for pool in pools if pool in held}, self._witnesses())
                moved = self._advance(due)
                now = self._state.fence.pools
                orders = [Order(pool, now[pool].command, held[pool].command) for pool in moved]
                self._depart(orders, began_s)
                failed = await self._moves.carry_out(orders)
                made = [order for order in orders if order.pool not in failed]
                self._arrive(order.pool for order in made)
                if moved:
                    self._kept.soon(self._state)
            self._report_pools(moved)
            self._report_base(self._witnesses())
            for order in made:
                self._log("plan carried out", pool=order.pool, owner=order.command.owner, epoch=order.command.epoch)
            if failed:
                self._base_wake.set()
        finally:
            self._acting.difference_update(pools)

    def _advance(self, pools: Collection[str]) -> list[str]:
        """Take the plans' numbers; the pools whose plan was not refused because another has a prefix by now."""
        after, refused = fence.execute_all(self._state.fence, list(pools))
        self._kept.state = replace(self._state, fence=after)
        for pool, reason in refused.items():
            self._moves.at(pool).error = reason
        return [pool for pool in pools if pool not in refused]

    async def _recover_plans(self) -> None:
        """Plans that were carried out just before we died, and are not on disk yet: the kernel knows."""
        routes = await self._kernel.netlink.routes(self._config.tables.main, ROUTE_PROTOCOL)
        devices = {tunnel.name: project.device_name(self._config, tunnel) for tunnel in self._state.base.tunnels}
        routed = {route.prefix: route.device for route in routes}
        while recovered := self._advance(carried_out(self._state.fence.pools, routed, devices)):
            self._kept.soon(self._state)
            for pool in recovered:
                command = self._state.fence.pools[pool].command
                self._log("plan found carried out", pool=pool, owner=command.owner, epoch=command.epoch)

    def _start(self, work: Coroutine[None, None, None], name: str) -> object:
        """A task that ends with this agent."""
        assert self._group is not None, "only commands and plans linger, and both come while it runs"
        return self._group.create_task(work, name=name)

    def _parked(self, pools: Collection[str], well: bool) -> None:
        self._report_pools(pools)
        if not well:
            self._base_wake.set()

    async def _reconcile_all(self) -> None:
        while True:
            for _ in range(RECONCILE_EVERY_S):
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._base_wake.wait()
                if self._problems or self._stirred or self._base_wake.is_set():
                    break
            self._base_wake.clear()
            self._stirred = False
            await self._reconcile()

    async def _reconcile(self) -> None:
        """Make everything as it should be; what can't be done is reported and tried again."""
        self._kept.settle()
        self._kept.state = project.released(self._state)
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
                given_up = await self._applier.enable_sessions(*(session.name for session in wanted.sessions))
                if given_up:
                    self._log("sessions that BIRD had given up are enabled again", peers=given_up)
            self._problems.clear("bird")
        except (BirdError, ValueError) as error:  # or a value that BIRD's configuration can't have
            self._problems.set("bird", error)
        self._sessions.follow(base.tunnels, self._events.routes)
        self._watch.follow(base)
        await self._audit()
        self._report_all()

    async def _ensure_tunnels(self, base: AgentBase) -> None:
        await self._tunnels.ensure(base)
        if self._tunnels.endpoints != self._state.endpoints:
            self._kept.soon(replace(self._state, endpoints=self._tunnels.endpoints))
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
        """Every command in force once more against the kernel."""
        async with self._kernel_turn:
            awaited = {*self._moves.lingering, *self._orders}
            commands = project.commands(self._state)
            audited = {pool: command for pool, command in commands.items() if pool not in awaited}
            await self._moves.audit(audited)
            # A plan that the kernel had refused is true only now.
            self._arrive(pool for pool in audited if not self._moves.at(pool).error)

    def on_session(self, _gateway: str) -> None:
        """A session's word may have changed; called from inside the netlink reader when one falls."""
        self._observe()

    def _observe(self) -> None:
        witnesses = self._witnesses()
        self._consider_plans(witnesses)
        # What is being done about it is told with it: nobody shall decide the same meanwhile, and take time from it.
        if not self._acting or self._clock.now() > self._acting_s + ACTING_S:
            self._report_base(witnesses)

    def _witnesses(self) -> dict[str, GatewayWitness]:
        return {name: self._watch.witness(name) for name in self._tunnels.lanes}

    def _on_route(self, change: RouteChange) -> None:
        self._stirred = True
        self._sessions.on_route(change)
        self._heard.note(change.prefix)

    def _tell(self, key: str, value: object | None) -> None:
        if self.link is not None:
            self.link.reports.set(key, value)

    def lacking(self) -> str:
        """What keeps this agent from doing its work, for /readyz; empty when nothing does."""
        return "; ".join(self._problems.told())

    def readings(self) -> EdgeReadings:
        """What is measured here, as of now."""
        return EdgeReadings(self._state.fence, self._watch.probes(self._tunnels.lanes), self._events.overruns)

    def _report_base(self, witnesses: Mapping[str, GatewayWitness]) -> None:
        bird, highest = "up" if self._sessions.bird_answers else "silent", self._state.fence.highest_epoch
        report = EdgeReport(self._instance, witnesses, bird, highest, problems=self._problems.told())
        self._tell(self._keys.observed_base("edge", self._config.name), report)

    def _report_pools(self, pools: Iterable[str]) -> None:
        devices = {lane.device: name for name, lane in self._tunnels.lanes.items()}
        for pool in pools:
            accepted, known = self._state.fence.pools.get(pool), self._moves.pools.get(pool)
            if accepted is None or known is None:
                continue
            through = [self._events.device(prefix) for prefix in accepted.command.prefixes]
            speakers = {devices.get(device, "") for device in through}
            announced_by = tuple(sorted(speakers - {""})) if "" not in speakers else ()
            report = known.report(accepted, announced_by)
            self._tell(self._keys.observed("edge", self._config.name, "pool", pool), report)

    def _settle_outages(self) -> None:
        """The first answer through the new gateway after a move ends the outage, to within a probe interval."""
        if not self._unanswered:
            return
        probes, accepted = self._watch.probes(self._tunnels.lanes), self._state.fence.pools
        pending = {pool: self._moves.at(pool) for pool in self._unanswered if pool in accepted}
        over = [p for p, known in pending.items() if known.settle_outage(probes.get(accepted[p].command.owner or ""))]
        self._unanswered = {pool for pool, known in pending.items() if known.unanswered}
        self._report_pools(over)

    def _report_all(self) -> None:
        self._observe()
        self._report_pools(self._state.fence.pools)
