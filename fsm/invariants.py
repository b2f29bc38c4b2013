"""What must hold whatever happens, as predicates over plain snapshots. Each returns its violations as text.

They know nothing of how a snapshot was taken: tests of the core and of the leader feed the same ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fsm.records import EdgePool, HistoryEntry, Plan
from fsm.types import PoolState

STATEMENTS = {
    "S1": "For each prefix an edge sends to at most one gateway, the owner of the highest epoch it accepted, and "
    "accepts the prefix as a source from that gateway only; for a while after a planned move from its predecessor too.",
    "S2": "No two owners share an epoch; no agent applies a command whose epoch is below one it has accepted.",
    "S3": "Nothing foreign is changed or deleted.",
    "S4": "When all is quiet the system equals the desired state exactly: nothing missing, nothing left over.",
    "S5": "A deposed leader changes nothing.",
    "S6": "An assigned egress policy changes gateway, and an address pair changes node, only through a recorded "
    "transition; one node at most translates new flows for a pair.",
}
"""The invariants in words, by the numbers that reports use."""


# ---- S1: one path ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrefixSnapshot:
    """One prefix on one edge, as read from its kernel, beside what its fence accepted last.

    `sends_to`: gateways that a route for the prefix points at; `accepts_from`: gateways whose AllowedIPs contain it;
    `predecessor`: who had it before a planned move; `linger_left_ms`: how long that one may still send, 0 when over.
    """

    sends_to: tuple[str, ...]
    accepts_from: tuple[str, ...]
    epoch: int
    owner: str | None
    predecessor: str | None = None
    linger_left_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class EdgeSnapshot:
    """All prefixes of one edge at one instant."""

    name: str
    prefixes: Mapping[str, PrefixSnapshot] = field(default_factory=dict)


def one_path(edge: EdgeSnapshot) -> list[str]:
    """S1. An edge that sends a prefix to nobody is no violation: it is an outage, which L1 speaks of."""
    found: list[str] = []
    for prefix, at in edge.prefixes.items():
        where = f"S1: {edge.name}: {prefix} (epoch {at.epoch}, owner {at.owner})"
        if len(set(at.sends_to)) > 1:
            found.append(f"{where} is sent to {', '.join(sorted(set(at.sends_to)))}")
        found += [f"{where} is sent to {g}" for g in sorted(set(at.sends_to) - {at.owner}) if len(at.sends_to) == 1]
        lingering = {at.predecessor} if at.linger_left_ms > 0 else set()
        strangers = set(at.accepts_from) - {at.owner} - lingering
        found += [f"{where} is accepted from {g}" for g in sorted(strangers)]
    return found


def one_command(commands: Mapping[str, EdgePool]) -> list[str]:
    """S1 for a projection: what the edges (by name) of one pool are told names one owner for each epoch."""
    owners: dict[int, dict[str, str]] = {}
    for edge, command in commands.items():
        if command.owner is not None:
            owners.setdefault(command.epoch, {})[command.owner] = edge
    return [
        f"S1: epoch {epoch} is commanded for {' and '.join(sorted(said))}"
        for epoch, said in sorted(owners.items())
        if len(said) > 1
    ]


# ---- S2: epochs --------------------------------------------------------------------------------------------------

TARGET_STATES = (PoolState.FAILURE_DETECTED, PoolState.WITHDRAWN, PoolState.DRAINING)
"""States in which the newest epoch stands for the target."""


def epochs_have_one_owner(histories: Mapping[str, Sequence[HistoryEntry]]) -> list[str]:
    """S2, first half, over the histories of all machines: an epoch is one machine's, and stands for one gateway."""
    holders: dict[int, dict[tuple[str, str], None]] = {}
    for machine, entries in histories.items():
        for entry in entries:
            gateway = _holder(entry)
            if gateway is not None and entry.epoch:
                holders.setdefault(entry.epoch, {})[machine, gateway] = None
    return [
        f"S2: epoch {epoch} stands for " + " and ".join(f"{gateway} of {machine}" for machine, gateway in sorted(said))
        for epoch, said in sorted(holders.items())
        if len(said) > 1
    ]


def epochs_rise(machine: str, entries: Sequence[HistoryEntry]) -> list[str]:
    """S2: along one machine's history neither sequence nor epoch ever falls, and each owner change raises the epoch."""
    found: list[str] = []
    for before, after in pairwise(entries):
        where = f"S2: {machine}: transition {after.seq}"
        if after.seq <= before.seq:
            found.append(f"{where} follows {before.seq}")
        if after.epoch < before.epoch:
            found.append(f"{where} has epoch {after.epoch} after {before.epoch}")
        if _holder(after) not in (_holder(before), None) and after.epoch <= before.epoch:
            found.append(f"{where} gives epoch {after.epoch} to {_holder(after)} after {_holder(before)}")
    return found


def _holder(entry: HistoryEntry) -> str | None:
    """Whom the entry's epoch stands for: nobody once the pool is being deleted."""
    if entry.to_state == PoolState.TERMINATING:
        return None
    return entry.target if entry.to_state in TARGET_STATES else entry.owner


