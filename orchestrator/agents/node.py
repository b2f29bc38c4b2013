"""The node agent of a gateway: tunnels, answers, announcements, readiness. Crash-only: started again it converges.

A pool's announcement is the only thing that moves; everything else is the same on the owner and on every standby.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from birdctl.apply import Applied, Applier
from birdctl.errors import BirdError
from birdctl.render import gateway_text
from dataplane.diff import diff
from dataplane.errors import DataplaneError
from dataplane.kernel import LinuxKernel
from dataplane.model import Address, KernelState
from dataplane.probe_namespace import ProbeNamespace
from dataplane.reach import Reach
from dataplane.sysctl import IPV6_FORWARDING, IPVS_REROUTE
from dataplane.wireguard import PeerState, PeerUpdate, WireGuard
from fsm.ports import Clock
from fsm.records import TUNNEL_KNOWN, AgentBase, NodePool, NodePoolReport, NodeReport, Precondition, Tunnel
from orchestrator.agents import node_state as project
from orchestrator.agents import preconditions as check
from orchestrator.agents.foreign import ForeignRules
from orchestrator.agents.kept import Kept
from orchestrator.agents.link import AgentLink
from orchestrator.agents.node_state import NodeState
from orchestrator.agents.permit import Permit
from orchestrator.agents.problems import Problems
from orchestrator.agents.readings import NodeReadings
from orchestrator.agents.revive import Reviver
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.store.keys import DesiredBaseKey, DesiredKey, Keys
from orchestrator.store.port import Change
from orchestrator.store.records import RecordError, decode

CHECK_EVERY_S = 2.0
READ_BACK_EVERY_S = 10.0
"""How often BIRD is asked for all that it announces, though nobody has asked for a change and it is as it was."""
RETRY_S = 0.3
REVIVE_EVERY_S = 0.25
TICK_S = 0.25
DRAIN_WITHIN_S = 10.0
NAMED_ON_LAN = 8
"""Nodes that answer are reported by address, up to so many: some are enough to tell whose LAN is lost."""

Log = Callable[..., None]


class NodeAgent:
    """All that a gateway does. `save` makes a state durable before it returns."""

    def __init__(
        self,
        *,
        config: NodeAgentConfig,
        instance: str,
        keys: Keys,
        clock: Clock,
        kernel: LinuxKernel,
        wireguard: WireGuard,
        applier: Applier,
        reach: Reach,
        responder: ProbeNamespace,
        state: NodeState,
        save: Callable[[NodeState], None],
        log: Log,
    ) -> None:
        self._config, self._instance, self._keys, self._clock = config, instance, keys, clock
        self._kernel, self._wireguard, self._applier, self._reach = kernel, wireguard, applier, reach
        self._responder, self._log = responder, log
        self._problems = Problems(log)
        base, self._without_room = project.with_room(config, state.base)
        self._kept = Kept(replace(state, base=base), save, self._problems)
        self._pools: dict[str, NodePool] = {}
        """As the store says now; empty until it has spoken, so that nothing is announced from memory."""
        self._told = False
        self._wake, self._announce_wake = asyncio.Event(), asyncio.Event()
        self._preconditions: tuple[Precondition, ...] = ()
        self._wanted: tuple[NodeState, frozenset[str], bool, KernelState] | None = None
        """What the kernel should hold, for that state: a thousand pools have a rule each, the same at each look."""
        self._read_back_s = 0.0
        """When BIRD is to be asked again though nothing seems to have changed."""
        self._reported_answers = False
        self._announced: frozenset[str] = frozenset()
        """Pools that BIRD was last seen to announce."""
        self._leaving = False
        self._reviver = Reviver(wireguard, clock)
        self._silent: frozenset[str] = frozenset()
        """Edges from which nothing comes just now."""
        self._foreign = ForeignRules(kernel.nft, clock)
        ttl_s = config.lease.ttl_ms / 1000
        self._permit = Permit(kernel.netlink, clock, self._problems, self._lease_left_s, ttl_s)
        reach.on_change = self._report
        self.link: AgentLink | None = None
        self.turns = 0

    @property
    def _state(self) -> NodeState:
        return self._kept.state

    # ---- being told ------------------------------------------------------------------------------------------------

    def on_desired(self, changes: tuple[Change, ...]) -> None:
        """What the leader wants, as the mirror brings it. Only noted here."""
        base, pools = self._state.base, dict(self._pools)
        for change in changes:
            try:
                key = self._keys.parse(change.key)
                if isinstance(key, DesiredBaseKey):
                    base = self._told_base(base, change)
                elif isinstance(key, DesiredKey) and key.type == "pool":
                    self._note(pools, key.name, change)
                self._problems.clear(change.key)
            except (ValueError, RecordError) as error:
                self._problems.set(change.key, error)
        self._told = True
        widened = base != self._state.base or project.prefixes(pools) != project.prefixes(self._state.pools)
        self._pools = pools
        if widened:
            self._kept.soon(replace(self._state, base=base, pools=pools))
            self._wake.set()
        self._announce_wake.set()

    def _told_base(self, before: AgentBase, change: Change) -> AgentBase:
        """The base after that change. A key that is gone says nothing: tunnels are torn down by an order alone."""
        if change.value is not None:
            told, self._without_room = project.with_room(self._config, decode(change.value, AgentBase, change.key))
            return told
        self._log("no longer told of a base; the tunnels stay as they are", tunnels=len(before.tunnels))
        return before

    def _note(self, pools: dict[str, NodePool], name: str, change: Change) -> None:
        if change.value is not None:
            pools[name] = decode(change.value, NodePool, change.key)
        elif pools.pop(name, None) is not None:
            self._tell(self._keys.observed("node", self._config.name, "pool", name), None)

    # ---- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Tunnel and answers come from disk when the store is dead; announcements never do."""
        self._reach.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reconcile_all(), name="reconcile")
                group.create_task(self._announce_all(), name="announce")
                group.create_task(self._revive(), name="silent tunnels")
                group.create_task(self._permit.run(self._ends, self._lent), name="lent addresses")
                if self.link is not None:
                    group.create_task(self.link.run(), name="link")
        finally:
            self._reach.close()

    async def leave(self) -> None:
        """Hand over: say that we are leaving and wait until nothing is announced any more, 10 s at most."""
        self._leaving = True
        self._report()
        try:
            async with asyncio.timeout(DRAIN_WITHIN_S):
                while self._announced or any(pool.announce for pool in self._pools.values()):
                    await self._clock.sleep(0.05)
        except TimeoutError:
            self._log("left without a handover", pools=sorted(n for n, p in self._pools.items() if p.announce))

    async def _reconcile_all(self) -> None:
        while True:
            await self._reconcile()
            if await self._announcement_doubtful():
                self._announce_wake.set()
            try:
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _reconcile(self) -> None:
        """Make everything but announcements as it should be, then check what a gateway must be."""
        self.turns += 1
        self._kept.settle()
        base = self._state.base
        self._reach.watch(sorted(self._neighbours()), base.probe_interval_ms)
        wanted, lent = self._kernel_wanted(), self._lent()
        # A gateway that knows nothing must not tidy up.
        found = await self._converge(base, wanted, lent) if base.tunnels or self._told else None
        await self._configure_bird(base)
        await self._check(wanted, found, lent)
        self._report()

    def _kernel_wanted(self) -> KernelState:
        known, ipvs = self._wanted, bool(self._kernel.sysctls.read([IPVS_REROUTE]))
        if known is None or known[0] is not self._state or known[1:3] != (self._silent, ipvs):
            wanted = project.kernel_state(self._config, self._state, self._responder, ipvs, self._silent)
            wanted = replace(wanted, nft=project.nft_table(self._config, self._state.base, self._responder))
            known = self._wanted = (self._state, self._silent, ipvs, wanted)
        return known[3]

    async def _converge(self, base: AgentBase, wanted: KernelState, lent: frozenset[Address]) -> KernelState | None:
        """What is there; None where something was changed, or went wrong, and has to be looked at again."""
        try:
            # The rules before the tunnels: a connection that came in before them would never be translated.
            await project.responder_for(base, self._responder).ensure(self._kernel.netlink)
            await self._kernel.nft.ensure(wanted.nft)
            await self._ensure_tunnels(base)
            actual = replace(await self._read(wanted, lent), nft=wanted.nft)
            ops = diff(actual, wanted)
            await self._kernel.apply(ops)
            self._problems.clear("kernel")
        except DataplaneError as error:
            self._problems.set("kernel", error)
            return None
        return None if ops else actual

    async def _read(self, wanted: KernelState, lent: frozenset[Address]) -> KernelState:
        """What is there, but for what was lent when this was wanted: that comes and goes by itself."""
        actual = await self._kernel.netlink.read(project.tables(self._config, self._state.base))
        actual = replace(actual, addresses=actual.addresses - lent)
        return replace(actual, sysctls=self._kernel.sysctls.read(wanted.sysctls))

    def _ends(self) -> frozenset[Address]:
        return project.ends(self._config, self._state.base)

    def _lent(self) -> frozenset[Address]:
        return project.lent(self._config, self._state.base)

    def _lease_left_s(self) -> float:
        return self.link.lease_left_s() if self.link is not None else 0.0

    async def _ensure_tunnels(self, base: AgentBase) -> None:
        for tunnel in base.tunnels:
            device = project.device_name(self._config, tunnel)
            key_file = self._config.wireguard.private_key_file
            await self._wireguard.ensure_device(device, key_file, None, base.mtu, f"bgplb:{tunnel.name}")
            peers = (await self._wireguard.read(device)).peers
            updates = [PeerUpdate(key, remove=True) for key in peers if key != tunnel.public_key]
            updates += self._peer_updates(tunnel, peers.get(tunnel.public_key), base.keepalive_s)
            if updates:
                await self._wireguard.update(device, updates)
            endpoint = project.endpoint(tunnel)
            if self._state.endpoints.get(tunnel.name) != endpoint:
                self._kept.soon(replace(self._state, endpoints={**self._state.endpoints, tunnel.name: endpoint}))

    async def _revive(self) -> None:
        """Begin tunnels anew that have fallen silent, as after a reboot of the edge; answers of no edge avoid them."""
        while True:
            await self._clock.sleep(REVIVE_EVERY_S)
            base = self._state.base
            peers = {
                project.device_name(self._config, t): self._peer_updates(t, None, base.keepalive_s)
                for t in base.tunnels
            }
            await self._reviver.look(peers)
            silent = frozenset(
                t.name for t in base.tunnels if project.device_name(self._config, t) in self._reviver.silent
            )
            if silent != self._silent:
                self._log("edges heard", silent=sorted(silent), of=len(base.tunnels))
                self._silent = silent
                self._wake.set()

    def _peer_updates(self, tunnel: Tunnel, present: PeerState | None, keepalive_s: int) -> list[PeerUpdate]:
        """What the edge's peer lacks. A living peer's list is never replaced: for a moment it would have none."""
        endpoint, everywhere = project.endpoint(tunnel), project.everywhere(tunnel)
        if present is None:
            return [PeerUpdate(tunnel.public_key, everywhere, endpoint=endpoint, keepalive_s=keepalive_s)]
        known = endpoint in (self._state.endpoints.get(tunnel.name), present.endpoint)
        missing = everywhere - present.allowed_ips
        keepalive = None if (present.keepalive_s or 0) == keepalive_s else keepalive_s
        if known and not missing and keepalive is None:
            return []
        return [PeerUpdate(tunnel.public_key, missing, endpoint=None if known else endpoint, keepalive_s=keepalive)]

    async def _configure_bird(self, base: AgentBase) -> None:
        try:
            wanted = project.bird_config(self._config, base)
            if wanted is not None:
                await self._applier.configure(gateway_text(wanted))
                given_up = await self._applier.enable_sessions(*(session.name for session in wanted.sessions))
                if given_up:
                    self._log("sessions that BIRD had given up are enabled again", peers=given_up)
            self._problems.clear("bird")
        except (BirdError, ValueError) as error:
            self._problems.set("bird", error)

    async def _check(self, wanted: KernelState, found: KernelState | None, lent: frozenset[Address]) -> None:
        lan = self._config.lan.interface or self._lan_device
        names = ["net.ipv4.ip_forward", IPV6_FORWARDING, IPVS_REROUTE]
        for device in ("all", *([lan] if lan else [])):
            names += [f"net.ipv4.conf.{device}.rp_filter", f"net.ipv4.conf.{device}.src_valid_mark"]
        try:
            actual = found or replace(await self._read(wanted, lent), nft=await self._kernel.nft.read())
            sysctls = self._kernel.sysctls.read(names)
            ours = project.ours(self._config, self._state.base)
            foreign = await self._foreign.look(ours)
        except DataplaneError as error:
            self._preconditions = (Precondition("kernel", False, str(error)),)
            return
        base = self._state.base
        self._lan_device = next(
            (a.device for a in actual.addresses if a.cidr.split("/")[0] == self._config.lan.address), None
        )
        self._preconditions = (
            Precondition(TUNNEL_KNOWN, bool(base.tunnels), "" if base.tunnels else "no tunnel is known yet"),
            Precondition("marks", not self._without_room, self._without_room),
            check.forwarding(sysctls, project.speaks_ipv6(base)),
            check.tunnels(actual, wanted),
            check.routes(actual, wanted),
            check.rules(actual, wanted),
            check.in_place("nft", actual.nft, wanted.nft, "our nft rules"),
            check.foreign_marks(ours, actual.rules, foreign),
            *([check.ipvs_answers(sysctls)] if IPVS_REROUTE in sysctls else []),
            *([check.lan_reverse_path(sysctls, lan)] if lan else []),
            check.store_loss(base.on_store_loss, self._config.lease.ttl_ms),
            Precondition("lan-address", lan is not None, "" if lan else f"no interface has {self._config.lan.address}"),
            Precondition("bird", "bird" not in self._problems, self._problems.get("bird")),
        )

    _lan_device: str | None = None

    # ---- announcing ------------------------------------------------------------------------------------------------

    async def _announcement_doubtful(self) -> bool:
        """Whether BIRD has to be asked for all that it announces: what a thousand pools take must not be done idly."""
        if self._clock.now() >= self._read_back_s or self._answers() != self._reported_answers:
            return True
        try:
            return not await self._applier.undisturbed()
        except BirdError:
            return True

    async def _announce_all(self) -> None:
        while True:
            try:
                async with asyncio.timeout(TICK_S):
                    await self._announce_wake.wait()
            except TimeoutError:
                self.turns += 1
                continue
            self._announce_wake.clear()
            self.turns += 1
            if self._told and self._state.base.tunnels and not await self._announce():
                await self._clock.sleep(RETRY_S)
                self._announce_wake.set()

    async def _announce(self) -> bool:
        """Make BIRD announce what the store says, and report what it exports. False if it has to be tried again."""
        pools = dict(self._pools)
        try:
            applied = await self._applier.announce(project.announcements(pools))
        except (BirdError, ValueError) as error:
            self._report_pools(pools, None, str(error))
            return False
        self._announced = frozenset(pool.pool for pool in applied.pools if pool.announced)
        self._read_back_s = self._clock.now() + READ_BACK_EVERY_S
        self._report_pools(pools, applied, "")
        return True

    # ---- reporting -------------------------------------------------------------------------------------------------

    def _neighbours(self) -> set[str]:
        """Whom to reach on the cluster LAN."""
        return {*self._config.lan.targets, *self._state.base.lan_peers} - {self._config.lan.address}

    def _tell(self, key: str, value: object | None) -> None:
        if self.link is not None:
            self.link.reports.set(key, value)

    def readings(self) -> NodeReadings:
        """What is measured here, as of now."""
        names = {project.device_name(self._config, tunnel): tunnel.name for tunnel in self._state.base.tunnels}
        shaken = {names[device]: stamp for device, stamp in self._reviver.handshakes.items() if device in names}
        return NodeReadings(shaken, self._reviver.revived)

    def lacking(self) -> str:
        """What keeps this agent from doing its work, for /readyz; empty when nothing does."""
        return "; ".join(self._problems.told())

    def _report(self) -> None:
        reached = self._reach.reached()
        report = NodeReport(
            instance=self._instance,
            ready=bool(self._preconditions) and all(p.ok for p in self._preconditions),
            preconditions=self._preconditions,
            # 0 while nobody had time to answer: an agent that has just started must not seem to have lost its LAN.
            lan_targets=len(self._neighbours()) if self._reach.judged() else 0,
            lan_reached=len(reached),
            lan_answering=tuple(sorted(reached)[:NAMED_ON_LAN]),
            leaving=self._leaving,
            problems=self._problems.told(),
        )
        self._tell(self._keys.observed_base("node", self._config.name), report)

    def _answers(self) -> bool:
        """Whether answers find their way back, as far as it was checked."""
        needed = [p.ok for p in self._preconditions if p.name in ("answer-routes", "answer-rules", "nft")]
        return bool(needed) and all(needed)

    def _report_pools(self, pools: dict[str, NodePool], applied: Applied | None, error: str) -> None:
        exported = {pool.pool for pool in applied.pools if pool.announced} if applied else set()
        answers = self._reported_answers = self._answers()
        prepared = frozenset(project.prefixes(self._state.pools))
        for name, pool in pools.items():
            if name not in self._pools:
                continue  # it went while BIRD was at it, and its report with it
            known = prepared.issuperset(pool.prefixes)
            report = NodePoolReport(pool.epoch, name in exported, answers and known, error)
            self._tell(self._keys.observed("node", self._config.name, "pool", name), report)
