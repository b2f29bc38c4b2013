"""Replicas with the real loop on a fake store, and agents of paper that obey through that store alone.

Nothing runs by itself: `World.round` lets agents and replicas take turns, `World.tick` passes time. A replica's mirror
is the server's log, fed to it in one go before each turn, so that every run of a test is the same run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fsm.fence import FenceState, Refused, accept, execute, forget
from fsm.records import (
    TUNNEL_KNOWN,
    AgentBase,
    AgentRecord,
    EdgeGatewaySpec,
    EdgePool,
    EdgePoolReport,
    EdgeReport,
    EdgeSpec,
    GatewayWitness,
    HistoryEntry,
    NodePool,
    NodePoolReport,
    NodeReport,
    PoolRecord,
    PoolSpec,
    Precondition,
    Request,
)
from fsm.types import PROBE_UNFIT_AFTER
from orchestrator.config.intent import Intent
from orchestrator.leader.interpret import Interpreter
from orchestrator.leader.knowledge import Knowledge
from orchestrator.leader.loop import LeaderLoop
from orchestrator.store.keys import Keys
from orchestrator.store.port import CreatedAt, Delete, DeletePrefix, Guard, Op, Put
from orchestrator.store.records import decode, encode
from tests.contract.store.fake import FakeEtcd, FakeStore

KEYS = Keys()
STALE_S = 1.0
SETTLE_S = 2.5
"""Fifty answered probes, 50 ms apart."""


class ManualClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        assert seconds == 0, "nothing in these tests may wait"


def group(*gateways: str, edges: tuple[str, ...] = ("edge-1",), **fields: Any) -> EdgeGatewaySpec:
    """An edge gateway as a manifest gives it: without slots."""
    specs = tuple(EdgeSpec(name, f"203.0.113.{n}", 64512) for n, name in enumerate(edges, 1))
    return EdgeGatewaySpec("group", specs, gateways or ("gw-a", "gw-b"), 64513, **fields)


def pool(name: str, prefix: str, **fields: Any) -> PoolSpec:
    return PoolSpec(name, "192.0.2.0/24", (prefix,), "group", **fields)


WEB = pool("web", "192.0.2.0/26")
MAIL = pool("mail", "192.0.2.64/26")


class Replica:
    """One orchestrator's loop. `create_revision` is what it believes its leader key was created at."""

    def __init__(self, world: "World", name: str, store: FakeStore | None = None) -> None:
        self.world, self.name = world, name
        self.store = store or world.server.client()
        self.leading, self.create_revision, self.seen = False, 0, 0
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.silent_since_s: float | None = None
        """From when on the store brings nothing to this replica's mirror."""
        self.known = Knowledge(KEYS, STALE_S)
        self.loop = LeaderLoop(
            name=name,
            keys=KEYS,
            clock=world.clock,
            wall_ms=lambda: int(world.clock.now() * 1000),
            knowledge=self.known,
            interpreter=Interpreter(self.store, KEYS),
            leads=lambda: self.leading,
            term=lambda: self.create_revision,
            guard=self._guard,
            mirror_age_s=lambda now: 0.0 if self.silent_since_s is None else now - self.silent_since_s,
            log=lambda event, **fields: self.said.append((event, fields)),
        )

    def _guard(self) -> Guard:
        return CreatedAt(KEYS.leader, self.create_revision or -1)

    def sync(self) -> None:
        """What the mirror would bring by now."""
        for revision, changes in list(self.world.server.log):
            if revision > self.seen:
                self.seen = revision
                self.loop.on_changes(changes)

    async def turn(self) -> bool:
        self.sync()
        self.loop.wake()
        return await self.loop.turn()

    def offer(self, *specs: PoolSpec | EdgeGatewaySpec) -> None:
        """The folder holds these."""
        pools = tuple(s for s in specs if isinstance(s, PoolSpec))
        groups = tuple(s for s in specs if isinstance(s, EdgeGatewaySpec))
        self.loop.intent.offer(Intent(pools, groups))


