"""An edge's state on disk: a whole file, and beside it a journal of what changed since.

With a thousand pools the whole is some 300 kB, too much to write and sync for each command. A line of the journal is a
change with its checksum; the first line names the whole file that the others continue, by its digest. So a new whole
file ends the journal in the same instant, and a power cut at any moment leaves the state before a save or after it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

from fsm.fence import Accepted, FenceState
from fsm.records import AgentBase
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.statefile import StateFileError, read, write
from orchestrator.store.records import RecordError, decode, encode

KEPT_BYTES = 1 << 18
"""A journal may grow to this, or to the length of the whole file if that is more; then a new whole file is written."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed. `pools`: None for one that is forgotten; `base` and `endpoints`: None where they are as before."""

    pools: Mapping[str, Accepted | None] = field(default_factory=dict)
    floor: Mapping[str, int] = field(default_factory=dict)
    base: AgentBase | None = None
    endpoints: Mapping[str, str] | None = None
    schema: int = 1


def difference(old: EdgeState, new: EdgeState) -> Delta | None:
    """What leads from one state to the other; None if that can't be said in a delta."""
    floor, before = new.fence.floor, old.fence.floor
    others = replace(new, base=old.base, endpoints=old.endpoints, fence=old.fence)  # whatever else a state may hold
    if others != old or not before.keys() <= floor.keys():
        return None
    accepted, known = new.fence.pools, old.fence.pools
    # Records are values that nobody changes: one that is the same object is the same, and needs no comparing.
    pools: dict[str, Accepted | None] = {
        name: now for name, now in accepted.items() if (was := known.get(name)) is not now and was != now
    }
    pools |= {name: None for name in known if name not in accepted}
    return Delta(
        pools=pools,
        floor={prefix: epoch for prefix, epoch in floor.items() if before.get(prefix) != epoch},
        base=new.base if new.base != old.base else None,
        endpoints=new.endpoints if new.endpoints != old.endpoints else None,
    )


def applied(state: EdgeState, deltas: list[Delta]) -> EdgeState:
    """The state after these changes."""
    pools, floor = dict(state.fence.pools), dict(state.fence.floor)
    base, endpoints = state.base, state.endpoints
    for delta in deltas:
        for name, accepted in delta.pools.items():
            if accepted is None:
                pools.pop(name, None)
            else:
                pools[name] = accepted
        floor |= delta.floor
        base = delta.base if delta.base is not None else base
        endpoints = delta.endpoints if delta.endpoints is not None else endpoints
    return replace(state, base=base, endpoints=endpoints, fence=FenceState(pools, floor, state.fence.schema))


class EdgeJournal:
    """The file at `path` and its journal. `load` first; after an error in `save` what is on disk is the state before.

    Or the new one, where the file itself was written anew: nothing was done upon it, so to start from it is safe.

    Both raise StateFileError, which names the file and what to do.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.log_path = path, journal_of(path)
        self._saved: EdgeState | None = None
        """What the files hold; None if the next save has to write the whole."""
        self._whole_bytes = self._log_bytes = 0

    def load(self, default: EdgeState) -> EdgeState:
        """The state as it was saved last, or `default` where there is no file."""
        data = read(self.path)
        if data is None:
            return default  # a journal without its file continues nothing
        try:
            state = decode(data, EdgeState, str(self.path))
        except RecordError as error:
            raise StateFileError(f"{error}; move the file away to start from what the kernel holds") from error
        log = read(self.log_path) or b""
        deltas, whole = self._read(log, data)
        state = applied(state, deltas) if deltas else state
        self._whole_bytes, self._log_bytes = len(data), len(log)
        self._saved = state if whole else None
        return state

    def _read(self, log: bytes, data: bytes) -> tuple[list[Delta], bool]:
        """The changes in a journal, and whether it may be continued: not if it is another file's, or torn."""
        *lines, torn = log.split(b"\n")
        if not lines or lines[0] != _header(data):
            return [], False
        deltas: list[Delta] = []
        for number, line in enumerate(lines[1:], 2):
            checksum, _, body = line.partition(b" ")
            if checksum != _checksum(body):
                raise StateFileError(
                    f"{self.log_path}: line {number} is damaged; move it and {self.path.name} away to start from "
                    "what the kernel holds"
                )
            try:
                deltas.append(decode(body, Delta, f"{self.log_path}, line {number}"))
            except RecordError as error:
                raise StateFileError(f"{error}; was it written by a newer version?") from error
        return deltas, not torn

    def save(self, state: EdgeState) -> None:
        """Make the state durable: when this returns, a power cut does not lose it."""
        saved, self._saved = self._saved, None
        delta = difference(saved, state) if saved is not None else None
        if delta is None or self._log_bytes > max(KEPT_BYTES, self._whole_bytes):
            data = encode(state)
            write(self.path, data)
            write(self.log_path, _header(data) + b"\n")
            self._whole_bytes, self._log_bytes = len(data), 0
        elif delta != Delta():
            self._append(delta)
        self._saved = state

    def _append(self, delta: Delta) -> None:
        body = encode(delta)
        line = _checksum(body) + b" " + body + b"\n"
        try:
            descriptor = os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                data = memoryview(line)
                while data:
                    data = data[os.write(descriptor, data) :]  # it may take less than it is given
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StateFileError(f"{self.log_path}: can't be written: {error.strerror}; is the disk full?") from error
        self._log_bytes += len(line)


def journal_of(path: Path) -> Path:
    """Where the journal of a state file is."""
    return path.with_suffix(".journal")


def _header(data: bytes) -> bytes:
    return b"continues " + blake2b(data, digest_size=16).hexdigest().encode()


def _checksum(body: bytes) -> bytes:
    return b"%08x" % crc32(body)
