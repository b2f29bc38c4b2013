"""The edge agent: obeys fenced commands, steers pools, watches gateways. Crash-only: started again it converges.

Three things run beside each other: commands (the hot path of a move), reconciliation of all else, and observation.
Commands and reconciliation take turns on the kernel.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from birdctl.apply import Applier
from birdctl.errors import BirdError
from birdctl.render import edge_text
from dataplane.diff import DeleteLink, diff
from dataplane.errors import DataplaneError
from dataplane.events import RouteChange, RouteEvents
from dataplane.kernel import LinuxKernel
from dataplane.probe import Prober, ProbeState
from dataplane.wireguard import PeerUpdate, WireGuard
from fsm import fence
from fsm.ports import Clock
from fsm.records import AgentBase, EdgePool, EdgePoolReport, EdgeReport, GatewayWitness, Tunnel
from fsm.types import PROBE_UNFIT_AFTER
from orchestrator.agents import edge_state as project
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.link import AgentLink
from orchestrator.agents.sessions import Sessions
from orchestrator.agents.steering import Lane, Sight, Steering
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.store.keys import DesiredBaseKey, DesiredKey, Keys
from orchestrator.store.port import Change
from orchestrator.store.records import RecordError, decode

RECONCILE_EVERY_S = 10.0
RETRY_S = 0.2
TICK_S = 0.25

Log = Callable[..., None]


@dataclass(slots=True)
class _Pool:
    """A pool as this edge has it: the sight of the last command obeyed and what is still to be told of it."""

    sight: Sight | None = None
    error: str = ""
    removed: bool = False
    from_gateway: str | None = None
    left_s: float | None = None
    """When the old gateway last answered a probe, at the moment of the move."""
    moved_s: float | None = None
    outage_ms: float | None = None
    extra_phases: dict[str, float] | None = None


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
        self._probers: dict[str, tuple[Tunnel, Prober, asyncio.Task[None]]] = {}
        self._pools: dict[str, _Pool] = {name: _Pool() for name in state.fence.pools}
        self._orders: dict[str, tuple[EdgePool, int]] = {}
        self._orders_wake, self._base_wake = asyncio.Event(), asyncio.Event()
        self._kernel_turn = asyncio.Lock()
        self._problems: dict[str, str] = {}
        self._lingering: dict[str, asyncio.Task[None]] = {}
        self._lanes: dict[str, Lane] = {}
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
                    self._state = replace(self._state, base=base)
                    self._save(self._state)
                    self._base_wake.set()
                elif isinstance(key, DesiredKey) and key.type == "pool":
                    self._note(key.name, change)
            except (ValueError, RecordError) as error:
                self._problem("desired", str(error))

    def _note(self, pool: str, change: Change) -> None:
        if change.value is not None:
            self._orders[pool] = (decode(change.value, EdgePool, change.key), change.mod_revision)
            self._orders_wake.set()
            return
        accepted = self._state.fence.pools.get(pool)
        if accepted is not None and accepted.command.deleted:
            # Its deletion was confirmed everywhere; without that order a missing key changes nothing.
            self._orders.pop(pool, None)
            self._pools.pop(pool, None)
            self._state = replace(self._state, fence=fence.forget(self._state.fence, pool))
            self._save(self._state)
            self._tell(self._keys.observed("edge", self._config.name, "pool", pool), None)

    # ---- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Starts from disk and kernel, with or without the store."""
        await self._reconcile()
        await self._events.start()
        self._sessions.follow(self._state.base.tunnels, self._events.routes)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._obey_all(), name="commands")
                group.create_task(self._reconcile_all(), name="reconcile")
                group.create_task(self._sessions.run(), name="sessions")
                group.create_task(self._events.until_broken(), name="signals")
                if self.link is not None:
                    group.create_task(self.link.run(), name="link")
        finally:
            self._events.close()
            for _, _, task in self._probers.values():
                task.cancel()

    async def _obey_all(self) -> None:
        while True:
            try:
                async with asyncio.timeout(TICK_S):
                    await self._orders_wake.wait()
            except TimeoutError:
                self._settle_outages()
            self._orders_wake.clear()
            self.turns += 1
            for pool in list(self._orders):
                order = self._orders.pop(pool, None)
                if order is not None and not await self._obey(pool, *order):
                    self._orders.setdefault(pool, order)
                    await self._clock.sleep(RETRY_S)
                    self._orders_wake.set()

    async def _obey(self, pool: str, command: EdgePool, revision: int) -> bool:
        """One command: fence, disk, kernel, read back, report. False if it has to be tried again."""
        received_s = self._clock.now()
        before = self._state.fence.pools.get(pool)
        verdict = fence.accept(self._state.fence, pool, command, revision)
        if isinstance(verdict, fence.Refused):
            if not verdict.stale:
                self._log("command refused", pool=pool, reason=verdict.reason)
                self._pools.setdefault(pool, _Pool()).error = verdict.reason
                self._report_pool(pool)
            return True
        if verdict != self._state.fence:
            self._state = replace(self._state, fence=verdict)
            self._save(self._state)
        known = self._pools.setdefault(pool, _Pool())
        old = before.command if before else None
        if old is not None and old.owner != command.owner:
            self._leave(known, old.owner, received_s)
        try:
            async with self._kernel_turn:
                known.sight = await self._carry_out(pool, command, old)
            known.error, known.removed = "", command.deleted
        except (DataplaneError, KeyError) as error:
            known.error = str(error) if isinstance(error, DataplaneError) else f"no tunnel to {error}"
            self._report_pool(pool)
            self._base_wake.set()
            return False
        known.moved_s = self._clock.now() if known.left_s is not None and known.moved_s is None else known.moved_s
        self._report_pool(pool)
        return True

    def _leave(self, known: _Pool, gateway: str | None, received_s: float) -> None:
        """Stamps of the gateway that is left, all on this clock: they make the phases and the outage's estimate."""
        known.from_gateway, known.outage_ms, known.moved_s = gateway, None, None
        prober = self._probers.get(gateway or "")
        state = prober[1].evaluate() if prober else None
        known.left_s = state.judgement.last_answered_s if state else None
        fell_s = self._sessions.fell_s(gateway or "")
        known.extra_phases = {}
        if known.left_s is not None and fell_s is not None and fell_s <= received_s:
            known.extra_phases = {"detect": (fell_s - known.left_s) * 1000, "order": (received_s - fell_s) * 1000}
        if state is not None and state.word == "passing":
            known.outage_ms, known.left_s = 0.0, None

    async def _carry_out(self, pool: str, command: EdgePool, old: EdgePool | None) -> Sight:
        lingering = self._lingering.pop(pool, None)
        if lingering is not None:
            lingering.cancel()
        lost = tuple(p for p in (old.prefixes if old else ()) if p not in command.prefixes)
        if lost:
            await self._steering.remove(lost, self._lanes)
        if command.owner is None:
            return await self._steering.remove(command.prefixes, self._lanes)
        sight = await self._steering.point(command, self._lanes, self._state.base.mtu)
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
            await self._steering.park(command, self._lanes)
            self._pools[pool].sight = await self._steering.look(command, self._lanes, self._phases(pool))
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
        try:
            await self._ensure_tunnels(base)
            await self._converge()
            await self._kernel.nft.ensure(project.nft_rules(self._config, base))
            self._problems.pop("kernel", None)
        except DataplaneError as error:
            self._problem("kernel", str(error))
        try:
            wanted = project.bird_config(self._config, base)
            if wanted is not None:
                await self._applier.configure(edge_text(wanted))
            self._problems.pop("bird", None)
        except BirdError as error:
            self._problem("bird", str(error))
        self._follow(base)
        await self._audit()
        self._report_all()

    async def _ensure_tunnels(self, base: AgentBase) -> None:
        for name, tunnel in project.by_gateway(base).items():
            device = project.device_name(self._config, tunnel)
            key_file = self._config.wireguard.private_key_file
            await self._wireguard.ensure_device(device, key_file, tunnel.port, base.mtu, f"bgplb:{name}")
            peers = (await self._wireguard.read(device)).peers
            stale = [PeerUpdate(k, remove=True) for k in peers if k not in (tunnel.public_key, self._state.parking_key)]
            own = project.own_prefixes(tunnel)
            present = peers.get(tunnel.public_key)
            missing = own - (present.allowed_ips if present else frozenset())
            updates = [*stale, PeerUpdate(tunnel.public_key, add_allowed_ips=missing)]
            if self._state.parking_key not in peers:
                updates.append(PeerUpdate(self._state.parking_key))
            await self._wireguard.update(device, updates)
        tunnels = project.by_gateway(base)
        self._lanes = {n: Lane(n, project.device_name(self._config, t), t.public_key) for n, t in tunnels.items()}

    async def _converge(self) -> None:
        """Links, addresses, routes and sysctls. Compared with the commands in force at the moment of writing."""
        names = project.kernel_state(self._config, self._state, {}).sysctls
        async with self._kernel_turn:
            actual = await self._kernel.netlink.read([self._config.tables.main])
            actual = replace(actual, sysctls=self._kernel.sysctls.read(names))
            desired = project.kernel_state(self._config, self._state, project.commands(self._state))
            for op in diff(actual, desired):
                if isinstance(op, DeleteLink):
                    self._log("tunnel removed", device=op.name)
                await self._kernel.apply((op,))
            await self._steering.learn(self._lanes)

    async def _audit(self) -> None:
        """Every command in force once more against the kernel: what another hand changed is put right."""
        for pool, accepted in list(self._state.fence.pools.items()):
            if pool in self._lingering or pool in self._orders:
                continue
            command = accepted.command
            known = self._pools.setdefault(pool, _Pool())
            owner = frozenset({command.owner} if command.owner else ())
            if not command.deleted and command.owner not in self._lanes:
                known.error = f"no tunnel to {command.owner}"
                continue
            try:
                async with self._kernel_turn:
                    sight = await self._steering.look(command, self._lanes, self._phases(pool))
                    if sight.accepts_from != owner or (not command.deleted and not sight.installed):
                        sight = await self._carry_out(pool, replace(command, planned=False), None)
                known.sight, known.error, known.removed = sight, "", command.deleted
            except DataplaneError as error:
                known.error = str(error)

    # ---- observing -------------------------------------------------------------------------------------------------

    def _follow(self, base: AgentBase) -> None:
        """Probe and watch exactly these tunnels."""
        tunnels = project.by_gateway(base)
        self._sessions.follow(tunnels.values(), self._events.routes)
        for name, (tunnel, _, task) in list(self._probers.items()):
            if tunnels.get(name) != tunnel:
                task.cancel()
                del self._probers[name]
        for name, tunnel in tunnels.items():
            if name not in self._probers:
                prober = Prober(
                    device=project.device_name(self._config, tunnel),
                    source=project.probe_source(tunnel),
                    destination=tunnel.probe_ipv4,
                    interval_ms=base.probe_interval_ms,
                    clock=self._clock,
                    on_change=self._on_probe,
                    mtu=base.mtu,
                )
                task = asyncio.create_task(prober.run(), name=f"probe {name}")
                self._probers[name] = (tunnel, prober, task)

    def on_session(self, _gateway: str) -> None:
        """A session's word may have changed; called from inside the netlink reader when one falls."""
        self._report_base()

    def _on_probe(self, _state: ProbeState) -> None:
        self._report_base()

    def _on_route(self, change: RouteChange) -> None:
        self._sessions.on_route(change)
        for pool, accepted in self._state.fence.pools.items():
            if change.prefix in accepted.command.prefixes:
                self._report_pool(pool)

    def _passes(self, gateway: str) -> bool:
        entry = self._probers.get(gateway)
        return entry is not None and entry[1].evaluate().word == "passing"

    def _witness(self, gateway: str) -> GatewayWitness:
        session, reason = self._sessions.word(gateway, self._passes)
        entry = self._probers.get(gateway)
        if entry is None:
            return GatewayWitness(session, reason=reason)
        state = entry[1].evaluate()
        judgement = state.judgement
        return GatewayWitness(
            session=session,
            probe=state.word,
            missed=min(judgement.missed, PROBE_UNFIT_AFTER),
            settled=judgement.settled,
            full_size=state.full_size,
            reason=reason,
        )

    # ---- reporting -------------------------------------------------------------------------------------------------

    def _tell(self, key: str, value: object | None) -> None:
        if self.link is not None:
            self.link.reports.set(key, value)

    def lacking(self) -> str:
        """What keeps this agent from doing its work, for /readyz; empty when nothing does."""
        return "; ".join(f"{where}: {what}" for where, what in sorted(self._problems.items()))

    def _problem(self, where: str, what: str) -> None:
        if self._problems.get(where) != what:
            self._log("problem", where=where, what=what)
        self._problems[where] = what

    def _report_base(self) -> None:
        report = EdgeReport(
            instance=self._instance,
            gateways={name: self._witness(name) for name in self._lanes},
            bird="up" if self._sessions.bird_answers else "silent",
            highest_epoch=self._state.fence.highest_epoch,
            problems=tuple(f"{where}: {what}" for where, what in sorted(self._problems.items())),
        )
        self._tell(self._keys.observed_base("edge", self._config.name), report)

    def _phases(self, pool: str) -> dict[str, float]:
        sight = self._pools[pool].sight
        return dict(sight.phases_ms) if sight else {}

    def _report_pool(self, pool: str) -> None:
        accepted, known = self._state.fence.pools.get(pool), self._pools.get(pool)
        if accepted is None or known is None:
            return
        command, sight = accepted.command, known.sight
        devices = {lane.device: name for name, lane in self._lanes.items()}
        routes = [self._events.routes.get(prefix) for prefix in command.prefixes]
        speakers = {devices.get(route.device or "", "") if route else "" for route in routes}
        report = EdgePoolReport(
            epoch=command.epoch,
            owner=command.owner,
            withdrawn=bool(sight and sight.withdrawn),
            installed=bool(sight and sight.installed),
            removed=bool(known.removed and sight and not sight.sends_to and not sight.accepts_from),
            lingering=bool(sight and sight.accepts_from - {command.owner or ""}),
            announced_by=tuple(sorted(speakers - {""})) if "" not in speakers else (),
            phases_ms={k: round(v, 2) for k, v in {**self._phases(pool), **(known.extra_phases or {})}.items()},
            outage_estimate_ms=known.outage_ms,
            error=known.error,
        )
        self._tell(self._keys.observed("edge", self._config.name, "pool", pool), report)

    def _settle_outages(self) -> None:
        """The first answer through the new gateway after a move ends the outage, to within a probe interval."""
        for pool, known in self._pools.items():
            accepted = self._state.fence.pools.get(pool)
            if known.left_s is None or known.moved_s is None or accepted is None:
                continue
            entry = self._probers.get(accepted.command.owner or "")
            answered = entry[1].evaluate().judgement.last_answered_s if entry else None
            if answered is not None and answered >= known.moved_s:
                known.outage_ms = round((known.moved_s - known.left_s) * 1000, 1)
                known.left_s = None
                self._report_pool(pool)

    def _report_all(self) -> None:
        self._report_base()
        for pool in self._state.fence.pools:
            self._report_pool(pool)