@dataclass
class Gateway:
    """A gateway: what works of it. Its agent obeys unless `obedient` is False."""

    name: str
    powered: bool = True
    path: bool = True
    obedient: bool = True
    leaving: bool = False
    tunnels: int = 0
    good_since_s: float = 0.0
    announcing: set[str] = field(default_factory=set)


@dataclass
class Edge:
    """An edge with the real fence. `points_at` is its kernel."""

    name: str
    reachable: bool = True
    autonomous: bool = False
    """It carries out plans by itself, whether the store is there or not."""
    cut_off: set[str] = field(default_factory=set)
    """Gateways to which its own link is cut."""
    fence: FenceState = field(default_factory=FenceState)
    points_at: dict[str, str | None] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


class World:
    """The store, its agents and its replicas."""

    def __init__(
        self,
        gateways: tuple[str, ...] = ("gw-a", "gw-b"),
        edges: tuple[str, ...] = ("edge-1",),
        clock: Any = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.server = FakeEtcd(self.clock)
        self.gateways = {name: Gateway(name, good_since_s=self.clock.now() - SETTLE_S) for name in gateways}
        self.edges = {name: Edge(name) for name in edges}
        self._beats = 0
        self._requests = 0
        for name in gateways:
            self.put(KEYS.agent("node", name), AgentRecord(name, "node", f"i-{name}", "1", f"key-{name}", "10.10.0.1"))
        for name in edges:
            self.put(KEYS.agent("edge", name), AgentRecord(name, "edge", f"i-{name}", "1", f"key-{name}"))

    # ---- the store -------------------------------------------------------------------------------------------------

    def put(self, key: str, value: object) -> None:
        """Write unless it is there already, as agents do."""
        data, before = encode(value), self.server.items.get(key)
        if before is None or before.value != data:
            self.server.commit([Put(key, data)])

    def present(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.server.items if key.startswith(KEYS.prefix + prefix))

    def read(self, key: str, type_: type[Any]) -> Any:
        kv = self.server.items.get(key)
        return None if kv is None else decode(kv.value, type_, key)

    def machine(self, name: str = "web") -> PoolRecord:
        record = self.read(KEYS.machine("pool", name), PoolRecord)
        assert isinstance(record, PoolRecord), f"no machine {name}; there are {self.present('machines')}"
        return record

    def state(self, name: str = "web") -> tuple[str, str | None]:
        record = self.machine(name)
        return record.state, record.owner

    def history(self, name: str = "web") -> list[HistoryEntry]:
        prefix = KEYS.history_prefix("pool", name)
        return [self.read(key, HistoryEntry) for key in sorted(self.server.items) if key.startswith(prefix)]

    def epochs_given(self) -> list[int]:
        """Every value that the counter ever had, in order."""
        log = (change for _, changes in self.server.log for change in changes)
        return [int(c.value) for c in log if c.key == KEYS.epoch_counter and c.value is not None]

    # ---- leadership ------------------------------------------------------------------------------------------------

    def elect(self, replica: Replica) -> Replica:
        """This one holds the leader key from now on. Whoever led before is not told."""
        ops: list[Op] = [Delete(KEYS.leader)] if KEYS.leader in self.server.items else []
        if ops:
            self.server.commit(ops)
        self.server.commit([Put(KEYS.leader, replica.name.encode())])
        replica.leading = True
        replica.create_revision = self.server.items[KEYS.leader].create_revision
        return replica

    def leader(self, name: str = "orchestrator-1", store: FakeStore | None = None) -> Replica:
        """A new replica that leads at once."""
        return self.elect(Replica(self, name, store))

    # ---- requests --------------------------------------------------------------------------------------------------

    def ask(self, verb: str, subject: str, target: str | None = None, reason: str = "", by: str = "") -> str:
        """Put a request, as the command line does; its id."""
        self._requests += 1
        name = f"request-{self._requests}"
        at_ms = int(self.clock.now() * 1000) + self._requests
        self.put(KEYS.request(name), Request(name, verb, subject, target, reason, by, at_ms=at_ms))
        return name

    def answer(self, name: str) -> Request:
        request = self.read(KEYS.request(name), Request)
        assert isinstance(request, Request)
        return request

    # ---- agents ----------------------------------------------------------------------------------------------------

    def obey(self) -> None:
        """Every agent that lives beats, does what it is told and reports."""
        self._beats += 1
        for gateway in self.gateways.values():
            if gateway.powered:
                self.put(KEYS.heartbeat("node", gateway.name), {"seq": self._beats})
                self._report_node(gateway)
                if gateway.obedient:
                    self._obey_node(gateway)
        self.act_by_plan()
        for edge in self.edges.values():
            if edge.reachable:
                self.put(KEYS.heartbeat("edge", edge.name), {"seq": self._beats})
                self._obey_edge(edge)

    def _report_node(self, gateway: Gateway) -> None:
        """Its tunnels are those that it was told last; a key that is gone says nothing."""
        base = self.read(KEYS.desired_base("node", gateway.name), AgentBase)
        gateway.tunnels = gateway.tunnels if base is None else len(base.tunnels)
        known = Precondition(TUNNEL_KNOWN, gateway.tunnels > 0)
        report = NodeReport(f"i-{gateway.name}", True, (known,), 1, 1, gateway.leaving)
        self.put(KEYS.observed_base("node", gateway.name), report)

    def _desired(self, role: str, name: str) -> Iterable[tuple[str, str]]:
        prefix = f"{KEYS.desired_prefix(role, name)}pool/"
        return [(key, key.removeprefix(prefix)) for key in sorted(self.server.items) if key.startswith(prefix)]

    def _obey_node(self, gateway: Gateway) -> None:
        told = {name: key for key, name in self._desired("node", gateway.name)}
        gateway.announcing = {n for n, key in told.items() if self.read(key, NodePool).announce}
        for name, key in told.items():
            command = self.read(key, NodePool)
            report = NodePoolReport(command.epoch, command.announce, True)
            self.put(KEYS.observed("node", gateway.name, "pool", name), report)
        self._drop_reports("node", gateway.name, told)

    def act_by_plan(self) -> None:
        """Every autonomous edge that sees an owner dead carries out the plan, and reports when it can."""
        for edge in (edge for edge in self.edges.values() if edge.autonomous):
            for name, accepted in list(edge.fence.pools.items()):
                command = accepted.command
                plan = next((plan for plan in command.plan if plan.base == command.epoch), None)
                owner = self.gateways.get(command.owner or "")
                if plan is None or owner is None or owner.powered or not self.gateways[plan.target].powered:
                    continue
                edge.fence, edge.points_at[name] = execute(edge.fence, name), plan.target

    def _drop_reports(self, role: str, agent: str, told: Iterable[str]) -> None:
        prefix = f"{KEYS.observed_prefix(role, agent)}pool/"
        for key in [k for k in self.server.items if k.startswith(prefix) and k.removeprefix(prefix) not in set(told)]:
            self.server.commit([Delete(key)])

    def _obey_edge(self, edge: Edge) -> None:
        witnesses = {g.name: self._witness(g, g.name in edge.cut_off) for g in self.gateways.values()}
        base = self.read(KEYS.desired_base("edge", edge.name), AgentBase)
        if base is not None:
            seen = {tunnel.name: witnesses[tunnel.name] for tunnel in base.tunnels if tunnel.name in witnesses}
            report = EdgeReport(f"i-{edge.name}", seen, "up", edge.fence.highest_epoch)
            self.put(KEYS.observed_base("edge", edge.name), report)
        told = {name: key for key, name in self._desired("edge", edge.name)}
        for name, key in told.items():
            self._command(edge, name, key)
        for name in [n for n, a in edge.fence.pools.items() if n not in told and a.command.deleted]:
            edge.fence = forget(edge.fence, name)
        self._drop_reports("edge", edge.name, edge.fence.pools)

    def _command(self, edge: Edge, name: str, key: str) -> None:
        command: EdgePool = self.read(key, EdgePool)
        after = accept(edge.fence, name, command, self.server.items[key].mod_revision)
        if isinstance(after, Refused) and not after.stale:
            edge.refusals.append(after.reason)
            return
        if not isinstance(after, Refused):
            edge.fence, edge.points_at[name] = after, command.owner
        accepted = edge.fence.pools[name]
        command = accepted.command
        heard = tuple(g.name for g in self.gateways.values() if g.powered and name in g.announcing)
        report = EdgePoolReport(
            command.epoch,
            command.owner,
            withdrawn=True,
            installed=not command.deleted,
            removed=command.deleted,
            announced_by=heard,
            executed_plan=command.epoch if accepted.executed else None,
            revision=accepted.mod_revision,
            carried_out=accepted.carried_out,
        )
        self.put(KEYS.observed("edge", edge.name, "pool", name), report)

    def _witness(self, gateway: Gateway, cut_off: bool) -> GatewayWitness:
        if cut_off:
            return GatewayWitness("down", "failing", PROBE_UNFIT_AFTER)
        passes = gateway.powered and gateway.path
        settled = passes and self.clock.now() >= gateway.good_since_s + SETTLE_S
        missed = 0 if passes else PROBE_UNFIT_AFTER
        return GatewayWitness(
            "up" if gateway.powered else "down", "passing" if passes else "failing", missed, settled, "passing"
        )

    # ---- time ------------------------------------------------------------------------------------------------------

    async def round(self, *replicas: Replica, ticks: int = 1, step_s: float = 0.25) -> None:
        """Agents and replicas take turns until nothing is written any more, then time passes; as often as asked."""
        for tick in range(ticks):
            for _ in range(40):
                before = self.server.revision
                self.obey()
                beaten = self.server.revision
                for replica in replicas:
                    if replica.leading:
                        await replica.turn()
                    else:
                        replica.sync()
                if self.server.revision == beaten and self._only_beats(before):
                    break
            else:
                raise AssertionError(f"never quiet: {[changes for _, changes in self.server.log[-6:]]}")
            if tick + 1 < ticks:
                self.clock.seconds += step_s

    def _only_beats(self, since: int) -> bool:
        keys = [c.key for revision, changes in self.server.log if revision > since for c in changes]
        return all(key.startswith(KEYS.heartbeats_prefix) for key in keys)

    def power_cut(self, name: str) -> None:
        gateway = self.gateways[name]
        gateway.powered, gateway.announcing = False, set()

    def expire(self, role: str, name: str) -> None:
        """The agent's lease ends."""
        observed = f"{KEYS.observed_prefix(role, name)}"
        self.server.commit([Delete(KEYS.agent(role, name)), Delete(KEYS.heartbeat(role, name)), DeletePrefix(observed)])

    def power_on(self, name: str) -> None:
        self.gateways[name] = Gateway(name, good_since_s=self.clock.now())
        self.put(KEYS.agent("node", name), AgentRecord(name, "node", f"i-{name}", "1", f"key-{name}", "10.10.0.1"))


async def settled(*specs: PoolSpec | EdgeGatewaySpec, world: World | None = None) -> tuple[World, Replica]:
    """A world at rest whose folder holds these, by default one pool."""
    world = world or World()
    leader = world.leader()
    leader.offer(*(specs or (group(), WEB)))
    await world.round(leader, ticks=8)
    return world, leader


def other(owner: str | None) -> str:
    """The gateway that is not the owner, of two."""
    return "gw-b" if owner == "gw-a" else "gw-a"


def replaced(record: PoolRecord, change: Callable[[PoolRecord], PoolRecord] | None = None, **fields: Any) -> PoolRecord:
    """A record with other fields."""
    return replace(record, **fields) if change is None else change(record)
