"""The control socket's text: what is written, and above all what is not."""

import pytest

from dataplane.keys import PrivateKey, public_key_bytes
from dataplane.model import Peer, WireGuardDevice
from dataplane.uapi_text import answer_errno, parse_device, set_device, set_peers
from dataplane.wireguard import DeviceState, PeerState, PeerUpdate, peer_updates

KEY = PrivateKey(bytes(range(32))).public
OTHER = PrivateKey(bytes(range(1, 33))).public
HEX = public_key_bytes(KEY).hex()
ANSWER = f"""private_key={bytes(range(32)).hex()}
listen_port=51820
a_field_of_tomorrow=7
public_key={HEX}
preshared_key={"0" * 64}
protocol_version=1
endpoint=203.0.113.9:40123
last_handshake_time_sec=1700000000
last_handshake_time_nsec=500000000
tx_bytes=10
rx_bytes=20
persistent_keepalive_interval=25
allowed_ip=192.0.2.0/26
allowed_ip=2001:db8:2::/64
public_key={public_key_bytes(OTHER).hex()}
last_handshake_time_sec=0
last_handshake_time_nsec=0
tx_bytes=0
rx_bytes=0
persistent_keepalive_interval=0
errno=0

"""


def test_a_prefix_moves_by_adding_it_and_nothing_else_is_written() -> None:
    request = set_peers([PeerUpdate(KEY, frozenset({"192.0.2.0/26"}))])
    assert request == f"set=1\npublic_key={HEX}\nallowed_ip=192.0.2.0/26\n\n"


def test_everything_that_was_given_is_written_in_one_request() -> None:
    request = set_peers(
        [
            PeerUpdate(KEY, replace_allowed_ips=frozenset({"10.77.0.1/32"}), endpoint="203.0.113.1:1", keepalive_s=0),
            PeerUpdate(OTHER, remove=True),
        ]
    )
    assert request.split("\n") == [
        "set=1",
        f"public_key={HEX}",
        "endpoint=203.0.113.1:1",
        "persistent_keepalive_interval=0",
        "replace_allowed_ips=true",
        "allowed_ip=10.77.0.1/32",
        f"public_key={public_key_bytes(OTHER).hex()}",
        "remove=true",
        "",
        "",
    ]


@pytest.mark.parametrize("text", ["x\nprivate_key=0", "192.0.2.1/26"])
def test_a_bad_prefix_never_reaches_the_socket(text: str) -> None:
    with pytest.raises(ValueError):
        set_peers([PeerUpdate(KEY, frozenset({text}))])


def test_removing_and_changing_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="removed and changed"):
        set_peers([PeerUpdate(KEY, frozenset({"10.0.0.0/8"}), remove=True)])


def test_a_device_is_written_only_where_it_changes() -> None:
    assert set_device(listen_port=5) == "set=1\nlisten_port=5\n\n"
    assert set_device(PrivateKey(bytes(range(32)))) == f"set=1\nprivate_key={bytes(range(32)).hex()}\n\n"


def test_a_device_is_read_whole() -> None:
    assert parse_device(ANSWER) == DeviceState(
        listen_port=51820,
        public_key=KEY,
        peers={
            KEY: PeerState(
                frozenset({"192.0.2.0/26", "2001:db8:2::/64"}), "203.0.113.9:40123", 1700000000.5, 20, 10, 25
            ),
            OTHER: PeerState(frozenset(), None, None, 0, 0, None),
        },
    )


def test_the_errno_is_the_last_line() -> None:
    assert answer_errno(ANSWER) == 0
    assert answer_errno("errno=-98\n\n") == 98
    with pytest.raises(ValueError, match="no errno"):
        answer_errno("public_key=1\n\n")


def test_peers_that_are_right_are_left_alone() -> None:
    actual = parse_device(ANSWER)
    wanted = WireGuardDevice(
        "wg0",
        51820,
        {
            KEY: Peer(KEY, frozenset({"192.0.2.0/26", "2001:db8:2::/64"}), "198.51.100.1:1", 25),
            OTHER: Peer(OTHER),
        },
    )
    assert peer_updates(actual, wanted) == []


def test_a_prefix_that_a_peer_must_lose_is_parked_and_its_list_never_replaced() -> None:
    actual = parse_device(ANSWER)
    wanted = WireGuardDevice("wg0", 51820, {KEY: Peer(KEY, frozenset({"2001:db8:2::/64"}), None, 25)})
    assert peer_updates(actual, wanted, parking_key=OTHER) == [PeerUpdate(OTHER, frozenset({"192.0.2.0/26"}))]


def test_a_new_peer_is_made_with_its_endpoint() -> None:
    wanted = WireGuardDevice("wg0", None, {KEY: Peer(KEY, frozenset({"0.0.0.0/0"}), "203.0.113.1:51820", 25)})
    assert peer_updates(DeviceState(0, {}), wanted) == [
        PeerUpdate(KEY, frozenset({"0.0.0.0/0"}), endpoint="203.0.113.1:51820", keepalive_s=25)
    ]
