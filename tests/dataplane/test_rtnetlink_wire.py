"""rtnetlink as bytes: what a datagram is read as."""

import socket
import struct

import pytest

from dataplane.rtnetlink_wire import (
    RTM_DELROUTE,
    RTM_GETROUTE,
    RTM_NEWROUTE,
    AddressRemoved,
    DumpDone,
    LinkMessage,
    RouteMessage,
    dump_request,
    parse,
)


def attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + b"\0" * (-len(data) % 4)


def message(kind: int, body: bytes, sequence: int = 0) -> bytes:
    data = struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, 0) + body
    return data + b"\0" * (-len(data) % 4)


def route(kind: int, *, table: int = 10177, what: int = 1, family: int = socket.AF_INET) -> bytes:
    header = struct.pack("=BBBBBBBBI", family, 32, 0, 0, table if table < 256 else 252, 12, 0, what, 0)
    attributes = attribute(15, struct.pack("=I", table)) + attribute(1, socket.inet_aton("10.78.0.1"))
    attributes += attribute(4, struct.pack("=I", 7)) + attribute(5, socket.inet_aton("10.77.0.1"))
    return message(kind, header + attributes)


EXPECTED = RouteMessage(True, "10.78.0.1/32", 10177, 7, "10.77.0.1", 0)


def test_several_messages_of_one_datagram_in_order() -> None:
    removed = RouteMessage(False, "10.78.0.1/32", 10177, 7, "10.77.0.1", 0)
    assert list(parse(route(RTM_NEWROUTE) + route(RTM_DELROUTE))) == [EXPECTED, removed]


def test_a_blackhole_in_a_route_s_place_is_its_end() -> None:
    (found,) = parse(route(RTM_NEWROUTE, what=6))
    assert isinstance(found, RouteMessage) and not found.added
    assert list(parse(route(RTM_DELROUTE, what=6))) == []


def test_links_addresses_and_ends_of_dumps() -> None:
    up = message(16, struct.pack("=BxHiII", 0, 1, 7, 1, 0) + attribute(3, b"bgplb-g0\0"))
    down = message(16, struct.pack("=BxHiII", 0, 1, 7, 0, 0) + attribute(3, b"bgplb-g0\0"))
    gone = message(17, struct.pack("=BxHiII", 0, 1, 7, 1, 0) + attribute(3, b"bgplb-g0\0"))
    address = message(21, struct.pack("=BBBBI", 2, 31, 0, 0, 7))
    done, failed = message(3, struct.pack("=i", 0), 5), message(2, struct.pack("=i", -2), 6)
    assert list(parse(up + down + gone + address + done + failed)) == [
        LinkMessage(7, "bgplb-g0", usable=True, gone=False),
        LinkMessage(7, "bgplb-g0", usable=False, gone=False),
        LinkMessage(7, "bgplb-g0", usable=False, gone=True),
        AddressRemoved(7),
        DumpDone(5, 0),
        DumpDone(6, 2),
    ]


@pytest.mark.parametrize("cut", range(len(route(RTM_NEWROUTE))))
def test_a_torn_message_is_no_message(cut: int) -> None:
    whole = route(RTM_NEWROUTE)
    assert list(parse(whole[:cut])) == []
    assert list(parse(whole + whole[:cut])) == [EXPECTED]


def test_a_message_without_length_ends_the_datagram() -> None:
    assert list(parse(b"\0" * 32)) == []


def test_a_dump_of_one_table_names_it() -> None:
    request = dump_request(RTM_GETROUTE, socket.AF_INET, 9, 10177)
    assert struct.unpack_from("=IHHII", request) == (len(request), RTM_GETROUTE, 0x301, 9, 0)
    assert request[-4:] == struct.pack("=I", 10177)
