"""The first leader of a store that nobody has used gives it its generation; nobody leads on one that has none."""

from collections.abc import Callable

from fsm.ports import Clock
from orchestrator.store.generation import Meta, Recollection
from orchestrator.store.keys import Keys
from orchestrator.store.port import CreatedAt, Guard, Indeterminate, Put, Store, Unavailable
from orchestrator.store.records import encode

LOOK_EVERY_S = 0.05


class Founder:
    """`leads` and `guard` as the leader's loop has them; `used_by` names agents that obey another store."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        clock: Clock,
        recollection: Recollection,
        leads: Callable[[], bool],
        guard: Callable[[], Guard],
        used_by: Callable[[], tuple[str, ...]],
        new_meta: Callable[[], Meta],
        log: Callable[..., None],
    ) -> None:
        self._store, self._keys, self._clock, self._recollection = store, keys, clock, recollection
        self._leads, self._guard, self._used_by, self._new_meta = leads, guard, used_by, new_meta
        self._log = log
        self._said: tuple[str, ...] = ()

    @property
    def founded(self) -> bool:
        """Whether the store's generation is known."""
        return bool(self._recollection.memory.generation)

    async def run(self) -> None:
        """Until the store has a generation and it is known. Raises Refused, RecordError."""
        while not self.founded:
            try:
                if not await self._recollection.learn(self._store) and self._leads():
                    await self._found()
            except (Unavailable, Indeterminate):
                pass  # what became of it, the next look tells
            await self._clock.sleep(LOOK_EVERY_S)
        await self._recollection.write()

    async def _found(self) -> None:
        users = self._used_by()
        if users:
            if users != self._said:
                reason = (
                    "these obey another store: run 'bgplb store accept', or 'bgplb store init' if they are strangers"
                )
                self._log("the store is given no generation", reason=reason, agents=list(users))
            self._said = users
            return
        meta = self._new_meta()
        result = await self._store.txn(
            [CreatedAt(self._keys.meta, 0), self._guard()], [Put(self._keys.meta, encode(meta))]
        )
        if result.succeeded:
            self._log("the store has a generation from now on", generation=meta.generation)
