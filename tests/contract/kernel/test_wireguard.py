"""One suite for the WireGuard port: the fake, wireguard-go, and the kernel where it has WireGuard."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataplane.errors import Conflict, KernelRefused, KernelTimeout, KeyFileError
from dataplane.kernel import Kernel, LinuxKernel
from dataplane.keys import ensure_private_key, parking_key
from dataplane.model import Link, Peer, WireGuardDevice
from dataplane.namespace import entered
from dataplane.programs import Program, start_detached
from dataplane.wireguard import PeerUpdate, WireGuard, peer_updates
from dataplane.wireguard_kernel import KernelWireGuard, kernel_has_wireguard
from dataplane.wireguard_uapi import SOCKET_DIR, UserspaceWireGuard
from tests.contract.kernel.conftest import eventually, ip, need, unique
from tests.contract.kernel.fakes import FakeKernel, FakeWireGuard
from tests.freezing import freeze

ALIAS = "bgplb:gw-a"
POOL = "192.0.2.0/26"
TUNNEL = "10.77.0.1/32"
TAKEN_PORT = 51999


@dataclass
class Subject:
    """A WireGuard implementation and the kernel its interfaces are in."""

    wireguard: WireGuard
    kernel: Kernel
    again: Callable[[], WireGuard]
    namespace: str | None
    device: str


@pytest.fixture(params=["fake", "userspace", "kernel"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake_kernel = FakeKernel()
        fake = FakeWireGuard(fake_kernel, [TAKEN_PORT])
        yield Subject(fake, fake_kernel, lambda: fake, None, "bgplb-g0")
        return
    programs: tuple[Program, ...] = ("ip", "nft", "wireguard-go") if request.param == "userspace" else ("ip", "nft")
    need(*programs)
    namespace = request.getfixturevalue("namespace")
    kernel = LinuxKernel.of(namespace)
    device = unique("wg")
    made: list[WireGuard] = []

    def again() -> WireGuard:
        if request.param == "userspace":
            made.append(UserspaceWireGuard(kernel.netlink, namespace))
        else:
            made.append(KernelWireGuard(kernel.netlink, namespace))
        return made[-1]

    try:
        if request.param == "kernel" and not await kernel_has_wireguard(kernel.netlink, device):
            pytest.skip("needs a kernel with WireGuard (CONFIG_WIREGUARD)")
        with entered(namespace):
            holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        holder.bind(("0.0.0.0", TAKEN_PORT))
        yield Subject(again(), kernel, again, namespace, device)
        holder.close()
    finally:
        for wireguard in made:
            await wireguard.close()
        await kernel.close()


@pytest.fixture
async def device(subject: Subject, key_file: Path) -> str:
    """The subject's device, made."""
    ensure_private_key(key_file)
    await subject.wireguard.ensure_device(subject.device, key_file, 51820, 1280, ALIAS)
    return subject.device


async def test_a_device_is_made_as_asked(subject: Subject, device: str, key_file: Path) -> None:
    state = await subject.wireguard.read(device)
    assert state.listen_port == 51820
    assert state.public_key == ensure_private_key(key_file).public
    assert state.peers == {}
    links = {link.name: link for link in (await subject.kernel.read([])).links}
    assert links[device] == Link(device, "wireguard", 1280, ALIAS, up=True)


async def test_an_endpoint_and_prefixes_of_ipv6_are_read_back(subject: Subject, device: str) -> None:
    key = parking_key()
    both = frozenset({POOL, "2001:db8:2::/64", "::/0"})
    await subject.wireguard.update(device, [PeerUpdate(key, both, endpoint="[2001:db8::9]:4000")])
    peer = (await subject.wireguard.read(device)).peers[key]
    assert (peer.endpoint, peer.allowed_ips) == ("[2001:db8::9]:4000", both)


async def test_an_ipv6_prefix_moves_to_the_peer_that_it_is_added_to(subject: Subject, device: str) -> None:
    gateway, parking = parking_key(), parking_key()
    await subject.wireguard.update(device, [PeerUpdate(gateway, frozenset({POOL, "2001:db8:2::/64"}))])
    await subject.wireguard.update(device, [PeerUpdate(parking, frozenset({POOL, "2001:db8:2::/64"}))])
    peers = (await subject.wireguard.read(device)).peers
    assert peers[gateway].allowed_ips == frozenset()
    assert peers[parking].allowed_ips == {POOL, "2001:db8:2::/64"}


