"""Putting the table ``inet bgplb`` into the kernel, whole and at once, and reading it back.

By the program nft: no call of it is on the failover's hot path, and the library behind it is GPL-2.0-only.
"""

from dataplane.errors import KernelError, KernelRefused
from dataplane.nft_foreign import ForeignRule, Ours, rules_in_the_way
from dataplane.nft_rules import FAMILY, TABLE, normalise, transaction
from dataplane.programs import run


class Nft:
    """One namespace's table ``inet bgplb``. Other tables are never touched."""

    def __init__(self, namespace: str | None = None, deadline_s: float = 5.0) -> None:
        self._namespace = namespace
        self._deadline_s = deadline_s
        self._spellings: dict[str, str] = {}

    async def read(self) -> str | None:
        """The table, normalised; None when there is none.

        A table that reads back as it did right after a rule set was applied reads as that very rule set, also where
        this version of nft spells something in another way.
        """
        try:
            listing = await self._nft("list", "table", FAMILY, TABLE)
        except KernelRefused as error:
            if "No such file or directory" in str(error):
                return None
            raise
        found = normalise(listing)
        return self._spellings.get(found, found)

    async def apply(self, ruleset: str | None) -> None:
        """Make the table be `ruleset` (of :mod:`dataplane.nft_rules`), or be gone (None), in one transaction.

        Raises KernelRefused with nft's words when anything in it is refused; the old table is then untouched.
        """
        await self._nft("-f", "-", stdin=transaction(ruleset))
        if ruleset is None:
            return
        found = normalise(await self._nft("list", "table", FAMILY, TABLE))
        self._spellings = {found: ruleset}

    async def ensure(self, ruleset: str | None) -> bool:
        """Apply unless it is there already; whether it had to be applied."""
        if await self.read() == ruleset:
            return False
        await self.apply(ruleset)
        if await self.read() != ruleset:
            raise KernelError(f"table {FAMILY} {TABLE} was changed by somebody else while it was applied: find out who")
        return True

    async def in_the_way(self, ours: Ours) -> tuple[ForeignRule, ...]:
        """Rules of other tables that would lead our requests astray. Reads all rules: not for every second."""
        return rules_in_the_way(await self._nft("--terse", "list", "ruleset"), ours)

    async def _nft(self, *arguments: str, stdin: str = "") -> str:
        return await run("nft", "-j", *arguments, stdin=stdin, namespace=self._namespace, deadline_s=self._deadline_s)