def plan_faults(command: EdgePool) -> list[str]:
    """S2 for a command that carries plans: each stands on the number before it, is above it, and names another."""
    found: list[str] = []
    base, named = command.epoch, {command.owner}
    for plan in command.plan:
        where = f"S2: plan {plan.epoch} for {plan.target}"
        if plan.base != base:
            found.append(f"{where} stands on {plan.base}, the number before it is {base}")
        if plan.epoch <= plan.base:
            found.append(f"{where} is not above {plan.base}")
        if plan.target in named:
            found.append(f"{where} names a gateway that had its turn")
        base, named = plan.epoch, named | {plan.target}
    return found


def plans_keep_their_numbers(plans: Iterable[Plan], entries: Sequence[HistoryEntry]) -> list[str]:
    """S2 for numbers that were reserved: wherever a machine's history has one, it stands for the plan's target."""
    targets: dict[int, set[str]] = {}
    for plan in plans:
        targets.setdefault(plan.epoch, set()).add(plan.target)
    found = [f"S2: number {n} was reserved for {' and '.join(sorted(t))}" for n, t in targets.items() if len(t) > 1]
    return found + [
        f"S2: epoch {entry.epoch} was reserved for {', '.join(targets[entry.epoch])}, stands for {holder}"
        for entry in entries
        if entry.epoch in targets and (holder := _holder(entry)) is not None and holder not in targets[entry.epoch]
    ]


@dataclass(frozen=True, slots=True)
class Applied:
    """One agent applied one command for one prefix; a list of them is in the order in which it happened."""

    agent: str
    prefix: str
    epoch: int


def never_backwards(log: Iterable[Applied]) -> list[str]:
    """S2, second half: each agent's applied epochs never fall for a prefix."""
    highest: dict[tuple[str, str], int] = {}
    found: list[str] = []
    for applied in log:
        key = applied.agent, applied.prefix
        if applied.epoch < highest.get(key, 0):
            found.append(f"S2: {applied.agent} applied epoch {applied.epoch} for {applied.prefix} after {highest[key]}")
        highest[key] = max(applied.epoch, highest.get(key, 0))
    return found


# ---- S3, S4: nothing foreign touched, nothing left over ----------------------------------------------------------


def foreign_untouched(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """S3. Both map a foreign thing (rule, route, table, protocol) to its full text."""
    found = [f"S3: {name} is gone" for name in before if name not in after]
    return found + [
        f"S3: {name} was {before[name]!r}, is {after[name]!r}"
        for name in before
        if name in after and before[name] != after[name]
    ]


def converged(desired: Mapping[str, object], actual: Mapping[str, object]) -> list[str]:
    """S4. `actual` holds all that is ours, read back; to be asked only after quiescence."""
    found = [f"S4: {name} is missing" for name in desired if name not in actual]
    found += [f"S4: {name} is left over" for name in actual if name not in desired]
    return found + [
        f"S4: {name} is {actual[name]!r}, shall be {desired[name]!r}"
        for name in desired
        if name in actual and actual[name] != desired[name]
    ]


# ---- S5: one leader ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """A write that reached etcd. `term`: the create revision of the leader key that its writer held;
    `leader_term`: that of the leader key in force when the write committed, None when there was none."""

    revision: int
    key: str
    writer: str
    term: int
    leader_term: int | None


@dataclass(frozen=True, slots=True)
class Projection:
    """A write to Kubernetes. `shows_revision`: the etcd revision that it tells of; `committed_revision`: etcd's own at
    that moment; `resource_version`: the precondition sent with it, empty for none."""

    object: str
    writer: str
    shows_revision: int
    committed_revision: int
    resource_version: str


def only_the_leader_writes(log: Iterable[Write], projections: Iterable[Projection] = ()) -> list[str]:
    """S5. Agents' and requests' own keys don't belong into the log."""
    found = [
        f"S5: {w.writer} (term {w.term}) wrote {w.key} at revision {w.revision} while the term was {w.leader_term}"
        for w in log
        if w.term != w.leader_term
    ]
    for p in projections:
        if not p.resource_version:
            found.append(f"S5: {p.writer} wrote {p.object} without a precondition")
        if p.shows_revision > p.committed_revision:
            found.append(f"S5: {p.writer} told {p.object} of revision {p.shows_revision}, which etcd does not hold")
    return found


# ---- S6: egress --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who carries a subject (an egress policy, or a gateway's address pair) from one observation on."""

    subject: str
    holder: str


def changes_are_recorded(observed: Sequence[Assignment], recorded: Iterable[tuple[str, str, str]]) -> list[str]:
    """S6. `observed` in order of time; `recorded`: (subject, from, to) of each recorded transition, each used once."""
    left = list(recorded)
    holders: dict[str, str] = {}
    found: list[str] = []
    for now in observed:
        before = holders.get(now.subject)
        if before is not None and before != now.holder:
            change = now.subject, before, now.holder
            if change in left:
                left.remove(change)
            else:
                found.append(f"S6: {now.subject} went from {before} to {now.holder} with no transition")
        holders[now.subject] = now.holder
    return found


def one_translator(translators: Mapping[str, Iterable[str]]) -> list[str]:
    """S6. Maps each address pair to the nodes that translate new flows for it at one instant."""
    return [
        f"S6: {pair} is translated on {', '.join(sorted(set(nodes)))}"
        for pair, nodes in ((p, tuple(n)) for p, n in translators.items())
        if len(set(nodes)) > 1
    ]