async def test_making_it_again_keeps_peers_and_takes_new_values(subject: Subject, device: str, key_file: Path) -> None:
    key = parking_key()
    await subject.wireguard.update(device, [PeerUpdate(key, frozenset({POOL}), endpoint="203.0.113.9:4000")])
    before = await subject.wireguard.read(device)
    restarted = subject.again()
    await restarted.ensure_device(device, key_file, 51820, 1280, ALIAS)
    assert await restarted.read(device) == before
    await restarted.ensure_device(device, key_file, 51821, 1300, ALIAS)
    after = await restarted.read(device)
    assert (after.listen_port, after.peers) == (51821, before.peers)


async def test_adding_a_prefix_takes_it_from_the_other_peer_and_touches_nothing_else(
    subject: Subject, device: str
) -> None:
    gateway, parking = parking_key(), parking_key()
    await subject.wireguard.update(
        device,
        [
            PeerUpdate(gateway, frozenset({POOL, TUNNEL}), endpoint="203.0.113.9:4000", keepalive_s=25),
            PeerUpdate(parking),
        ],
    )
    await subject.wireguard.update(device, [PeerUpdate(parking, frozenset({POOL}))])
    peers = (await subject.wireguard.read(device)).peers
    assert peers[parking].allowed_ips == {POOL}
    assert peers[gateway].allowed_ips == {TUNNEL}
    assert peers[gateway].endpoint == "203.0.113.9:4000"
    assert peers[gateway].keepalive_s == 25
    await subject.wireguard.update(device, [PeerUpdate(gateway, frozenset({POOL}))])
    peers = (await subject.wireguard.read(device)).peers
    assert peers[gateway].allowed_ips == {POOL, TUNNEL}
    assert peers[parking].allowed_ips == frozenset()


async def test_updates_of_one_call_are_applied_in_order(subject: Subject, device: str) -> None:
    first, second = parking_key(), parking_key()
    await subject.wireguard.update(
        device,
        [
            PeerUpdate(first, frozenset({POOL, "2001:db8:2::/64"})),
            PeerUpdate(second, frozenset({POOL}), keepalive_s=1),
            PeerUpdate(second, keepalive_s=0),
            PeerUpdate(first, replace_allowed_ips=frozenset({TUNNEL})),
        ],
    )
    peers = (await subject.wireguard.read(device)).peers
    assert peers[first].allowed_ips == {TUNNEL}
    assert peers[second].allowed_ips == {POOL}
    assert peers[second].keepalive_s is None
    await subject.wireguard.update(device, [PeerUpdate(first, remove=True), PeerUpdate(first, remove=True)])
    assert set((await subject.wireguard.read(device)).peers) == {second}


async def test_converging_peers_is_done_once(subject: Subject, device: str) -> None:
    gateway, parking, old = parking_key(), parking_key(), parking_key()
    await subject.wireguard.update(
        device, [PeerUpdate(gateway, frozenset({POOL, TUNNEL}), endpoint="203.0.113.9:4000"), PeerUpdate(old)]
    )
    wanted = WireGuardDevice(
        device, 51820, {gateway: Peer(gateway, frozenset({TUNNEL}), "203.0.113.77:1", 25), parking: Peer(parking)}
    )
    updates = peer_updates(await subject.wireguard.read(device), wanted, parking)
    assert not any(update.endpoint for update in updates if update.public_key == gateway)
    await subject.wireguard.update(device, updates)
    state = await subject.wireguard.read(device)
    assert state.peers[gateway].allowed_ips == {TUNNEL}
    assert state.peers[gateway].endpoint == "203.0.113.9:4000"
    assert state.peers[gateway].keepalive_s == 25
    assert old not in state.peers


async def test_a_port_that_is_taken_is_a_conflict_that_names_it(subject: Subject, key_file: Path) -> None:
    ensure_private_key(key_file)
    with pytest.raises(Conflict, match=str(TAKEN_PORT)):
        await subject.wireguard.ensure_device(subject.device, key_file, TAKEN_PORT, 1280, ALIAS)


