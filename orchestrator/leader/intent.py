"""From a folder's intent to accepted specs: what is new, what changed, what may be deleted."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from fsm.desired import MAX_EDGES, MAX_GATEWAYS, allocate, needs_ipv6
from fsm.records import TUNNEL_KNOWN, AgentBase, EdgeGatewaySpec, EdgeReport, Identity, NodeReport, PoolSpec
from fsm.types import PoolState
from orchestrator.config.intent import Intent
from orchestrator.leader.knowledge import Knowledge
from orchestrator.leader.overlap import PrefixIndex
from orchestrator.leader.writes import DropSpec, SetSpec, Write
from orchestrator.listing import few
from orchestrator.store.records import DRAIN_KIND, EDGE_GATEWAY_KIND, IDENTITY_KIND, POOL_KIND

Named = tuple[str, str]
"""(kind, name)"""


class IntentKeeper:
    """Compares intent with what was accepted.

    An object is deleted only if this leader itself saw it in the folder and then saw it go: a folder that is empty,
    unreadable or half-written deletes nothing, and a new leader whose folder lacks something reports it as missing.
    """

    def __init__(self) -> None:
        self._intent: Intent | None = None
        self._seen: set[Named] = set()
        self._gone: set[Named] = set()
        self._asked: tuple[object, object, tuple[Named, ...]] | None = None
        self.problems: tuple[str, ...] = ()

    def offer(self, intent: Intent) -> None:
        """A new reading of the folder. One with problems leaves the last good one in force."""
        self._asked = None
        self.problems = tuple(str(problem) for problem in intent.problems)
        if not intent.ok:
            return
        present = {(POOL_KIND, p.name) for p in intent.pools}
        present |= {(EDGE_GATEWAY_KIND, g.name) for g in intent.edge_gateways}
        self._gone = (self._gone | (self._seen - present)) - present
        self._seen |= present
        self._intent = intent

    def forget(self) -> None:
        """Leadership begins or ends: what went before or meanwhile is not this leader's to delete."""
        self._seen = self._present()
        self._gone.clear()
        self._asked = None

    @property
    def readable(self) -> bool:
        """Whether the last reading of the folder was a good one."""
        return self._intent is not None and not self.problems

    def prune(self, known: Knowledge) -> tuple[SetSpec, ...]:
        """An operator's order: what the folder lacks is to go."""
        pools, groups = known.pool_specs(), known.groups()
        writes: list[SetSpec] = []
        for kind, name in self.missing(known):
            spec: PoolSpec | EdgeGatewaySpec = pools[name] if kind == POOL_KIND else groups[name]
            writes.append(SetSpec(kind, name, replace(spec, deleted=True)))
        return tuple(writes)

    def conflicts(self, known: Knowledge) -> tuple[str, ...]:
        """What the intent asks for and can't be done as it is, or not yet."""
        pools = self._intent.pools if self._intent else ()
        refused = [
            f"{POOL_KIND}/{pool.name}: spec.gatewayRef: value {pool.gateway_ref!r}: a pool that lives stays with "
            f"{known.pool_specs()[pool.name].gateway_ref!r}; delete it first, or name the new one otherwise"
            for pool in pools
            if _moves_house(pool, known)
        ]
        waiting = self._waiting(pools, known).items()
        return (
            *refused,
            *(f"{POOL_KIND}/{name}: spec.addresses: as before until {few(others)} is gone" for name, others in waiting),
        )

    def _waiting(self, pools: Iterable[PoolSpec], known: Knowledge) -> dict[str, set[str]]:
        """Pools that live and are to get a prefix of others that are going: with the names of those.

        Until nothing is left of these at the edges, one prefix would be in two commands, and the one that takes it away
        may have the higher number.
        """
        accepted = known.pool_specs()
        going: dict[str, set[str]] = {}
        for name in known.machines:
            spec = accepted.get(name)
            if spec is not None and (spec.deleted or (POOL_KIND, name) in self._gone):
                for prefix in spec.addresses:
                    going.setdefault(prefix, set()).add(name)
        index = PrefixIndex(going)
        found: dict[str, set[str]] = {}
        for pool in pools if going else ():
            before = accepted.get(pool.name)
            if before is not None and pool.name in known.machines:
                new = (index.pools(prefix) for prefix in set(pool.addresses) - set(before.addresses))
                found[pool.name] = set().union(*new) - {pool.name}
        return {name: others for name, others in found.items() if others}

    def missing(self, known: Knowledge) -> tuple[Named, ...]:
        """Accepted objects that the folder lacks and that nobody saw go."""
        if self._intent is None:
            return ()
        pools, groups, asked = known.pool_specs(), known.groups(), self._asked
        if asked is None or asked[0] is not pools or asked[1] is not groups:
            accepted: list[Named] = [(POOL_KIND, n) for n, s in pools.items() if not s.deleted]
            accepted += [(EDGE_GATEWAY_KIND, n) for n, s in groups.items() if not s.deleted]
            lacking = tuple(sorted(set(accepted) - self._present() - self._gone))
            asked = self._asked = (pools, groups, lacking)  # asked at every turn: the same until one of them changes
        return asked[2]

    def _present(self) -> set[Named]:
        if self._intent is None:
            return set()
        pools = {(POOL_KIND, p.name) for p in self._intent.pools}
        return pools | {(EDGE_GATEWAY_KIND, g.name) for g in self._intent.edge_gateways}

    def writes(self, known: Knowledge) -> tuple[Write, ...]:
        """What has to be written for the accepted specs to be the intent."""
        if self._intent is None:
            return ()
        wanted: list[Write] = []
        groups, pools = known.groups(), known.pool_specs()
        for group in self._intent.edge_gateways:
            before = groups.get(group.name)
            leaving = _still_carrying(known, before, group.gateways) if before else ()
            gateways = (*group.gateways, *leaving)
            slots = allocate(before.slots if before else {}, gateways, MAX_GATEWAYS)
            numbers = allocate(_edge_numbers(before), (edge.name for edge in group.edges), MAX_EDGES)
            ipv6 = bool(before and before.ipv6) or needs_ipv6(
                pool for pool in self._intent.pools if pool.gateway_ref == group.name
            )
            spec = replace(group, gateways=gateways, leaving=leaving, slots=slots, edge_numbers=numbers, ipv6=ipv6)
            if spec != before:
                wanted.append(SetSpec(EDGE_GATEWAY_KIND, group.name, spec))
        changed = [p for p in self._intent.pools if p != pools.get(p.name) and not _moves_house(p, known)]
        waiting = self._waiting(changed, known) if changed else {}
        wanted += [SetSpec(POOL_KIND, pool.name, pool) for pool in changed if pool.name not in waiting]
        for kind, name in sorted(self._gone):
            accepted: PoolSpec | EdgeGatewaySpec | None = pools.get(name) if kind == POOL_KIND else groups.get(name)
            if accepted is not None and not accepted.deleted:
                wanted.append(SetSpec(kind, name, replace(accepted, deleted=True)))
        return tuple(wanted)


