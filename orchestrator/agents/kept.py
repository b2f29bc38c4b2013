"""An agent's state, in memory and on its disk, also while the disk takes nothing: full, read-only, or broken.

Such a disk ends no agent: started again it would find the same disk, and nobody would watch the gateways meanwhile.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from orchestrator.agents.problems import Problems
from orchestrator.agents.statefile import StateFileError

S = TypeVar("S")

WHERE = "disk"
"""The place of the problem."""


class Kept(Generic[S]):
    """`state` is what counts; `save` makes a state durable before it returns, or raises StateFileError."""

    def __init__(self, state: S, save: Callable[[S], None], problems: Problems) -> None:
        self.state, self.save, self._problems = state, save, problems
        self._owed = False

    @property
    def trouble(self) -> str:
        """Why the disk took nothing the last time; empty if it did."""
        return self._problems.get(WHERE)

    def first(self, state: S) -> bool:
        """Take this state once it is on disk. Where that can't be all stays as it was: for what must not be obeyed,
        nor acknowledged, by an agent that could forget it.
        """
        if not self._write(state):
            return False
        self.state = state
        return True

    def soon(self, state: S) -> None:
        """Take this state, and bring it to disk as soon as that takes it: for what the store or the kernel tells again
        to an agent that forgot it.
        """
        self.state = state
        self._owed = not self._write(state)

    def settle(self) -> None:
        """Bring to disk what it did not take before, if there is something."""
        if self._owed or self.trouble:
            self._owed = not self._write(self.state)

    def _write(self, state: S) -> bool:
        try:
            self.save(state)
        except StateFileError as error:
            self._problems.set(WHERE, error)
            return False
        self._owed = False
        self._problems.clear(WHERE)
        return True