async def test_a_foreign_interface_of_the_name_is_a_conflict(subject: Subject, key_file: Path) -> None:
    ensure_private_key(key_file)
    if isinstance(subject.kernel, FakeKernel):
        subject.kernel.state = type(subject.kernel.state)(links=frozenset({Link(subject.device, "tun", 1500)}))
    else:
        assert subject.namespace is not None
        ip("-n", subject.namespace, "tuntap", "add", "dev", subject.device, "mode", "tun")
    with pytest.raises(Conflict, match=f"interface {subject.device} exists but is not ours"):
        await subject.wireguard.ensure_device(subject.device, key_file, 51820, 1280, ALIAS)
    assert not next(link for link in (await subject.kernel.read([])).links if link.name == subject.device).ours


@pytest.fixture
def open_key_file(key_file: Path) -> Path:
    """A key file that the group may read."""
    ensure_private_key(key_file)
    key_file.chmod(0o640)
    return key_file


async def test_a_key_file_that_others_may_read_is_refused(subject: Subject, open_key_file: Path) -> None:
    with pytest.raises(KeyFileError, match="0640"):
        await subject.wireguard.ensure_device(subject.device, open_key_file, 51820, 1280, ALIAS)


async def test_an_absent_device_is_refused(subject: Subject) -> None:
    with pytest.raises(KernelRefused):
        await subject.wireguard.read(subject.device)


@pytest.fixture
async def userspace(namespace: str, key_file: Path) -> AsyncIterator[tuple[UserspaceWireGuard, LinuxKernel, str]]:
    need("ip", "wireguard-go")
    kernel = LinuxKernel.of(namespace)
    wireguard = UserspaceWireGuard(kernel.netlink, namespace, deadline_s=0.5)
    name = unique("wg")
    ensure_private_key(key_file)
    await wireguard.ensure_device(name, key_file, 51820, 1280, ALIAS)
    yield wireguard, kernel, name
    await wireguard.close()
    await kernel.close()


def process_of(name: str) -> int:
    """The pid of the wireguard-go that serves this interface."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if command[0].endswith(b"wireguard-go") and name.encode() in command:
                return int(entry.name)
    raise AssertionError(f"no wireguard-go serves {name}")


async def test_a_program_that_died_is_started_again(
    userspace: tuple[UserspaceWireGuard, LinuxKernel, str], key_file: Path
) -> None:
    wireguard, kernel, name = userspace
    os.kill(process_of(name), signal.SIGKILL)
    for _ in range(200):
        if await kernel.netlink.link(name) is None:
            break
        await asyncio.sleep(0.01)
    with pytest.raises(KernelRefused, match="no wireguard-go answers"):
        await wireguard.read(name)
    await wireguard.ensure_device(name, key_file, 51820, 1280, ALIAS)
    assert (await wireguard.read(name)).listen_port == 51820


async def test_a_frozen_program_is_a_timeout_and_not_a_no(
    userspace: tuple[UserspaceWireGuard, LinuxKernel, str],
) -> None:
    wireguard, _, name = userspace
    process = process_of(name)
    freeze(process)
    took_s: list[float] = []
    try:
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(KernelTimeout, match="read back"):
                await wireguard.read(name)
            took_s.append(time.monotonic() - began)
    finally:
        os.kill(process, signal.SIGCONT)
    assert took_s[1] < 0.75 * took_s[0], "who was silent is not waited for that long again"
    assert (await wireguard.read(name)).listen_port == 51820
    assert wireguard._controls[name]._patience_s == wireguard._deadline_s, "until it answers"


async def test_a_start_that_died_before_the_alias_is_taken_up(
    userspace: tuple[UserspaceWireGuard, LinuxKernel, str], namespace: str, key_file: Path
) -> None:
    wireguard, kernel, _ = userspace
    name = unique("wg")
    await start_detached("wireguard-go", name, namespace=namespace, deadline_s=5)
    await wireguard.ensure_device(name, key_file, None, 1280, ALIAS)
    link = await kernel.netlink.link(name)
    assert link is not None and link.ours


async def test_removing_the_interface_ends_its_program(
    userspace: tuple[UserspaceWireGuard, LinuxKernel, str],
) -> None:
    _, kernel, name = userspace
    process = process_of(name)
    await kernel.netlink.delete_link(name)

    def ended() -> bool:
        status = Path(f"/proc/{process}/status")
        return not status.exists() or "State:\tZ" in status.read_text()

    await eventually(ended, "the program's end")
    assert not (SOCKET_DIR / f"{name}.sock").exists()
