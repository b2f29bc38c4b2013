"""Reading links, addresses, policy rules and one table's routes: filtered by the kernel, parsed by us.

A dump is served within the calls that ask for it, so nothing waits here; a general library's parser (40 microseconds a
route, a millisecond a link) is the only cost to save, and with a thousand pools it is what a reading costs.
"""

import errno
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

from dataplane.errors import KernelRefused, KernelTimeout
from dataplane.model import Address, Link, Route, RouteKind, Rule
from dataplane.namespace import entered
from dataplane.rtnetlink_wire import (
    IFADDRMSG,
    IFINFOMSG,
    NLMSG_DONE,
    NLMSG_ERROR,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETROUTE,
    RTM_GETRULE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTM_NEWRULE,
    RTMSG,
    attributes,
    dump_request,
    frames,
)

_SOL_NETLINK, _NETLINK_GET_STRICT_CHK = 270, 12
_DATAGRAM_BYTES = 1 << 17
_NLM_F_DUMP_INTR = 0x10
_ATTEMPTS = 5
_KINDS: dict[int, RouteKind] = {1: "unicast", 6: "blackhole", 7: "unreachable"}
_NUMBER = struct.Struct("=I")
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_METRICS, _RTA_TABLE = 1, 4, 5, 6, 7, 8, 15
_RTAX_LOCK, _RTAX_MTU = 1, 2
_FRA_DST, _FRA_SRC, _FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE, _FRA_FWMASK, _FRA_PROTOCOL = 1, 2, 6, 10, 15, 16, 21
_IFF_UP = 0x1
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_IFALIAS, _IFLA_INFO_KIND = 3, 4, 18, 20, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_TUN_KINDS = ("tun", "wireguard")
_WHOLE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class RtnetlinkReader:
    """One namespace's socket for reading; opened at the first use, kept open."""

    def __init__(self, namespace: str | None = None) -> None:
        self._namespace = namespace
        self._socket: socket.socket | None = None
        self._sequence = 0
        self._routes: dict[tuple[int, int], tuple[list[bytes], dict[int, str | None], frozenset[Route]]] = {}
        self._rules: tuple[list[bytes], frozenset[Rule]] = ([], frozenset())
        """What was read last, and what it said: of a thousand routes that are as they were no set is made anew."""

    def read(self, table: int, protocol: int = 0) -> frozenset[Route]:
        """All routes of a table, of both families; only those of one protocol unless it is 0.

        Kinds that we never make (multicast, multipath and others) are left out. Raises KernelRefused with the kernel's
        errno; KernelTimeout when the table changes faster than it can be read.
        """
        op = f"read routes of table {table}"
        names: dict[int, str | None] = {}
        with entered(self._namespace):
            with self._asking(op):
                messages = [
                    body
                    for family in (socket.AF_INET, socket.AF_INET6)
                    for body in self._dump(RTM_GETROUTE, family, table, protocol)
                ]
            before, called, routes = self._routes.get((table, protocol), ([], {}, frozenset()))
            if messages != before or any(_name(index) != name for index, name in called.items()):
                found = [_named(body, names) for body in messages]
                routes = frozenset(route for route in found if route is not None and route.table == table)
                self._routes[table, protocol] = messages, names, routes
            return routes

    def read_rules(self) -> frozenset[Rule]:
        """All policy rules of both families; parts that we never set (iif, tos, suppress) are not looked at.

        Raises as `read` does.
        """
        with self._asking("read rules"), entered(self._namespace):
            messages = [body for family in _WHOLE for body in self._dump(RTM_GETRULE, family, 0, 0)]
        if messages != self._rules[0]:
            self._rules = messages, frozenset(_rule(body) for body in messages)
        return self._rules[1]

    def read_links(self) -> dict[int, Link]:
        """All interfaces by their index. A TUN device counts as ``wireguard``: wireguard-go makes its interface of one.

        Raises as `read` does.
        """
        with self._asking("read links"), entered(self._namespace):
            return dict(_link(body) for body in self._dump(RTM_GETLINK, socket.AF_UNSPEC, 0, 0))

    def read_addresses(self, links: Mapping[int, Link]) -> set[Address]:
        """All IP addresses, the local end where a link is point to point; `links` gives the interfaces' names.

        Raises as `read` does.
        """
        with self._asking("read addresses"), entered(self._namespace):
            messages = [body for family in _WHOLE for body in self._dump(RTM_GETADDR, family, 0, 0)]
        found = (_address(body) for body in messages)
        return {Address(links[index].name if index in links else f"#{index}", cidr) for index, cidr in found}

    @contextmanager
    def _asking(self, op: str) -> Iterator[None]:
        """Errors of the socket as ours; it is closed then, since what is still in it answers nobody."""
        try:
            yield
        except BlockingIOError as error:
            self.close()
            raise KernelTimeout(op, 0) from error
        except OSError as error:
            self.close()
            raise KernelRefused(error.errno or 0, op) from error

    def close(self) -> None:
        """Close the socket; it opens again when needed."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _dump(self, what: int, family: int, table: int, protocol: int) -> list[bytes]:
        """One family's messages. A dump during which the table changed is not trusted: it is done again."""
        for _ in range(_ATTEMPTS):
            found = self._dump_once(what, family, table, protocol)
            if found is not None:
                return found
        raise BlockingIOError

    def _dump_once(self, what: int, family: int, table: int, protocol: int) -> list[bytes] | None:
        sock = self._open()
        self._sequence += 1
        sock.send(dump_request(what, family, self._sequence, table, protocol))
        found: list[bytes] = []
        whole = True
        while True:
            data = sock.recv(_DATAGRAM_BYTES)
            for kind, flags, sequence, body in frames(data):
                if sequence != self._sequence:
                    continue
                whole = whole and not flags & _NLM_F_DUMP_INTR
                if kind in (RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWRULE):
                    found.append(body)
                elif kind in (NLMSG_DONE, NLMSG_ERROR):
                    code = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
                    if code not in (0, errno.ENOENT):  # no such table: nobody has put a route there yet
                        raise OSError(code, "dump refused")
                    return found if whole else None

    def _open(self) -> socket.socket:
        if self._socket is None:
            flags = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            self._socket = socket.socket(socket.AF_NETLINK, flags, socket.NETLINK_ROUTE)
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)
            self._socket.bind((0, 0))
        return self._socket