def _edge_numbers(before: EdgeGatewaySpec | None) -> dict[str, int]:
    """The numbers that edges have already."""
    return {edge.name: before.edge_number(edge.name) for edge in before.edges} if before else {}


def _still_carrying(known: Knowledge, before: EdgeGatewaySpec, named: Collection[str]) -> tuple[str, ...]:
    """Gateways that were taken out of the manifest and can't be let go yet: the tunnel is in use, or being left."""
    carrying: set[str | None] = set()
    for name, record in known.machines.items():
        lingering = any(report.lingering for report in known.edge_pools(name, (e.name for e in before.edges)).values())
        settled = record.state == PoolState.ACTIVE_HEALTHY and not lingering
        carrying |= {record.owner, record.target, None if settled else record.previous}
    return tuple(gateway for gateway in before.gateways if gateway not in named and gateway in carrying)


def _moves_house(pool: PoolSpec, known: Knowledge) -> bool:
    """It is to leave its group while it lives: that group's edges would never be told to let it go."""
    before = known.pool_specs().get(pool.name)
    return before is not None and before.gateway_ref != pool.gateway_ref and pool.name in known.machines


def finished(known: Knowledge) -> tuple[DropSpec, ...]:
    """Specs that were deleted and that nothing needs any more."""
    pools = known.pool_specs()
    done = [name for name, spec in pools.items() if spec.deleted and name not in known.machines]
    needed = {spec.gateway_ref for name, spec in pools.items() if name not in done}
    drops = [DropSpec(POOL_KIND, name) for name in done]
    drops += [DropSpec(EDGE_GATEWAY_KIND, n) for n, g in known.groups().items() if g.deleted and n not in needed]
    return tuple(drops)


def identities(known: Knowledge) -> tuple[Write, ...]:
    """Agents that are new, or that came back with another key or address."""
    before = known.identities()
    writes: list[Write] = []
    for (role, name), agent in known.agents.items():
        identity = Identity(role, name, agent.public_key, agent.lan_address)
        if agent.public_key and before.get((role, name)) != identity:
            writes.append(SetSpec(IDENTITY_KIND, f"{role}.{name}", identity))
    return tuple(writes)


def departed(known: Knowledge) -> tuple[DropSpec, ...]:
    """What is remembered of agents that no group names any more and that are not there: identities, and drains.

    One that is there keeps its identity until it goes: it may be named again at any time.
    """
    named = _named(known)
    drops = [DropSpec(DRAIN_KIND, name) for name in known.drains() if ("node", name) not in named]
    for role, name in known.identities():
        if (role, name) not in named and (role, name) not in known.agents:
            drops.append(DropSpec(IDENTITY_KIND, f"{role}.{name}"))
    return tuple(drops)


def let_go(known: Knowledge) -> tuple[tuple[str, str], ...]:
    """Agents that no group names, that were told so, and that say themselves that they have no tunnel any more.

    What one that is away is told stays: on its return it has to hear that its tunnels are to go.
    """
    named = _named(known)
    told = (agent for agent, base in known.bases().items() if agent not in named and base == AgentBase())
    return tuple(agent for agent in told if agent in known.agents and _without_tunnels(known.reports.get(agent)))


def _named(known: Knowledge) -> set[tuple[str, str]]:
    groups = known.groups().values()
    edges = {("edge", edge.name) for group in groups for edge in group.edges}
    return edges | {("node", gateway) for group in groups for gateway in group.gateways}


def _without_tunnels(report: EdgeReport | NodeReport | None) -> bool:
    if isinstance(report, NodeReport):
        return any(found.name == TUNNEL_KNOWN and not found.ok for found in report.preconditions)
    return report is not None and not report.gateways
