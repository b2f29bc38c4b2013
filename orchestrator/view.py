"""What is shown of the store: pure functions from its keys to the JSON of `fsm dump` and `status`, schema 1.

The same functions serve the command line, which reads etcd, and the admin sockets, which know their mirror. A record
that cannot be read is left out and named under `problems`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from fsm.records import (
    AgentRecord,
    EdgeGatewaySpec,
    EdgeReport,
    GatewayDrain,
    HistoryEntry,
    NodeReport,
    PoolRecord,
    PoolSpec,
)
from fsm.types import PROFILES, Heartbeat
from fsm.witness import GatewayView, Sight, World, view_gateway
from orchestrator.listing import few
from orchestrator.store.generation import Meta
from orchestrator.store.keys import AgentKey, HeartbeatKey, Keys
from orchestrator.store.port import KeyValue
from orchestrator.store.records import DRAIN_KIND, EDGE_GATEWAY_KIND, POOL_KIND, RecordError, decode

SCHEMA = 1

Json = dict[str, Any]
Beats = Mapping[tuple[str, str], Heartbeat]
"""How alive each agent is, by (role, name)."""

T = TypeVar("T")


@dataclass(slots=True)
class Reader:
    """Reads records out of the keys of the store and remembers what was wrong with some of them."""

    items: Mapping[str, KeyValue]
    keys: Keys
    problems: list[str] = field(default_factory=list)

    def all(self, prefix: str, type_: type[T]) -> dict[str, T]:
        """All records below a prefix, by the rest of their key, in its order."""
        found: dict[str, T] = {}
        for key in sorted(key for key in self.items if key.startswith(prefix)):
            record = self.one(key, type_)
            if record is not None:
                found[key[len(prefix) :]] = record
        return found

    def one(self, key: str, type_: type[T]) -> T | None:
        """The record of one key; None where there is none, or none that can be read."""
        kv = self.items.get(key)
        if kv is None:
            return None
        try:
            return decode(kv.value, type_, key)
        except RecordError as error:
            self.problems.append(str(error))
            return None

    def agents(self, role: str) -> dict[str, AgentRecord]:
        """The agents of a role that have registered, by name."""
        return self.all(f"{self.keys.agents_prefix}{role}/", AgentRecord)

    def specs(self, kind: str, type_: type[T]) -> dict[str, T]:
        """The accepted intent of a kind, by name."""
        return self.all(f"{self.keys.specs_prefix}{kind}/", type_)

    def reports(self, role: str, type_: type[T], names: Iterable[str]) -> dict[str, T]:
        """What the agents of these names report."""
        found = ((name, self.one(self.keys.observed_base(role, name), type_)) for name in names)
        return {name: report for name, report in found if report is not None}


def beats(earlier: Mapping[str, KeyValue], later: Mapping[str, KeyValue], keys: Keys) -> Beats:
    """How alive agents are, from two looks at the store that lie the stale time apart.

    An agent whose heartbeat was written in between is fresh, one whose heartbeat was not is stale, and one that has
    none is expired. Only the store's revisions count: no clock of another host does.
    """
    found: dict[tuple[str, str], Heartbeat] = {}
    for key in later:
        if not key.startswith((keys.agents_prefix, keys.heartbeats_prefix)):
            continue
        parsed = keys.parse(key)
        if isinstance(parsed, AgentKey):
            found.setdefault((parsed.role, parsed.name), Heartbeat.EXPIRED)
        elif isinstance(parsed, HeartbeatKey):
            before = earlier.get(key)
            written = before is None or before.mod_revision != later[key].mod_revision
            found[parsed.role, parsed.name] = Heartbeat.FRESH if written else Heartbeat.STALE
    return found


def dump(
    items: Mapping[str, KeyValue], keys: Keys, *, revision: int, age_ms: int, history: int = 0, pool: str | None = None
) -> Json:
    """Every machine as it stands, with its newest `history` transitions, oldest first.

    `revision` is the store's, `age_ms` how long ago that was known to be current; `pool` picks one machine.
    """
    reader = Reader(items, keys)
    prefix = f"{keys.machines_prefix}pool/"
    records = {name: r for name, r in reader.all(prefix, PoolRecord).items() if pool is None or name == pool}
    machines = [{**machine(record), "history": _history(reader, record, history)} for record in records.values()]
    found: Json = {"schema": SCHEMA, "revision": revision, "age_ms": age_ms, "machines": machines}
    if reader.problems:
        found["problems"] = reader.problems
    return found


def machine(record: PoolRecord) -> Json:
    """One machine without its history. `deadline` is in seconds on the clock of `leader`, comparable with no other."""
    return {
        "type": "pool",
        "name": record.name,
        "state": record.state,
        "owner": record.owner,
        "target": record.target,
        "standby": record.standby,
        "epoch": record.epoch,
        "plan": [asdict(plan) for plan in record.plan],
        "superseded": superseded(record),
        "since": iso(record.since_ms),
        "deadline": record.deadline_s,
        "leader": record.leader,
        "cause": record.cause,
        "evidence": dict(record.evidence),
        "conditions": [asdict(condition) for condition in record.conditions],
        "edges": edges_of(record),
    }


def edges_of(record: PoolRecord) -> Json:
    """What each edge has acknowledged of a pool: installed, withdrawn, pending, removed, or unknown."""
    return {
        name: {"epoch": view.epoch, "owner": view.owner, "phase": view.phase}
        for name, view in sorted(record.edges.items())
    }


def _history(reader: Reader, record: PoolRecord, limit: int) -> list[Json]:
    """The ring is written in order of `seq`, so its newest entries are found without a look at all keys."""
    entries: list[Json] = []
    seq = record.seq
    while seq >= 0 and len(entries) < limit:
        key = reader.keys.history("pool", record.name, seq)
        seq -= 1
        if key not in reader.items:
            if seq < record.seq - 1:
                break
            continue
        entry = reader.one(key, HistoryEntry)
        if entry is not None:
            entries.append(history_entry(entry, reader.items[key].mod_revision))
    return entries[::-1]


def history_entry(entry: HistoryEntry, revision: int) -> Json:
    """One transition; `revision` is the one at which etcd took it, read back from the key."""
    return {
        "seq": entry.seq,
        "from": entry.from_state,
        "to": entry.to_state,
        "event": entry.event,
        "cause": entry.cause,
        "evidence": dict(entry.evidence),
        "epoch": entry.epoch,
        "owner": entry.owner,
        "target": entry.target,
        "at": iso(entry.at_ms),
        "revision": revision,
        "phases_ms": dict(entry.phases_ms),
    }


def status(
    items: Mapping[str, KeyValue],
    keys: Keys,
    alive: Beats,
    *,
    revision: int,
    age_ms: int,
    problems: Iterable[str] = (),
) -> Json:
    """Pools, gateways and edges in short, as an operator wants them first.

    `problems` are those that the store does not know, such as manifests that the leader refuses.
    """
    reader = Reader(items, keys, list(problems))
    groups = reader.specs(EDGE_GATEWAY_KIND, EdgeGatewaySpec)
    specs = reader.specs(POOL_KIND, PoolSpec)
    records = reader.all(f"{keys.machines_prefix}pool/", PoolRecord)
    world = _world(reader, groups, alive)
    found: Json = {
        "schema": SCHEMA,
        "store": {"revision": revision, "age_ms": age_ms, "generation": _generation(reader)},
        "leader": _leader(reader),
        "pools": [_pool(record, specs.get(name), groups) for name, record in records.items()],
        "gateways": [
            _gateway(view_gateway(name, group, world), group, world, records)
            for group in groups.values()
            for name in sorted(group.gateways)
        ],
        "edges": [
            _edge(edge.name, group, world)
            for group in groups.values()
            for edge in sorted(group.edges, key=lambda e: e.name)
        ],
    }
    for role in ("orchestrator", "edge", "node"):
        refusing = ((name, agent.refuses) for name, agent in reader.agents(role).items() if agent.refuses)
        reader.problems += [f"{role} {name} does not obey this store: {why}" for name, why in refusing]
    waiting = sorted(set(specs) - set(records))
    if waiting:
        reader.problems.append(f"accepted and not yet taken up by a leader: pool {few(waiting)}")
    if reader.problems:
        found["problems"] = reader.problems
    return found


def _world(reader: Reader, groups: Mapping[str, EdgeGatewaySpec], alive: Beats) -> World:
    edges, nodes = reader.agents("edge"), reader.agents("node")
    edge_names = {edge.name for group in groups.values() for edge in group.edges}
    node_names = {name for group in groups.values() for name in group.gateways}

    def sights(role: str, names: Iterable[str], agents: Mapping[str, AgentRecord]) -> dict[str, Sight]:
        return {
            name: Sight(heartbeat=alive.get((role, name), Heartbeat.EXPIRED), record=agents.get(name)) for name in names
        }

    return World(
        edges=sights("edge", edge_names, edges),
        nodes=sights("node", node_names, nodes),
        edge_reports=reader.reports("edge", EdgeReport, sorted(edge_names)),
        node_reports=reader.reports("node", NodeReport, sorted(node_names)),
        drains=reader.specs(DRAIN_KIND, GatewayDrain),
    )


def _pool(record: PoolRecord, spec: PoolSpec | None, groups: Mapping[str, EdgeGatewaySpec]) -> Json:
    group = groups.get(spec.gateway_ref) if spec is not None else None
    return {
        "name": record.name,
        "state": record.state,
        "owner": record.owner,
        "target": record.target,
        "standby": record.standby,
        "epoch": record.epoch,
        "since": iso(record.since_ms),
        "cause": record.cause,
        "prefixes": list(spec.addresses) if spec is not None else [],
        "conditions": [asdict(condition) for condition in record.conditions],
        "edges": edges_of(record),
        "last_move": last_move(record, group),
        "superseded": superseded(record),
    }


def last_move(record: PoolRecord, group: EdgeGatewaySpec | None) -> Json | None:
    """The last move, with the outage as far as the probes can tell it: plus or minus one probe interval."""
    if not record.last_move:
        return None
    move: Json = dict(record.last_move)
    if "outage_estimate_ms" in move:
        profile = PROFILES.get(group.profile if group is not None else "")
        move["outage_estimate_plus_minus_ms"] = profile.probe_interval_ms if profile is not None else None
    return move


def superseded(record: PoolRecord) -> Json | None:
    """The last plan that an edge carried out while the record was beyond it already; None if there never was one."""
    if not record.superseded:
        return None
    found: Json = dict(record.superseded)
    found["at"] = iso(found.pop("at_ms", 0))
    return found


def _gateway(view: GatewayView, group: EdgeGatewaySpec, world: World, records: Mapping[str, PoolRecord]) -> Json:
    return {
        "name": view.name,
        "group": group.name,
        "agent": str(world.nodes[view.name].heartbeat),
        "ready": view.ready,
        "not_ready": list(view.not_ready),
        "session": view.evidence.get("session", "unseen"),
        "probe": view.evidence.get("probe", "unseen"),
        "judgement": str(view.judgement),
        "edges": {edge: str(word) for edge, word in view.by_edge.items()},
        "evidence": dict(view.evidence),
        "drained": view.drained,
        "leaving": view.leaving,
        "carries": sorted(name for name, record in records.items() if record.owner == view.name),
    }


def _edge(name: str, group: EdgeGatewaySpec, world: World) -> Json:
    report = world.edge_reports.get(name)
    found: Json = {
        "name": name,
        "group": group.name,
        "agent": str(world.edges[name].heartbeat),
        "bird": report.bird if report is not None else "unseen",
        "highest_epoch": report.highest_epoch if report is not None else None,
        "gateways": {},
        "problems": list(report.problems) if report is not None else ["no report from its agent"],
    }
    if report is not None:
        for gateway, witness in sorted(report.gateways.items()):
            found["gateways"][gateway] = asdict(witness)
    return found


def _generation(reader: Reader) -> str | None:
    meta = reader.one(reader.keys.meta, Meta)
    return meta.generation if meta is not None else None


def _leader(reader: Reader) -> Json | None:
    leader = reader.one(reader.keys.leader, dict)
    return {"name": leader.get("name"), "since": leader.get("since")} if leader is not None else None


def iso(wall_ms: int) -> str | None:
    """Unix milliseconds as RFC 3339 in UTC; None for 0, which means that nobody noted it."""
    if not wall_ms:
        return None
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
