"""Which store this is, and what a daemon remembers of the one that it obeys.

A store has a generation, a UUID under the key `meta`. A daemon keeps on its disk the generation, the cluster id and the
highest revision that it has seen, and refuses a store that is another one or went backwards: a backup that was put
back, a folder of data that was lost, another cluster behind the same address. Numbers of the fence would come twice.
`bgplb store accept` gives such a store a new generation, which names those that it follows.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from fsm.ports import Clock
from fsm.records import SCHEMA
from orchestrator.store.keys import Keys
from orchestrator.store.port import Store, Unavailable
from orchestrator.store.records import decode

REMEMBER_EVERY_S = 10.0
"""How old the revision on disk may be, in seconds: a backup that is younger is not noticed after a restart."""

ACCEPT = "'bgplb store accept' makes it usable if it is meant to be"


@dataclass(frozen=True, slots=True)
class Meta:
    """The value of `meta`. `accepts`: generations that this one follows; `created` is RFC 3339, for people."""

    generation: str
    created: str = ""
    accepts: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Memory:
    """The store that is obeyed. `generation` is empty as long as nobody has led on it; `cluster_id` 0: never seen one.

    `born_revision`: where the store stood when an edge without a past came to it; what was written up to there was
    not meant for that edge. 0 for one that knows what it has accepted. `went_back`: the store was once found at a
    lower revision than before; it stays refused, however far it has come since.
    """

    cluster_id: int = 0
    generation: str = ""
    revision: int = 0
    born_revision: int = 0
    went_back: bool = False
    schema: int = SCHEMA


def judge(memory: Memory, meta: Meta | None, cluster_id: int, revision: int) -> Memory | str:
    """What is remembered from here on, or in what way the store is not the one that is remembered."""
    generation = meta.generation if meta else ""
    adopted = Memory(cluster_id, generation, revision)
    if not memory.cluster_id:
        return adopted
    if meta is not None and generation != memory.generation and memory.generation in meta.accepts:
        return adopted
    if memory.generation and generation != memory.generation:
        what = f"is of generation {generation}" if meta else "has no generation: it is new, or was emptied"
        return f"the store {what}; the one obeyed so far is of generation {memory.generation}; {ACCEPT}"
    if cluster_id != memory.cluster_id:
        return f"the store is cluster {cluster_id:x}; the one obeyed so far is {memory.cluster_id:x}; {ACCEPT}"
    if revision < memory.revision or memory.went_back:
        return f"the store went back; it is at revision {revision}, and was at {memory.revision} before; {ACCEPT}"
    return replace(memory, generation=generation, revision=revision)


class Recollection:
    """The memory of one daemon, and its word on the store at hand.

    `save` makes a memory durable, or answers why it could not; `ground` is a prefix that the daemon may list; `blank`
    says whether it has no past.
    """

    def __init__(
        self,
        keys: Keys,
        ground: str,
        memory: Memory | None = None,
        save: Callable[[Memory], Awaitable[str]] | None = None,
        blank: Callable[[], bool] = lambda: False,
    ) -> None:
        self._keys, self._ground, self._save, self._blank = keys, ground, save, blank
        self.memory = memory or Memory()
        self._saved = self.memory
        self.refusal = ""
        """Why the store at hand is not obeyed; empty when it is."""
        self.unsaved = ""
        """Why the memory is not on disk; empty when it is."""
        self.adoptions = 0
        """Times that another store took the place of the one that was obeyed: nothing known of that one holds here."""
        self.looks = 0
        """Times that the store was looked at, and answered."""

    async def recognise(self, store: Store) -> bool:
        """Look at the store: whether it is the one. Raises what reads of the store raise, and RecordError."""
        before = self.memory  # while the answer is on its way, `saw` may hear of what is newer than it
        kv = await store.get(self._keys.meta)
        meta = decode(kv.value, Meta, kv.key) if kv is not None else None
        snapshot = await store.list(self._ground)
        self.looks += 1
        verdict = judge(before, meta, snapshot.cluster_id, snapshot.revision)
        if isinstance(verdict, str):
            self.refusal = verdict
            if snapshot.cluster_id == before.cluster_id and snapshot.revision < before.revision:
                self.memory = replace(self.memory, went_back=True)
            await self.write()
            return False
        self.refusal = ""
        if self._blank() and not verdict.born_revision:
            verdict = replace(verdict, born_revision=snapshot.revision)
        if before.cluster_id and (
            verdict.cluster_id != before.cluster_id
            or verdict.revision < before.revision
            or before.generation not in ("", verdict.generation)
        ):
            self.adoptions += 1
        else:
            verdict = replace(verdict, revision=max(verdict.revision, self.memory.revision))
        self.memory = verdict
        await self.write()
        return True

    def saw(self, revision: int) -> None:
        """The store that is obeyed has come as far as that."""
        if revision > self.memory.revision and not self.refusal:
            self.memory = replace(self.memory, revision=revision)

    async def write(self) -> None:
        """Make it durable, if it has changed. Where that fails it is tried again the next time.

        What a daemon then forgets is how far the store had come: it would not notice a backup that was put back.
        """
        memory = self.memory
        if self._save is not None and memory != self._saved:
            self.unsaved = await self._save(memory)
            if not self.unsaved:
                self._saved = memory

    async def keep(self, store: Store, clock: Clock) -> None:
        """Write now and then, and learn the generation of a store that had none; for ever. Raises Refused."""
        while True:
            await clock.sleep(REMEMBER_EVERY_S)
            with suppress(Unavailable):
                await self.learn(store)
            await self.write()

    async def learn(self, store: Store) -> bool:
        """Look whether a store that had no generation has one by now; whether it is known."""
        if not self.memory.generation:
            kv = await store.get(self._keys.meta)
            if kv is None:
                return False
            self.memory = replace(self.memory, generation=decode(kv.value, Meta, kv.key).generation)
        return True
