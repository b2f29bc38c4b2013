"""Making a store usable that daemons refuse, or that nobody has used: a new generation, and a higher counter."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fsm.records import AgentRecord, EdgeGatewaySpec
from orchestrator.store.generation import Meta
from orchestrator.store.keys import AgentKey, Keys
from orchestrator.store.port import ModifiedAt, Put, Store
from orchestrator.store.records import EDGE_GATEWAY_KIND, decode, encode


@dataclass(frozen=True, slots=True)
class Standing:
    """What a store says of itself and of those who registered there, at one look."""

    meta: Meta | None
    meta_revision: int
    counter: int
    counter_revision: int
    agents: tuple[AgentRecord, ...]
    edges: frozenset[str]
    """Edges that the accepted intent names, or that have registered."""

    def refusing(self) -> tuple[AgentRecord, ...]:
        """Those who do not obey this store."""
        return tuple(agent for agent in self.agents if agent.refuses)

    def silent(self, expected: Iterable[str]) -> tuple[str, ...]:
        """Edges among these and those known that have not registered: their highest number is not known."""
        present = {agent.name for agent in self.agents if agent.role == "edge"}
        return tuple(sorted((self.edges | set(expected)) - present))

    def highest_epoch(self) -> int:
        """The highest number that the counter or an edge knows of."""
        return max(self.counter, max((agent.highest_epoch for agent in self.agents), default=0))

    def next_meta(self, generation: str, created: str) -> Meta:
        """A generation that follows the present one, those that it followed, and those that the refusing obey."""
        before = [agent.generation for agent in self.refusing()]
        if self.meta is not None:
            before += [self.meta.generation, *self.meta.accepts]
        return Meta(generation, created, tuple(sorted(set(before))))


async def look(store: Store, keys: Keys) -> Standing:
    """Read it. Raises what reads of the store raise, and RecordError."""
    meta, counter = await store.get(keys.meta), await store.get(keys.epoch_counter)
    registered = (await store.list(keys.agents_prefix)).items
    agents = [decode(kv.value, AgentRecord, kv.key) for kv in registered if isinstance(keys.parse(kv.key), AgentKey)]
    named: set[str] = {agent.name for agent in agents if agent.role == "edge"}
    for kv in (await store.list(f"{keys.specs_prefix}{EDGE_GATEWAY_KIND}/")).items:
        group = decode(kv.value, EdgeGatewaySpec, kv.key)
        named |= {edge.name for edge in group.edges} if not group.deleted else set()
    return Standing(
        decode(meta.value, Meta, meta.key) if meta else None,
        meta.mod_revision if meta else 0,
        decode(counter.value, int, counter.key) if counter else 0,
        counter.mod_revision if counter else 0,
        tuple(agents),
        frozenset(named),
    )


async def establish(store: Store, keys: Keys, standing: Standing, meta: Meta, without: Collection[str] = ()) -> bool:
    """Write the generation and raise the counter, in one transaction; False if one of them changed since the look.

    Raises ValueError when an edge is silent that is not among `without`.
    """
    silent = [name for name in standing.silent(()) if name not in without]
    if silent:
        raise ValueError(f"the highest number of {', '.join(silent)} is not known")
    guards = [
        ModifiedAt(keys.meta, standing.meta_revision),
        ModifiedAt(keys.epoch_counter, standing.counter_revision),
    ]
    ops = [Put(keys.meta, encode(meta)), Put(keys.epoch_counter, encode(standing.highest_epoch()))]
    return (await store.txn(guards, ops)).succeeded
