"""What is kept in etcd, as values. Written as JSON; every record carries its schema version.

Field names are the wire format. A field may be added with a default; a new meaning needs a new schema number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SCHEMA = 1


# ---- intent ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """An edge router: `endpoint` is the host or address that gateways reach, `asn` its private BGP number."""

    name: str
    endpoint: str
    asn: int


@dataclass(frozen=True, slots=True)
class EdgeGatewaySpec:
    """An accepted EdgeGateway: the edges, the candidate gateways and how they are connected."""

    name: str
    edges: tuple[EdgeSpec, ...]
    gateways: tuple[str, ...]
    gateway_asn: int
    mtu: int = 1280
    keepalive_s: int = 25
    port_base: int = 51820
    tunnel_ipv4: str = "10.77.0.0/16"
    tunnel_ipv6: str = "fd77::/48"
    probe_ipv4: str = "10.78.0.0/24"
    probe_ipv6: str = "fd78::/64"
    hold_time_s: int = 15
    profile: str = "fast"
    preempt: bool = False
    preempt_delay_s: int = 300
    on_store_loss: str = "hold"
    suspect_action: str = "none"
    drain_linger_ms: int = 500
    standbys: int = 1
    slots: Mapping[str, int] = field(default_factory=dict)
    """Number of each gateway, 0 to 254: it fixes port, tunnel and probe address, and is never reused while in use."""
    leaving: tuple[str, ...] = ()
    """Gateways among `gateways` that the manifest dropped and that still carry something: drained, then gone."""
    deleted: bool = False
    """Its manifest is gone; it stays until no pool needs it any more."""
    edge_numbers: Mapping[str, int] = field(default_factory=dict)
    """Number of each edge, 0 to 63: it fixes tunnel address, mark and answers' table, and is kept while it is named."""
    ipv6: bool = False
    """A pool of it has, or once had, an IPv6 prefix: its tunnels speak IPv6 from then on, since the gateways would give
    it up before the edges stop to ask for it."""
    schema: int = SCHEMA

    def stated(self) -> "EdgeGatewaySpec":
        """What the manifest says of it: without what was added on acceptance."""
        named = tuple(gateway for gateway in self.gateways if gateway not in self.leaving)
        return replace(self, gateways=named, leaving=(), slots={}, edge_numbers={}, deleted=False, ipv6=False)

    def edge_number(self, edge: str) -> int:
        """The number of one of its edges; one that was accepted before edges had numbers was the only one."""
        return self.edge_numbers.get(edge, 0)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """An accepted EIPPool. `aggregate` is of either family; `aggregate_ipv6` is that of a pool with both."""

    name: str
    aggregate: str
    addresses: tuple[str, ...]
    gateway_ref: str
    auto_assign: bool = True
    advertise_when_empty: bool = True
    namespaces: tuple[str, ...] = ()
    priority: int = 0
    hold: bool = False
    deleted: bool = False
    """Its manifest is gone; it stays until every edge has confirmed that nothing of it is left."""
    aggregate_ipv6: str = ""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class GatewayDrain:
    """An operator's order that a gateway carries nothing until it is undrained."""

    name: str
    reason: str
    by: str
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Identity:
    """What is remembered of an agent when its lease is gone, so that its tunnel outlives it."""

    role: str
    name: str
    public_key: str
    lan_address: str = ""
    schema: int = SCHEMA


# ---- agents ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent that is alive; bound to its lease. `lan_address` is a gateway's address on the cluster LAN.

    `generation` is that of the store which it obeys; `refuses` says why that is not this one, and is empty when it is.
    `highest_epoch`: of an edge, when it registered, the highest number that it has accepted or has a plan with.
    `incarnation`: of an edge, changes when its memory is lost; what was written before is not obeyed by the new one.
    """

    name: str
    role: str
    instance: str
    version: str
    public_key: str = ""
    lan_address: str = ""
    capabilities: tuple[str, ...] = ()
    generation: str = ""
    refuses: str = ""
    highest_epoch: int = 0
    incarnation: str = ""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Plan:
    """What an edge does by itself when the owner is down: take `epoch`, point at `target`, if it stands at `base`."""

    target: str
    epoch: int
    base: int


@dataclass(frozen=True, slots=True)
class GatewayWitness:
    """What an edge sees of one gateway. `missed` is capped at the number that makes it unfit.

    `probe` and the rest are the worst of the families in use; `family` says whose word that is where they differ.
    """

    session: str = "unknown"
    probe: str = "unknown"
    missed: int = 0
    settled: bool = False
    full_size: str = "unknown"
    reason: str = ""
    family: str = ""


@dataclass(frozen=True, slots=True)
class EdgeReport:
    """observed/edge/NAME/base"""

    instance: str
    gateways: Mapping[str, GatewayWitness] = field(default_factory=dict)
    bird: str = "unknown"
    highest_epoch: int = 0
    problems: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class EdgePoolReport:
    """observed/edge/NAME/pool/POOL: what was read back from the kernel, never what was merely asked for.

    `withdrawn`: the route no longer points at anybody but `owner`. `installed`: AllowedIPs and route are on `owner`.
    """

    epoch: int
    owner: str | None
    withdrawn: bool = False
    installed: bool = False
    removed: bool = False
    lingering: bool = False
    """After a planned move: answers from the old gateway are still let through."""
    announced_by: tuple[str, ...] = ()
    executed_plan: int | None = None
    """Epoch of the plan that the edge carried out by itself, until the leader has commanded anew."""
    armed_plan: int | None = None
    """Epoch of the plan that it would carry out next."""
    revision: int = 0
    """Of the commands with that epoch, the one in force: the revision at which it was written."""
    carried_out: tuple[Plan, ...] = ()
    """The last plans that it carried out by itself, newest last; they stay when the leader commands anew."""
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    outage_estimate_ms: float | None = None
    error: str = ""
    schema: int = SCHEMA


TUNNEL_KNOWN = "tunnel-known"
"""Name of the precondition that holds once a gateway was told of a tunnel, and no longer once it was let go."""


@dataclass(frozen=True, slots=True)
class Precondition:
    """One thing a gateway must be to carry traffic, as checked on it."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """observed/node/NAME/base

    `lan_targets`, `lan_reached`: nodes on the cluster LAN that are asked, and that answer; `lan_answering`: the
    addresses of some of these.
    """

    instance: str
    ready: bool
    preconditions: tuple[Precondition, ...] = ()
    lan_targets: int = 0
    lan_reached: int = 0
    leaving: bool = False
    problems: tuple[str, ...] = ()
    lan_answering: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class NodePoolReport:
    """observed/node/NAME/pool/POOL: `announcing` as BIRD exports it, `answers` when rules and tables are in place."""

    epoch: int
    announcing: bool
    answers: bool
    error: str = ""
    schema: int = SCHEMA


# ---- desired state -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tunnel:
    """One tunnel of an edge with a gateway, as both ends need it. `public_key` is the other end's."""

    name: str
    slot: int
    public_key: str
    endpoint: str
    port: int
    edge_ipv4: str
    gateway_ipv4: str
    probe_ipv4: str
    edge_asn: int
    gateway_asn: int
    edge_index: int = 0
    edge_ipv6: str = ""
    gateway_ipv6: str = ""
    probe_ipv6: str = ""
    """The same three of IPv6; all empty in a group whose pools have no IPv6 prefix."""


