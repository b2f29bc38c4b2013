"""What the leader knows: the store's records as typed values, kept current by the mirror and by its own commits."""

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TypeVar, cast

from fsm.records import (
    AgentBase,
    AgentRecord,
    EdgeGatewaySpec,
    EdgePool,
    EdgePoolReport,
    EdgeReport,
    GatewayDrain,
    Identity,
    NodePool,
    NodePoolReport,
    NodeReport,
    PoolRecord,
    PoolSpec,
    Request,
)
from fsm.types import Heartbeat, PoolState
from fsm.witness import Sight, World
from orchestrator.leader.overlap import PrefixIndex
from orchestrator.store import keys as k
from orchestrator.store.port import Change
from orchestrator.store.records import (
    DRAIN_KIND,
    EDGE_GATEWAY_KIND,
    IDENTITY_KIND,
    POOL_KIND,
    RecordError,
    decode,
    type_of,
)

DesiredAt = tuple[str, str, str, str]
"""(role, agent, type, name); the base has empty type and name."""
V = TypeVar("V")


class Knowledge:
    """Typed copies of everything below the prefix. A value that can't be read is left out and listed in `problems`."""

    def __init__(self, keys: k.Keys, stale_after_s: float) -> None:
        self._keys = keys
        self._stale_after_s = stale_after_s
        self.specs: dict[tuple[str, str], object] = {}
        self.machines: dict[str, PoolRecord] = {}
        self.timed: dict[str, PoolRecord] = {}
        """Those of them that have a deadline or a back-off: few, and looked at all the time."""
        self.desired: dict[DesiredAt, object] = {}
        self.agents: dict[tuple[str, str], AgentRecord] = {}
        self.reports: dict[tuple[str, str], EdgeReport | NodeReport] = {}
        self.pool_reports: dict[tuple[str, str, str], EdgePoolReport | NodePoolReport] = {}
        self.requests: dict[str, Request] = {}
        self.epoch_counter = 0
        """0 as long as there is none."""
        self.highest_recorded = 0
        """The highest number that a pool's record was ever seen to hold, those of its plans included."""
        self.revisions: dict[str, int] = {}
        self.problems: dict[str, str] = {}
        self._of_kind: dict[str, Mapping[str, object]] = {}
        """Specs by kind and name, made when they are asked for; a kind that changed is made anew."""
        self._told: dict[str, dict[tuple[str, str], EdgePool | NodePool]] = {}
        """What the agents are told of each pool."""
        self._told_index: PrefixIndex | None = None
        self._deferred: dict[str, Change] = {}
        self._beat_s: dict[tuple[str, str], float] = {}
        self._fresh_since_s: dict[tuple[str, str], float] = {}

    # ---- feeding ---------------------------------------------------------------------------------------------------

    def defer(self, changes: Iterable[Change], now_s: float) -> None:
        """Keep changes for later, and only the last of each key: a follower has no use yet for what they say.

        Heartbeats count from when they come, so they are taken in at once. Histories are passed over, as in `apply`.
        """
        for change in changes:
            if change.key.startswith(self._keys.heartbeats_prefix):
                self.apply((change,), now_s)
            elif not change.key.startswith(self._keys.histories_prefix):
                self._deferred[change.key] = change

    @property
    def behind(self) -> bool:
        """Whether something was deferred and is not taken in yet."""
        return bool(self._deferred)

    def catch_up(self, now_s: float, most: int | None = None) -> set[str]:
        """Take in what was deferred, or the oldest of it; returns what it touched, as `apply` does."""
        if most is None or most >= len(self._deferred):
            taken, self._deferred = self._deferred, {}
        else:
            taken = {key: self._deferred.pop(key) for key in list(islice(self._deferred, most))}
        return self.apply(taken.values(), now_s)

    def apply(self, changes: Iterable[Change], now_s: float) -> set[str]:
        """Take changes in; returns what they touched.

        That is names of pools, 'base' for anything wider than one pool, and 'look' for what is only looked at.
        """
        touched: set[str] = set()
        for change in changes:
            if change.key.startswith(self._keys.histories_prefix):
                continue  # not asked for here; and each is a key of its own, without end
            if change.mod_revision <= self.revisions.get(change.key, 0):
                continue  # our own commit, known already
            self.revisions[change.key] = change.mod_revision
            try:
                key = self._keys.parse(change.key)
            except ValueError:
                continue
            if isinstance(key, k.HeartbeatKey):
                self._beat(key, change.value is not None, now_s)
                continue
            touched |= self._take(key, change)
        return touched

    def _beat(self, key: k.HeartbeatKey, alive: bool, now_s: float) -> None:
        who = (key.role, key.name)
        if not alive:
            self._beat_s.pop(who, None)
            return
        if now_s - self._beat_s.get(who, float("-inf")) >= self._stale_after_s:
            self._fresh_since_s[who] = now_s
        self._beat_s[who] = now_s

    def _take(self, key: k.Key, change: Change) -> set[str]:
        self.problems.pop(change.key, None)
        if isinstance(key, k.EpochCounterKey):
            self._count(change)
            return set()
        wanted = type_of(key)
        if wanted is None:
            return set()
        value: object | None = None
        if change.value is not None:
            try:
                value = decode(change.value, wanted, change.key)
                if isinstance(value, PoolRecord):
                    _known_state(value, change.key)
            except RecordError as error:
                value, self.problems[change.key] = None, str(error)
        return self._store(key, value)

    def _count(self, change: Change) -> None:
        """The counter; as long as it is no number it counts as absent, so that the guard lets nobody take one."""
        try:
            self.epoch_counter = int(change.value or b"0")
        except ValueError:
            self.epoch_counter = 0
            hint = "delete it, and the next number is above all that edges and records hold"
            self.problems[change.key] = f"{change.key}: not a number, and none is given: {hint}"

    def _store(self, key: k.Key, value: object | None) -> set[str]:
        match key:
            case k.SpecKey(kind, name):
                self._of_kind.pop(kind, None)
                return _put(self.specs, (kind, name), value, {"base"})
            case k.AgentKey(role, name):
                return _put(self.agents, (role, name), value, {"base"})
            case k.MachineKey("pool", name):
                if isinstance(value, PoolRecord):
                    held = (value.epoch, *(plan.epoch for plan in value.plan))
                    self.highest_recorded = max(self.highest_recorded, *held)
                timed = isinstance(value, PoolRecord) and (value.deadline_s is not None or value.backoff_ms)
                _put(self.timed, name, value if timed else None, set())
                return _put(self.machines, name, value, {name})
            case k.DesiredBaseKey(role, agent):
                return _put(self.desired, (role, agent, "", ""), value, {"base"})
            case k.DesiredKey(role, agent, type_, name):
                self._told_index = None
                told = self._told.setdefault(name, {})
                if isinstance(value, EdgePool | NodePool):
                    told[role, agent] = value
                else:
                    told.pop((role, agent), None)
                if not told:
                    del self._told[name]
                return _put(self.desired, (role, agent, type_, name), value, {name})
            case k.ObservedBaseKey(role, agent):
                return _put(self.reports, (role, agent), value, {"look"})
            case k.ObservedKey(role, agent, "pool", name):
                return _put(self.pool_reports, (role, agent, name), value, {name})
            case k.RequestKey(id_):
                return _put(self.requests, id_, value, {"base"})
        return set()

    def committed(self, key: str, value: object | None, revision: int) -> None:
        """One of our own writes is in etcd: know it at once, without waiting for the watch to bring it back.

        Unless the watch was faster, and has brought already what somebody wrote after it.
        """
        if revision < self.revisions.get(key, 0):
            return
        self.revisions[key] = revision
        parsed = self._keys.parse(key)
        if isinstance(parsed, k.EpochCounterKey):
            self.epoch_counter = value if isinstance(value, int) else self.epoch_counter
        else:
            self._store(parsed, value)

    # ---- asking ----------------------------------------------------------------------------------------------------

    def pool_specs(self) -> Mapping[str, PoolSpec]:
        """Accepted pools, those being deleted included."""
        return self._specs(POOL_KIND, PoolSpec)

    def groups(self) -> Mapping[str, EdgeGatewaySpec]:
        """Accepted edge gateways, those being deleted included."""
        return self._specs(EDGE_GATEWAY_KIND, EdgeGatewaySpec)

    def drains(self) -> Mapping[str, GatewayDrain]:
        """Gateways that an operator has drained."""
        return self._specs(DRAIN_KIND, GatewayDrain)

    def identities(self) -> dict[tuple[str, str], Identity]:
        """Every agent ever seen with a public key, by role and name."""
        return {(s.role, s.name): s for s in self._specs(IDENTITY_KIND, Identity).values()}

    def _specs(self, kind: str, type_: type[V]) -> Mapping[str, V]:
        """The specs of one kind, the same object until one of them changes."""
        found = self._of_kind.get(kind)
        if found is None:
            named = {n: spec for (k_, n), spec in self.specs.items() if k_ == kind and isinstance(spec, type_)}
            found = self._of_kind[kind] = MappingProxyType(named)
        return cast(Mapping[str, V], found)

    def sight(self, role: str, name: str, now_s: float) -> Sight:
        """How alive an agent looks. `now_s`: the last instant at which the mirror was known to be current."""
        who = (role, name)
        record, beat_s = self.agents.get(who), self._beat_s.get(who)
        if record is None or beat_s is None:
            return Sight(Heartbeat.EXPIRED, record=record)
        age_s = max(0.0, now_s - beat_s)
        state = Heartbeat.FRESH if age_s < self._stale_after_s else Heartbeat.STALE
        return Sight(state, age_s, self._fresh_since_s.get(who, 0.0), record)

    def world(self, now_s: float) -> World:
        """All observations, as the witness rules take them."""
        names: dict[str, set[str]] = {"edge": set(), "node": set()}
        for group in self.groups().values():
            names["edge"] |= {edge.name for edge in group.edges}
            names["node"] |= set(group.gateways)
        return World(
            edges={name: self.sight("edge", name, now_s) for name in names["edge"]},
            nodes={name: self.sight("node", name, now_s) for name in names["node"]},
            edge_reports={n: r for (_, n), r in self.reports.items() if isinstance(r, EdgeReport)},
            node_reports={n: r for (_, n), r in self.reports.items() if isinstance(r, NodeReport)},
            drains=self.drains(),
        )

    def stale_share(self, now_s: float) -> tuple[int, int]:
        """(agents that look stale, agents that are registered)."""
        states = [self.sight(role, name, now_s).heartbeat for role, name in self.agents if role != "orchestrator"]
        return sum(state is not Heartbeat.FRESH for state in states), len(states)

    def pool_desired(self, pool: str) -> Mapping[tuple[str, str], EdgePool | NodePool]:
        """What the agents are told of a pool now."""
        return self._told.get(pool, {})

    def orders(self, pool: str, edges: Iterable[str]) -> dict[str, tuple[EdgePool, int]]:
        """What these edges are told of a pool, and the revision at which that was written."""
        told = self.pool_desired(pool)
        return {
            edge: (command, self.revisions.get(self._keys.desired("edge", edge, "pool", pool), 0))
            for edge in edges
            if isinstance(command := told.get(("edge", edge)), EdgePool)
        }

    def edge_pools(self, pool: str, edges: Iterable[str]) -> dict[str, EdgePoolReport]:
        """What these edges report of a pool."""
        found = {edge: self.pool_reports.get(("edge", edge, pool)) for edge in edges}
        return {edge: report for edge, report in found.items() if isinstance(report, EdgePoolReport)}

    def node_pools(self, pool: str, gateways: Iterable[str]) -> dict[str, NodePoolReport]:
        """What these gateways report of a pool."""
        found = {gateway: self.pool_reports.get(("node", gateway, pool)) for gateway in gateways}
        return {gateway: report for gateway, report in found.items() if isinstance(report, NodePoolReport)}

    def told_prefixes(self) -> PrefixIndex:
        """Prefixes that edges are told of now, with the pools that they are told of for them."""
        if self._told_index is None:
            prefixes: dict[str, set[str]] = {}
            for pool, told in self._told.items():
                for value in told.values():
                    for prefix in value.prefixes if isinstance(value, EdgePool) else ():
                        prefixes.setdefault(prefix, set()).add(pool)
            self._told_index = PrefixIndex(prefixes)
        return self._told_index

    def bases(self) -> dict[tuple[str, str], AgentBase]:
        """What the agents are told apart from pools now."""
        return {(role, agent): v for (role, agent, _, _), v in self.desired.items() if isinstance(v, AgentBase)}


def _known_state(record: PoolRecord, key: str) -> None:
    """Raises RecordError for a state that the table does not have, as a newer version may write one."""
    for state in (record.state, record.held_from or record.state):
        if state not in PoolState.__members__.values():
            raise RecordError(key, f"not a PoolRecord: the state {state!r} is unknown here; update bgplb")


def _put(into: dict, key: object, value: object | None, touched: set[str]) -> set[str]:  # type: ignore[type-arg]
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value
    return touched
