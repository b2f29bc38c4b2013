"""What iproute2 makes is read as it is: links, addresses, and routes of kinds and with parts that we seldom make."""

from collections.abc import Iterator

import pytest

from dataplane.model import Address, Link, Route
from dataplane.rtnetlink_reader import RtnetlinkReader
from tests.contract.kernel.conftest import ip, need, wire

TABLE = 10177
PREFIX, PREFIX6 = "192.0.2.0/26", "2001:db8:2::/64"


@pytest.fixture
def reader(namespace: str) -> Iterator[RtnetlinkReader]:
    need("ip")
    wire(namespace, "left", "right")
    ip("-n", namespace, "addr", "add", "10.9.0.1/24", "dev", "left")
    made = RtnetlinkReader(namespace)
    yield made
    made.close()


def route(namespace: str, *words: str) -> None:
    ip("-n", namespace, "route", "add", "table", str(TABLE), "proto", "77", *words)


def test_a_link_has_its_state_and_a_tun_device_counts_as_wireguard(reader: RtnetlinkReader, namespace: str) -> None:
    ip("-n", namespace, "tuntap", "add", "tun0", "mode", "tun")
    ip("-n", namespace, "link", "set", "tun0", "mtu", "1400", "alias", "bgplb:edge-1")
    ip("-n", namespace, "link", "set", "right", "down")
    links = {link.name: link for link in reader.read_links().values()}
    assert links["tun0"] == Link("tun0", "wireguard", 1400, "bgplb:edge-1", up=False)
    assert links["left"] == Link("left", "veth", 1500, "", up=True)
    assert links["right"] == Link("right", "veth", 1500, "", up=False)


def test_of_an_address_with_a_peer_the_local_end_is_read(reader: RtnetlinkReader, namespace: str) -> None:
    ip("-n", namespace, "addr", "add", "10.9.1.1", "peer", "10.9.1.2/32", "dev", "right")
    links = reader.read_links()
    found = {address for address in reader.read_addresses(links) if ":" not in address.cidr}
    assert found >= {Address("right", "10.9.1.1/32"), Address("left", "10.9.0.1/24")}


def test_an_address_of_a_link_that_was_not_read_is_not_left_out(reader: RtnetlinkReader) -> None:
    """The interface came between the two questions."""
    index = next(number for number, link in reader.read_links().items() if link.name == "left")
    assert Address(f"#{index}", "10.9.0.1/24") in reader.read_addresses({})


def test_a_source_is_read_and_an_mtu_only_where_it_is_locked(reader: RtnetlinkReader, namespace: str) -> None:
    route(namespace, PREFIX, "dev", "left", "src", "10.9.0.1", "mtu", "1300")
    assert reader.read(TABLE) == {Route(PREFIX, TABLE, "left", source="10.9.0.1")}


def test_a_blackhole_has_no_interface_in_either_family(reader: RtnetlinkReader, namespace: str) -> None:
    for prefix in (PREFIX, PREFIX6):
        route(namespace, "blackhole", prefix)
    assert reader.read(TABLE) == {Route(prefix, TABLE, kind="blackhole") for prefix in (PREFIX, PREFIX6)}


def test_kinds_that_we_never_make_are_left_out(reader: RtnetlinkReader, namespace: str) -> None:
    route(namespace, "192.0.2.64/26", "nexthop", "dev", "left", "nexthop", "dev", "right")
    for kind, prefix in (("prohibit", "192.0.2.128/26"), ("throw", "192.0.2.192/26")):
        route(namespace, kind, prefix)
    route(namespace, PREFIX, "dev", "left")
    assert reader.read(TABLE) == {Route(PREFIX, TABLE, "left")}


def test_the_same_bytes_name_whatever_the_interface_is_called_by_now(reader: RtnetlinkReader, namespace: str) -> None:
    """Routes are remembered by their bytes, in which an interface is a number."""
    route(namespace, PREFIX, "dev", "left")
    assert reader.read(TABLE) == {Route(PREFIX, TABLE, "left")}
    for before, now in (("left", "other"), ("other", "left")):
        ip("-n", namespace, "link", "set", before, "name", now)
        assert reader.read(TABLE) == {Route(PREFIX, TABLE, now)}
