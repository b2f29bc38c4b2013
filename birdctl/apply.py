"""Making BIRD equal to what is wanted: files first, then BIRD, then read back.

The file is the truth: any `configure`, ours or another's, and any restart put every protocol back to
what the file says (measured with BIRD 2.0.12). So the file is written before BIRD is told, and
`enable` and `disable` are only a faster way to the state that the file already describes.

The files are on a memory file system and replaced by rename without fsync: after a boot they are
absent, and a gateway then announces nothing until it has been told to.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from birdctl import names
from birdctl.commands import Bird, BirdStatus, Network, ProtocolState
from birdctl.errors import BirdError, BirdFileUnwritable, BirdRefused, BirdUnsettled
from birdctl.render import Announcements, announcements_text
from birdctl.replies import Code
from fsm.ports import Clock

SETTLE_S = 1.0
_FIRST_LOOK_S = 0.001
_LAST_LOOK_S = 0.05
_SESSION_KIND = "BGP"
_FILE_MODE = 0o644  # BIRD may run as a user of its own; nothing in these files is secret


@dataclass(frozen=True, slots=True)
class PoolExport:
    """What the neighbours have been sent of one pool, read back from BIRD.

    `complete`: sessions (their BIRD names) that were sent all of its prefixes; `partial`: those that
    were sent some. A pool that is announced while no session is up has neither.
    """

    pool: str
    announced: bool
    complete: tuple[str, ...]
    partial: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did and found.

    `changed`: the file is another than before. `reloaded`: BIRD read its configuration again (the
    slower way). `pools`: what is exported now, in the order asked for.
    """

    changed: bool
    reloaded: bool
    pools: tuple[PoolExport, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sight:
    """One look at BIRD: who it is, its protocols and, for each session that is up, what it was sent."""

    status: BirdStatus
    rows: tuple[ProtocolState, ...]
    exported: dict[str, frozenset[Network]]


class Applier:
    """Keeps one BIRD equal to its files. One call at a time; calls queue.

    `config_file` is the file BIRD was started with; `announce_file` the one it includes (gateways).
    `settle_s` bounds how long, on `clock`, the read-back may differ from what was asked for.
    """

    def __init__(
        self, bird: Bird, clock: Clock, *, config_file: Path, announce_file: Path, settle_s: float = SETTLE_S
    ) -> None:
        self._bird = bird
        self._clock = clock
        self._config_file = config_file
        self._announce_file = announce_file
        self._settle_s = settle_s
        self._lock = asyncio.Lock()
        self._config_in_force: str | None = None
        self._announced: Announcements | None = None
        self._seen: BirdStatus | None = None
        """BIRD as it was when what it announces was last read back; None if that failed."""

    async def configure(self, text: str) -> Applied:
        """Make `text` the whole configuration file, and load it unless this object already has.

        Raises BirdRefused (the file before is back in place), BirdUnreachable and BirdTimeout (the new
        file stays: BIRD reads it when it starts), BirdFileUnwritable (nothing changed).
        """
        async with self._lock:
            before = _read(self._config_file)
            changed = text != before
            if not changed and text == self._config_in_force:
                return Applied(changed=False, reloaded=False)
            self._config_in_force = None
            _write(self._config_file, text)
            try:
                await self._bird.check()
                # Not soft: a prefix that a session's filter now accepts has been announced, and refused, before.
                await self._bird.configure()
            except BirdRefused:
                _restore(self._config_file, before)
                raise
            self._config_in_force = text
            return Applied(changed=changed, reloaded=True)

    async def enable_sessions(self, *peers: str) -> tuple[str, ...]:
        """Enable the sessions with these peers wherever BIRD has given one up for good; those that were.

        It disables a session that cannot bind to its address ("No listening socket") and never tries again. So it may
        be with an address that was given just now: the kernel tells of it before it lets anybody bind to it
        (net/ipv4/devinet.c, __inet_insert_ifa). A BIRD that is silent, or does not know them yet, is no error here:
        whoever asks it for something says so.
        """
        async with self._lock:
            sessions = tuple(names.session_protocol(peer) for peer in peers)
            try:
                changed = await self._bird.enable(*sessions)
            except BirdError:
                return ()
            return tuple(peer for peer, was_off in zip(peers, changed, strict=True) if was_off)

    async def announce(self, wanted: Announcements) -> Applied:
        """Make BIRD announce exactly these pools, and read back what each session was sent.

        Withdrawals are never held up by a configuration that BIRD refuses: they are given as commands
        first. Raises BirdRefused (the file before is back if the fault is in ours, else ours stays),
        BirdUnreachable and BirdTimeout (the new file stays, what BIRD did is unknown: read back),
        BirdUnsettled, BirdFileUnwritable (nothing changed).
        """
        async with self._lock:
            text = announcements_text(wanted)
            before = _read(self._announce_file)
            changed = text != before
            known, self._announced, self._seen = self._announced, None, None
            if changed:
                _write(self._announce_file, text)
            reloaded = not (known is not None and await self._switch(known, wanted))
            if reloaded:
                await self._reload(wanted, before)
            sight = await self._settled(wanted)
            if sight is None and not reloaded:
                # Somebody else's hand on BIRD: the file says what is right.
                reloaded = True
                await self._reload(wanted, before)
                sight = await self._settled(wanted)
            if sight is None:
                raise await self._unsettled(wanted)
            self._announced, self._seen = wanted, sight.status
            return Applied(changed=changed, reloaded=reloaded, pools=_exports(wanted, sight))

    async def undisturbed(self) -> bool:
        """Whether BIRD still is the process, with the configuration, that was read back last: one short question.

        What another hand enabled or disabled by command does not show in it. Raises as `announce` does.
        """
        return self._seen is not None and await self._bird.status() == self._seen

    async def exported(self, pools: Announcements) -> tuple[PoolExport, ...]:
        """Read back what each session has been sent of these pools; changes nothing."""
        return _exports(pools, await self._look())

    async def _switch(self, known: Announcements, wanted: Announcements) -> bool:
        """The fast way, for pools that BIRD has already; false when it cannot be gone."""
        if _prepared(known) != _prepared(wanted):
            return False
        was = {pool.pool: pool.announced for pool in known.pools}
        turned = [pool for pool in wanted.pools if pool.announced != was[pool.pool]]
        try:
            await self._bird.switch(
                enable=tuple(name for pool in turned if pool.announced for name in pool.protocols()),
                disable=tuple(name for pool in turned if not pool.announced for name in pool.protocols()),
            )
        except BirdRefused as refusal:
            if refusal.code != Code.NO_PROTOCOL_MATCHES:
                raise
            return False
        return True

    async def _reload(self, wanted: Announcements, before: str | None) -> None:
        rows = await self._bird.protocols()
        staying = _up_names(wanted)
        await self._bird.disable(*(row.name for row in rows if _is_pool(row) and row.name not in staying))
        try:
            await self._bird.check()
            await self._bird.configure_soft()
        except BirdRefused as refusal:
            if refusal.text.startswith(str(self._announce_file)):
                _restore(self._announce_file, before)
            raise

    async def _settled(self, wanted: Announcements) -> _Sight | None:
        """Look until BIRD shows what is wanted; None when the time to settle is over."""
        deadline = self._clock.now() + self._settle_s
        pause_s = _FIRST_LOOK_S
        while True:
            sight = await self._look()
            if not _differences(wanted, sight):
                return sight
            if self._clock.now() >= deadline:
                return None
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LAST_LOOK_S)

    async def _unsettled(self, wanted: Announcements) -> BirdUnsettled:
        differences = _differences(wanted, await self._look()) or ("it settled only just now",)
        return BirdUnsettled(self._bird.client.socket_path, tuple(differences), self._settle_s)

    async def _look(self) -> _Sight:
        status = await self._bird.status()  # first: what changes while we look is then seen by the next question
        rows = await self._bird.protocols()
        sessions = [row.name for row in rows if row.up and row.kind == _SESSION_KIND and _is_ours(row.name)]
        return _Sight(status, rows, {name: frozenset(await self._bird.exported(name)) for name in sessions})


