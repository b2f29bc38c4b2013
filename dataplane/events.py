"""Changes of one routing table, told at once, from inside the netlink reader.

This is the hot path of a failover: the kernel's message is read, parsed and handed to the callback in one go, with no
await and no other task in between. What the kernel does not say is filled in here: when an interface goes down or
disappears, or loses its address, its IPv4 routes are dropped *without* RTM_DELROUTE.

An IPv6 route that BIRD replaces is deleted and added again (its sources, sysdep/linux/netlink.c: the kernel's own
replacement of IPv6 routes was not to be relied on). So the end of an IPv6 route is told a moment late, and not at all
when the route is back by then. Sessions are judged by IPv4 routes, which are replaced in one step.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from dataplane.errors import KernelRefused, KernelTimeout
from dataplane.namespace import entered
from dataplane.readable import Readable
from dataplane.rtnetlink_wire import (
    GROUPS,
    RTM_GETLINK,
    RTM_GETROUTE,
    AddressRemoved,
    DumpDone,
    LinkMessage,
    Message,
    RouteMessage,
    dump_request,
    parse,
)

_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP, _NETLINK_GET_STRICT_CHK = 1, 12
_SO_RCVBUFFORCE = 33
_AT_ONCE = 8
_DATAGRAM_BYTES = 1 << 17
_NETLINK_ROUTE = 0
REPLACED_WITHIN_S = 0.02
"""An IPv6 route that is added again within this time of its deletion was replaced, in seconds."""


@dataclass(frozen=True)
class RouteChange:
    """A route that appeared, was replaced (``added``) or went away. ``device`` None when it has none or is unknown."""

    prefix: str
    table: int
    added: bool
    device: str | None
    via: str | None


@dataclass(frozen=True)
class _Known:
    index: int
    via: str | None


class RouteEvents:
    """Follows one table. Start it once; it survives overruns by opening again and reading the table anew."""

    def __init__(
        self,
        table: int,
        on_route: Callable[[RouteChange], None],
        on_resync: Callable[[], None],
        namespace: str | None = None,
        rcvbuf_bytes: int = 1 << 26,
    ) -> None:
        """`on_route` and `on_resync` must not block and must not raise.

        `on_resync` is called after each complete reading of the table (the first one too); the differences to what was
        known before have been told through `on_route` by then.
        """
        self._table = table
        self._on_route = on_route
        self._on_resync = on_resync
        self._namespace = namespace
        self._rcvbuf_bytes = rcvbuf_bytes
        self._socket: socket.socket | None = None
        self._known: dict[str, _Known] = {}
        self._names: dict[int, str] = {}
        self._sequence = 0
        self._pending: list[bytes] = []
        self._ending: dict[str, asyncio.TimerHandle] = {}
        """IPv6 routes that were deleted a moment ago."""
        self._fresh: dict[str, _Known] | None = None
        self._dump_again = False
        self._in_step = asyncio.Event()
        self._broken = asyncio.Event()
        self._cause: KernelRefused | None = None
        self.overruns = 0
        """How often the kernel dropped messages because we read too slowly."""

    @property
    def routes(self) -> dict[str, RouteChange]:
        """The table as known now, by prefix."""
        return {prefix: self._change(prefix, known, added=True) for prefix, known in self._known.items()}

    def device(self, prefix: str) -> str:
        """The interface that the route for exactly this prefix leads through; empty when there is none."""
        known = self._known.get(prefix)
        return self._names.get(known.index, "") if known else ""

    async def start(self, deadline_s: float = 5.0) -> None:
        """Subscribe and read the table once. Raises KernelRefused, or KernelTimeout when the reading takes too long."""
        self._open()
        await self.in_step(deadline_s)

    async def in_step(self, deadline_s: float = 5.0) -> None:
        """Wait until no reading of the table is under way. Raises KernelTimeout."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._in_step.wait()
        except TimeoutError as error:
            raise KernelTimeout(f"reading routes of table {self._table}", deadline_s) from error

    async def until_broken(self) -> None:
        """Wait for the day on which the reader can't go on, and raise why: for the task group that it belongs to."""
        await self._broken.wait()
        assert self._cause is not None
        raise self._cause

    def resync(self) -> None:
        """Read the whole table again; `on_resync` tells when it is done."""
        if self._fresh is not None:
            self._dump_again = True
        else:
            self._begin_dump()

    def poll(self) -> None:
        """Take in, now, what the kernel has already told; for a caller that decides between two turns of the loop."""
        while self._socket is not None and self._take_in():
            pass

    def close(self) -> None:
        """Stop following; nothing is called after this."""
        if self._socket is not None:
            self._forget_endings()
            self._readable.close()
            self._socket.close()
            self._socket = None

    def _open(self) -> None:
        with ExitStack() as unless_it_goes_well:
            try:
                with entered(self._namespace):
                    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
                unless_it_goes_well.callback(sock.close)
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, self._rcvbuf_bytes)
                sock.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)
                sock.bind((0, 0))  # before the memberships: it would clear them
                for group in GROUPS:
                    sock.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
            except OSError as error:
                raise KernelRefused(error.errno or 0, "to subscribe to route events") from error
            self._readable = Readable(sock.fileno(), self._on_readable)
            unless_it_goes_well.pop_all()
        self._socket = sock
        self._begin_dump()

    def _reopen(self) -> None:
        self.overruns += 1
        self.close()
        self._fresh = None
        try:
            self._open()
        except KernelRefused as error:
            self._break(error)

    def _break(self, cause: KernelRefused) -> None:
        """Nobody awaits a reader's callback: keep the error for whoever waits in :meth:`until_broken`."""
        self.close()
        self._cause = cause
        self._broken.set()

    def _begin_dump(self) -> None:
        """Ask for links, then each family's routes, one after the other: the kernel serves one dump per socket."""
        self._in_step.clear()
        self._fresh = {}
        self._dump_again = False
        self._pending = []
        for what, family in ((RTM_GETROUTE, socket.AF_INET6), (RTM_GETROUTE, socket.AF_INET), (RTM_GETLINK, 0)):
            self._sequence += 1
            self._pending.append(dump_request(what, family, self._sequence, self._table))
        self._next_dump()

    def _next_dump(self) -> None:
        assert self._socket is not None
        self._socket.send(self._pending.pop())

    def _on_readable(self) -> None:
        """Some messages, then the loop's turn: a session that ended must be acted upon before its last route is read.

        It takes the routes of a thousand pools with it. What is still waiting makes the loop call again.
        """
        for _ in range(_AT_ONCE):
            if self._socket is None or not self._take_in():
                return

    def _take_in(self) -> bool:
        """One datagram; whether there may be more."""
        assert self._socket is not None
        try:
            data = self._socket.recv(_DATAGRAM_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                self._reopen()
            else:
                self._break(KernelRefused(error.errno or 0, "to read route events"))
            return False
        for message in parse(data):
            self._take(message)
        return True

    def _take(self, message: Message) -> None:
        match message:
            case RouteMessage():
                if message.table == self._table:
                    self._take_route(message)
            case LinkMessage():
                self._take_link(message)
            case AddressRemoved():
                # Which routes went with it is not said, and for IPv4 nothing else is: look.
                if any(known.index == message.index for known in self._known.values()):
                    self.resync()
            case DumpDone():
                self._take_done(message)

    def _take_route(self, message: RouteMessage) -> None:
        known = _Known(message.index, message.via)
        answers_dump = message.sequence != 0 and self._fresh is not None
        if self._fresh is not None:
            if message.added:
                self._fresh[message.prefix] = known
            else:
                self._fresh.pop(message.prefix, None)
        if answers_dump:
            return
        if message.added:
            self._add(message.prefix, known)
        elif message.prefix in self._known and ":" in message.prefix:
            self._end_later(message.prefix)
        elif message.prefix in self._known:
            self._remove(message.prefix)

    def _end_later(self, prefix: str) -> None:
        if prefix not in self._ending:
            loop = asyncio.get_running_loop()
            self._ending[prefix] = loop.call_later(REPLACED_WITHIN_S, self._remove, prefix)

    def _forget_endings(self, *prefixes: str) -> None:
        """These, or all, are not about to end: they are back, or gone already."""
        for prefix in prefixes or tuple(self._ending):
            timer = self._ending.pop(prefix, None)
            if timer is not None:
                timer.cancel()

    def _take_link(self, message: LinkMessage) -> None:
        if message.name:
            self._names[message.index] = message.name
        if not message.usable:
            # Told per route and synchronously: a tunnel that vanished is a session that is down.
            lost = [prefix for prefix, known in self._known.items() if known.index == message.index]
            for prefix in lost:
                self._remove(prefix)
            if self._fresh is not None:
                self._fresh = {p: known for p, known in self._fresh.items() if known.index != message.index}
        if message.gone:
            self._names.pop(message.index, None)

    def _take_done(self, message: DumpDone) -> None:
        if self._fresh is None:
            return
        if message.error not in (0, errno.ENOENT):  # no such table: nobody has put a route there yet
            self._begin_dump()
            return
        if self._pending:
            self._next_dump()
            return
        fresh, self._fresh = self._fresh, None
        for prefix in [prefix for prefix in self._known if prefix not in fresh]:
            self._remove(prefix)
        for prefix, known in fresh.items():
            if self._known.get(prefix) != known:
                self._add(prefix, known)
        if self._dump_again:
            self._begin_dump()
            return
        self._in_step.set()
        self._on_resync()

    def _add(self, prefix: str, known: _Known) -> None:
        self._forget_endings(prefix)
        self._known[prefix] = known
        self._on_route(self._change(prefix, known, added=True))

    def _remove(self, prefix: str) -> None:
        self._forget_endings(prefix)
        known = self._known.pop(prefix)
        self._on_route(self._change(prefix, known, added=False))

    def _change(self, prefix: str, known: _Known, *, added: bool) -> RouteChange:
        return RouteChange(prefix, self._table, added, self._names.get(known.index), known.via)