@dataclass(frozen=True, slots=True)
class AgentBase:
    """desired/ROLE/AGENT/base: all of an agent that belongs to no pool."""

    tunnels: tuple[Tunnel, ...] = ()
    mtu: int = 1280
    keepalive_s: int = 25
    hold_time_s: int = 15
    bfd_interval_ms: int = 50
    bfd_multiplier: int = 3
    probe_interval_ms: int = 50
    drain_linger_ms: int = 500
    on_store_loss: str = "hold"
    accept: tuple[str, ...] = ()
    """Prefixes that an edge accepts from its gateways: those of all pools."""
    lan_peers: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class EdgePool:
    """desired/edge/NAME/pool/POOL. Commands order by (epoch, mod_revision of the key)."""

    prefixes: tuple[str, ...]
    owner: str | None
    epoch: int
    planned: bool = False
    plan: tuple[Plan, ...] = ()
    deleted: bool = False
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class NodePool:
    """desired/node/NAME/pool/POOL"""

    prefixes: tuple[str, ...]
    announce: bool
    epoch: int
    schema: int = SCHEMA


# ---- machines and their history ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EdgeView:
    """What the leader last knew of a pool at one edge.

    `incarnation`: the one that the epoch in force was taken for; with a star before it, whoever is there now.
    """

    epoch: int = 0
    owner: str | None = None
    phase: str = "unknown"
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as Kubernetes has them; absent means false."""

    type: str
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """machines/pool/NAME: one machine.

    `owner` holds the pool (or did, until the move is effective); `target` is where it is going; `epoch` numbers the
    newest owner change; `base_epoch`, while a planned move is being prepared, the one in force at the edges.
    `addresses` are the prefixes that the epoch was taken for.
    `retries`: deadlines that have passed in this move; each doubles the next one.
    `deadline_s` and `moves_s` are on the clock of `leader` in its `term`, the revision at which the key that makes it
    the leader was created; `since_ms` is wall time for people.
    """

    name: str
    state: str
    owner: str | None = None
    target: str | None = None
    previous: str | None = None
    standby: str | None = None
    epoch: int = 0
    base_epoch: int = 0
    switched: bool = False
    plan: tuple[Plan, ...] = ()
    edges: Mapping[str, EdgeView] = field(default_factory=dict)
    since_ms: int = 0
    deadline_s: float | None = None
    retries: int = 0
    moves_s: tuple[float, ...] = ()
    backoff_ms: int = 0
    leader: str = ""
    term: int = 0
    held_from: str | None = None
    hold_request: str = ""
    announce: bool = True
    addresses: tuple[str, ...] = ()
    cause: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    seq: int = 0
    last_move: Mapping[str, str | float | int] = field(default_factory=dict)
    plans_told: tuple[int, ...] = ()
    """The last numbers of plans that the history tells of, as the pool's or as superseded, in order.

    None below the first of them is told of any more.
    """
    superseded: Mapping[str, str | int] = field(default_factory=dict)
    """The last plan that an edge carried out in vain: its `epoch`, `target` and `edge`, `by_epoch`, `at_ms`."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """history/pool/NAME/SEQ: one transition. Its etcd revision is the key's, as read back."""

    seq: int
    from_state: str
    to_state: str
    event: str
    cause: str
    evidence: Mapping[str, str]
    epoch: int
    owner: str | None
    target: str | None
    at_ms: int
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    schema: int = SCHEMA


# ---- requests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """requests/ID: what an operator asks for, and later the answer. `answer` is empty until the leader has spoken."""

    id: str
    verb: str
    subject: str
    target: str | None = None
    reason: str = ""
    by: str = ""
    answer: str = ""
    accepted: bool = False
    at_ms: int = 0
    schema: int = SCHEMA
