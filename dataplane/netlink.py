"""Links, addresses, routes and rules over one rtnetlink socket that is kept open.

Built on pyroute2's asyncio classes, with what they would get wrong pinned down: dumps are filtered by the kernel
(strict checking), because a full BGP table parsed in Python would stall the event loop for seconds, and sockets in
other namespaces are opened by us. For speed :mod:`dataplane.route_writer` writes routes, and all reading is
:mod:`dataplane.rtnetlink_reader`'s.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from ipaddress import ip_interface, ip_network
from typing import Any

from pyroute2 import AsyncIPRoute  # type: ignore[import-untyped]
from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped]

from dataplane.aside import aside
from dataplane.diff import (
    AddAddress,
    AddRoute,
    AddRule,
    CreateLink,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    DeleteRule,
    Op,
    ReplaceRoute,
    RouteOp,
    SetLink,
)
from dataplane.errors import Conflict, KernelError, KernelRefused, KernelTimeout
from dataplane.model import ROUTE_PROTOCOL, TABLE_MAIN, Address, Family, KernelState, Link, Route
from dataplane.namespace import entered, opened
from dataplane.route_writer import Attempt, Change, RouteWriter
from dataplane.rtnetlink_reader import RtnetlinkReader

RCVBUF_BYTES = 1 << 26
"""With less, a burst of 10,000 changes by another process kills the socket (ENOBUFS, measured)."""

DEADLINE_S = 2.0

_FAMILIES: dict[Family, int] = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}
_ABSENT = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL})
_IFA_F_NODAD = 0x02
_FOR_GOOD = 0xFFFFFFFF
_LINK_LOCAL = ip_network("fe80::/10")


class Netlink:
    """One namespace's rtnetlink. Not for several tasks at once in the sense of order: calls are served as they come."""

    def __init__(
        self,
        namespace: str | None = None,
        deadline_s: float = DEADLINE_S,
        make_link: Callable[[Link], Awaitable[None]] | None = None,
    ) -> None:
        """`make_link` performs :class:`~dataplane.diff.CreateLink`, which rtnetlink alone can't do for WireGuard."""
        self._namespace = namespace
        self._deadline_s = deadline_s
        self._make_link = make_link
        self._socket: Any = None
        self._writer, self._reader = RouteWriter(namespace), RtnetlinkReader(namespace)

    async def read(self, tables: Iterable[int]) -> KernelState:
        """Links, addresses, all rules, and the routes of these tables.

        Of the main table only routes with our protocol are read: it may hold a full BGP table. A foreign route in the
        place of ours is then refused by the kernel when ours is added.
        """
        links = self._reader.read_links()
        addresses = self._reader.read_addresses(links)
        routes: set[Route] = set()
        for table in tables:
            routes |= self._reader.read(table, ROUTE_PROTOCOL if table == TABLE_MAIN else 0)
        return KernelState(
            links=frozenset(links.values()),
            addresses=frozenset(a for a in addresses if ip_interface(a.cidr).ip not in _LINK_LOCAL),
            routes=frozenset(routes),
            rules=self._reader.read_rules(),
        )

    async def link(self, name: str) -> Link | None:
        """The interface of this name, or None."""
        return next((link for link in self._reader.read_links().values() if link.name == name), None)

    async def route(self, prefix: str, table: int, protocol: int = ROUTE_PROTOCOL) -> Route | None:
        """The route for exactly this prefix as the kernel holds it now; the one with the lowest metric if several."""
        wanted = str(ip_network(prefix))
        found = [r for r in self._reader.read(table, protocol) if r.prefix == wanted]
        return min(found, key=lambda route: route.metric or 0, default=None)

    async def routes(self, table: int, protocol: int = 0) -> frozenset[Route]:
        """All routes of a table; only those of one protocol unless it is 0. The kernel does the filtering."""
        return self._reader.read(table, protocol)

    async def apply(self, ops: Iterable[Op]) -> None:
        """Perform these operations in order; what is not about links, addresses, routes or rules is a TypeError.

        Taking away what is already gone is no error. Raises KernelRefused at the first that fails, KernelTimeout when
        there was no answer; those before it are done.
        """
        for op in ops:
            await self._perform(op)

    async def replace_route(self, route: Route) -> None:
        """Put the route in place in one step. Replaces whatever has the same key: only for prefixes that are ours.

        Nothing in it waits: when the first step of this coroutine is over, the kernel has the route.
        """
        self._writer.write("replace", route)

    async def delete_route(self, route: Route) -> None:
        """Remove the route; no error when it is gone already."""
        self._writer.write("del", route)

    async def change_routes(self, ops: Sequence[RouteOp]) -> None:
        """All of these routes and rules at once, in order, many in one call; one that fails keeps no other back.

        Raises Conflict or KernelRefused for the first that failed: which others are done has to be read back. Nothing
        in it waits, as in :meth:`replace_route`.
        """
        try:
            self._writer.write_all([_change(op) for op in ops])
        except KernelRefused as error:
            if error.errno != errno.EEXIST:
                raise
            assert isinstance(error.op, Attempt) and isinstance(error.op.what, Route)  # a rule that is there is fine
            route = error.op.what
            raise Conflict(
                (
                    f"route {route.prefix} in table {route.table} was made by somebody else: "
                    f"remove it, or choose another table",
                )
            ) from error

    async def delete_link(self, name: str) -> None:
        """Remove an interface; no error when it is gone already."""
        await self._call(
            f"delete interface {name}", lambda ip: ip.link("del", index=self._index(name)), absent_is_fine=True
        )

    async def create_link(self, name: str, kind: str) -> None:
        """Make an interface of that kind. Raises KernelRefused(EOPNOTSUPP) when this kernel lacks the kind."""
        await self._call(f"create {kind} interface {name}", lambda ip: ip.link("add", ifname=name, kind=kind))

    async def create_veth(self, link: Link, peer: str, peer_namespace: str | None = None) -> None:
        """Make a veth pair; the peer is born in `peer_namespace` (name), or beside the link."""
        peer_spec: dict[str, object] = {"ifname": peer}
        with ExitStack() as stack:
            if peer_namespace is not None:
                peer_spec["net_ns_fd"] = stack.enter_context(opened(peer_namespace))
            await self._call(
                f"create veth {link.name} with peer {peer}",
                lambda ip: ip.link("add", ifname=link.name, kind="veth", peer=peer_spec),
            )
        await self._set_link(link)

    async def close(self) -> None:
        """Close the sockets; they open again when needed."""
        self._writer.close()
        self._reader.close()
        await aside(self._close())

    async def _close(self) -> None:
        if self._socket is not None:
            ip, self._socket = self._socket, None
            ip.close()

    async def _perform(self, op: Op) -> None:
        match op:
            case AddRoute() | ReplaceRoute() | DeleteRoute() | AddRule() | DeleteRule():
                await self.change_routes([op])
            case AddAddress(address):
                await self._address("add", address)
            case DeleteAddress(address):
                await self._address("del", address)
            case CreateLink(link):
                if self._make_link is None:
                    raise KernelError(f"interface {link.name} does not exist: create it before applying the rest")
                await self._make_link(link)
            case SetLink(link):
                await self._set_link(link)
            case DeleteLink(name):
                await self.delete_link(name)
            case _:
                raise TypeError(f"{op} is not about links, addresses, routes or rules")

    async def _address(self, verb: str, address: Address) -> None:
        interface = ip_interface(address.cidr)
        fields: dict[str, object] = {"address": str(interface.ip), "prefixlen": interface.network.prefixlen}
        if interface.version == 6:
            fields["family"] = socket.AF_INET6
            if verb == "add":
                fields["flags"] = _IFA_F_NODAD  # a tunnel has nobody to collide with, and DAD costs a second
        await self._call(
            f"{verb} {address}",
            lambda ip: ip.addr(verb, index=self._index(address.device), **fields),
            absent_is_fine=verb == "del",
            present_is_fine=verb == "add",
        )

    async def lend(self, address: Address, seconds: int | None) -> None:
        """Give an interface an address for that many seconds from now, or for good; also where it has it already.

        An interface that is not there is no error: neither are its sessions. Raises KernelRefused, KernelTimeout.
        """
        interface, lifetime = ip_interface(address.cidr), _FOR_GOOD if seconds is None else seconds
        prefix = {"address": str(interface.ip), "prefixlen": interface.network.prefixlen}
        fields = {**prefix, "preferred": lifetime, "valid": lifetime}
        await self._call(
            f"lend {address}",
            lambda ip: ip.addr("replace", index=self._index(address.device), **fields),
            absent_is_fine=True,
        )

    async def _set_link(self, link: Link) -> None:
        fields = {"mtu": link.mtu, "ifalias": link.alias, "state": "up" if link.up else "down"}
        await self._call(f"set {link}", lambda ip: ip.link("set", index=self._index(link.name), **fields))

    def _open(self) -> Any:
        # pyroute2 would fork this process to open a socket elsewhere, and would make a namespace that does not exist.
        with entered(self._namespace):
            ip = AsyncIPRoute(rcvbuf=RCVBUF_BYTES, strict_check=True)
            assert ip.socket is not None  # it is this access that opens it
        return ip

    def _index(self, name: str) -> int:
        with entered(self._namespace):
            try:
                return socket.if_nametoindex(name)
            except OSError as error:
                raise NetlinkError(error.errno or errno.ENODEV, f"no interface {name}") from error

    async def _call(
        self,
        op: object,
        exchange: Callable[[Any], Awaitable[object]],
        *,
        absent_is_fine: bool = False,
        present_is_fine: bool = False,
    ) -> None:
        """One exchange with the kernel: deadline, our errors, and a fresh socket after an overrun."""
        try:
            await aside(self._exchange(exchange))
        except NetlinkError as error:
            if (absent_is_fine and error.code in _ABSENT) or (present_is_fine and error.code == errno.EEXIST):
                return
            raise KernelRefused(error.code, op, str(error.args[-1])) from error
        except TimeoutError as error:
            await self.close()  # a late answer must not be taken for the next one's
            raise KernelTimeout(op, self._deadline_s) from error
        except OSError as error:
            await self.close()
            if error.errno == errno.ENOBUFS:
                raise KernelTimeout(op, self._deadline_s) from error
            raise KernelRefused(error.errno or 0, op) from error

    async def _exchange(self, exchange: Callable[[Any], Awaitable[object]]) -> None:
        async with asyncio.timeout(self._deadline_s):
            if self._socket is None:
                self._socket = self._open()
            await exchange(self._socket)


def _change(op: RouteOp) -> Change:
    match op:
        case AddRoute(what) | AddRule(what):
            return "add", what
        case ReplaceRoute(route):
            return "replace", route
        case DeleteRoute(what) | DeleteRule(what):
            return "del", what