def _is_ours(name: str) -> bool:
    return name.startswith(names.PREFIX)


def _is_pool(row: ProtocolState) -> bool:
    return row.kind == "Static" and row.name.startswith(f"{names.PREFIX}pool")


def _up_names(wanted: Announcements) -> frozenset[str]:
    return frozenset(name for pool in wanted.pools if pool.announced for name in pool.protocols())


def _prepared(announcements: Announcements) -> dict[str, tuple[Network, ...]]:
    """The pools without what is announced: two that agree in this differ by `enable` and `disable` alone."""
    return {pool.pool: pool.prefixes for pool in announcements.pools}


def _differences(wanted: Announcements, sight: _Sight) -> list[str]:
    prepared = frozenset(name for pool in wanted.pools for name in pool.protocols())
    up = {row.name for row in sight.rows if _is_pool(row) and row.up}
    there = {row.name for row in sight.rows if _is_pool(row)}
    found = [f"{name} should be up" for name in sorted(_up_names(wanted) - up)]
    found += [f"{name} should be down" for name in sorted((up & prepared) - _up_names(wanted))]
    found += [f"{name} should not exist" for name in sorted(there - prepared)]
    for session, sent in sight.exported.items():
        for pool in wanted.pools:
            if sent.issuperset(pool.prefixes) if pool.announced else sent.isdisjoint(pool.prefixes):
                continue
            prefixes = frozenset(pool.prefixes)
            odd = prefixes - sent if pool.announced else prefixes & sent
            verb = "lacks" if pool.announced else "still has"
            found += [f"{session} {verb} {prefix} of pool {pool.pool}" for prefix in sorted(odd, key=str)]
    return found


def _exports(wanted: Announcements, sight: _Sight) -> tuple[PoolExport, ...]:
    exports: list[PoolExport] = []
    for pool in wanted.pools:
        complete = [name for name, sent in sight.exported.items() if sent.issuperset(pool.prefixes)]
        some = [name for name, sent in sight.exported.items() if not sent.isdisjoint(pool.prefixes)]
        partial = [name for name in some if name not in complete]
        exports.append(PoolExport(pool.pool, pool.announced, tuple(complete), tuple(partial)))
    return tuple(exports)


def _read(path: Path) -> str | None:
    """What is in it; None when it is not there, or can't be read: then it is written anew, or that is refused."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(text)
        fresh.chmod(_FILE_MODE)
        fresh.replace(path)
    except OSError as error:
        raise BirdFileUnwritable(path, error) from error


def _restore(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    else:
        _write(path, text)
