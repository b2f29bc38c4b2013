"""The few rtnetlink messages that the event reader needs, as bytes: no IO.

A general parser costs about 0.1 ms a message; on the failover's hot path, and under a burst of thousands of changes,
that decides whether the socket overruns. Layouts: linux/netlink.h, linux/rtnetlink.h, linux/if_link.h (host order).
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
NLMSG_ERROR, NLMSG_DONE = 2, 3
GROUPS = (1, 5, 7, 9, 11)
"""RTNLGRP_LINK, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE."""

_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_HEADER = struct.Struct("=IHHII")
RTMSG = struct.Struct("=BBBBBBBBI")
IFINFOMSG = struct.Struct("=BxHiII")
IFADDRMSG = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_TABLE = 1, 4, 5, 15
_IFLA_IFNAME = 3
_IFF_UP = 0x1
_RTN_UNICAST = 1
_WHOLE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


@dataclass(frozen=True)
class RouteMessage:
    """RTM_NEWROUTE or RTM_DELROUTE of one prefix; ``index`` is the interface, 0 when none is named."""

    added: bool
    prefix: str
    table: int
    index: int
    via: str | None
    sequence: int


@dataclass(frozen=True)
class LinkMessage:
    """RTM_NEWLINK or RTM_DELLINK; ``usable`` is false once it is gone or down."""

    index: int
    name: str
    usable: bool
    gone: bool


@dataclass(frozen=True)
class AddressRemoved:
    """RTM_DELADDR: the kernel drops the routes that depended on the address, for IPv4 without a message."""

    index: int


@dataclass(frozen=True)
class DumpDone:
    """The end of the dump that was asked for with this sequence number; ``error`` is an errno, 0 when it went well."""

    sequence: int
    error: int


Message = RouteMessage | LinkMessage | AddressRemoved | DumpDone


def dump_request(what: int, family: int, sequence: int, table: int = 0, protocol: int = 0) -> bytes:
    """A dump of links, addresses, rules or one table's routes: RTM_GETLINK, -ADDR, -RULE, -ROUTE, strict checking on.

    `protocol` 0 asks for the routes of all.
    """
    if what == RTM_GETRULE:
        body = RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)  # fib_rule_hdr has the same layout
    elif what == RTM_GETLINK:
        body = IFINFOMSG.pack(family, 0, 0, 0, 0)
    elif what == RTM_GETADDR:
        body = IFADDRMSG.pack(family, 0, 0, 0, 0)
    else:
        body = (
            RTMSG.pack(family, 0, 0, 0, 0, protocol, 0, 0, 0)
            + _ATTRIBUTE.pack(8, _RTA_TABLE)
            + struct.pack("=I", table)
        )
    return _HEADER.pack(_HEADER.size + len(body), what, _NLM_F_REQUEST | _NLM_F_DUMP, sequence, 0) + body


def parse(data: bytes) -> Iterator[Message]:
    """The messages of one datagram, in order; kinds that are of no interest are skipped."""
    for kind, _flags, sequence, body in frames(data):
        if kind in (RTM_NEWROUTE, RTM_DELROUTE):
            message = _route(body, kind == RTM_NEWROUTE, sequence)
            if message is not None:
                yield message
        elif kind in (RTM_NEWLINK, RTM_DELLINK):
            yield _link(body, kind == RTM_DELLINK)
        elif kind == RTM_DELADDR:
            yield AddressRemoved(struct.unpack_from("=I", body, 4)[0])
        elif kind in (NLMSG_DONE, NLMSG_ERROR):
            code = struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
            yield DumpDone(sequence, -code)


def frames(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(kind, flags, sequence, body) of each message of one datagram, up to one that is cut short."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, _port = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            return
        yield kind, flags, sequence, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def attributes(body: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """(kind, value) of each attribute of a message's body, from that offset on."""
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, body[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def _route(body: bytes, added: bool, sequence: int) -> RouteMessage | None:
    family, dst_len, _src, _tos, table, _protocol, _scope, kind, _flags = RTMSG.unpack_from(body)
    if family not in _WHOLE or (kind != _RTN_UNICAST and not added):
        return None
    added = added and kind == _RTN_UNICAST  # a blackhole that takes a route's place ends it
    destination, index, via = _WHOLE[family], 0, None
    for attribute, value in attributes(body, RTMSG.size):
        if attribute == _RTA_DST:
            destination = socket.inet_ntop(family, value)
        elif attribute == _RTA_OIF:
            index = struct.unpack("=I", value)[0]
        elif attribute == _RTA_GATEWAY:
            via = socket.inet_ntop(family, value)
        elif attribute == _RTA_TABLE:
            table = struct.unpack("=I", value)[0]
    return RouteMessage(added, f"{destination}/{dst_len}", table, index, via, sequence)


def _link(body: bytes, gone: bool) -> LinkMessage:
    _family, _kind, index, flags, _change = IFINFOMSG.unpack_from(body)
    name = ""
    for attribute, value in attributes(body, IFINFOMSG.size):
        if attribute == _IFLA_IFNAME:
            name = value.rstrip(b"\0").decode()
    return LinkMessage(index, name, not gone and bool(flags & _IFF_UP), gone)