def _named(body: bytes, names: dict[int, str | None]) -> Route | None:
    """A route; `names` remembers what the interfaces of this reading are called."""
    number = _interface(body)
    if number and number not in names:
        names[number] = _name(number)
    return _route(body, names[number] if number else None)


@lru_cache(maxsize=16384)
def _interface(body: bytes) -> int:
    """The index of the interface that a unicast route names, 0 if none."""
    _family, _length, _src, _tos, _table, _protocol, _scope, type_, _flags = RTMSG.unpack_from(body)
    index = dict(attributes(body, RTMSG.size)).get(_RTA_OIF)
    # the kernel shows `lo` on IPv6 blackholes, which nobody asked for
    return 0 if index is None or _KINDS.get(type_) != "unicast" else _number(index)


@lru_cache(maxsize=16384)
def _route(body: bytes, device: str | None) -> Route | None:
    """Remembered, as rules are: there is one for each prefix, and they are read every few seconds."""
    family, length, _src, _tos, table, protocol, _scope, type_, _flags = RTMSG.unpack_from(body)
    kind = _KINDS.get(type_)
    if family not in _WHOLE or kind is None:
        return None
    found = dict(attributes(body, RTMSG.size))
    gateway = found.get(_RTA_GATEWAY)
    if kind == "unicast" and gateway is None and _RTA_OIF not in found:
        return None
    return Route(
        prefix=f"{_text(family, found.get(_RTA_DST)) or _WHOLE[family]}/{length}",
        table=_number(found[_RTA_TABLE]) if _RTA_TABLE in found else table,
        device=device,
        via=_text(family, gateway),
        mtu_lock=_locked_mtu(found[_RTA_METRICS]) if _RTA_METRICS in found else None,
        protocol=protocol,
        kind=kind,
        source=_text(family, found.get(_RTA_PREFSRC)),
        metric=_number(found[_RTA_PRIORITY]) if _RTA_PRIORITY in found else None,
    )


@lru_cache(maxsize=16384)
def _rule(body: bytes) -> Rule:
    """Remembered: a gateway has one for each prefix, and they are read every few seconds."""
    family, to_length, source_length, _tos, table, _r1, _r2, _action, _flags = RTMSG.unpack_from(body)
    found = dict(attributes(body, RTMSG.size))
    source, to = _text(family, found.get(_FRA_SRC)), _text(family, found.get(_FRA_DST))
    return Rule(
        family="ipv6" if family == socket.AF_INET6 else "ipv4",
        priority=_number(found[_FRA_PRIORITY]) if _FRA_PRIORITY in found else 0,
        table=_number(found[_FRA_TABLE]) if _FRA_TABLE in found else table,
        source=f"{source}/{source_length}" if source else None,
        fwmark=_number(found[_FRA_FWMARK]) if _FRA_FWMARK in found else None,
        fwmask=_number(found[_FRA_FWMASK]) if _FRA_FWMASK in found else None,
        to=f"{to}/{to_length}" if to else None,
        protocol=found[_FRA_PROTOCOL][0] if _FRA_PROTOCOL in found else 0,
    )


def _link(body: bytes) -> tuple[int, Link]:
    _family, _kind, index, flags, _change = IFINFOMSG.unpack_from(body)
    found = dict(attributes(body, IFINFOMSG.size))
    kind = _string(dict(attributes(found.get(_IFLA_LINKINFO, b""), 0)).get(_IFLA_INFO_KIND))
    link = Link(
        name=_string(found.get(_IFLA_IFNAME)),
        kind="wireguard" if kind in _TUN_KINDS else kind,
        mtu=_number(found[_IFLA_MTU]) if _IFLA_MTU in found else 0,
        alias=_string(found.get(_IFLA_IFALIAS)),
        up=bool(flags & _IFF_UP),
    )
    return index, link


def _address(body: bytes) -> tuple[int, str]:
    """(index of the interface, address with prefix length)"""
    family, length, _flags, _scope, index = IFADDRMSG.unpack_from(body)
    found = dict(attributes(body, IFADDRMSG.size))
    return index, f"{_text(family, found.get(_IFA_LOCAL, found.get(_IFA_ADDRESS)))}/{length}"


@lru_cache(maxsize=64)
def _locked_mtu(metrics: bytes) -> int | None:
    found = dict(attributes(metrics, 0))
    if not _number(found.get(_RTAX_LOCK, b"\0\0\0\0")) & 1 << _RTAX_MTU or _RTAX_MTU not in found:
        return None
    return _number(found[_RTAX_MTU])


def _text(family: int, value: bytes | None) -> str | None:
    return None if value is None else socket.inet_ntop(family, value)


def _string(value: bytes | None) -> str:
    return (value or b"").rstrip(b"\0").decode(errors="replace")


def _number(value: bytes) -> int:
    return int(_NUMBER.unpack(value)[0])


def _name(index: int) -> str | None:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return None
