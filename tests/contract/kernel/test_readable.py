"""Being called when a socket has something to read: also after it had an error, on the event loop of the daemons."""

import asyncio
import errno
import select
import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from dataplane.errors import KernelRefused
from dataplane.events import RouteEvents
from dataplane.icmp import EchoSocket
from dataplane.namespace import entered
from dataplane.probe import Prober
from dataplane.reach import Reach
from dataplane.readable import Readable
from orchestrator.clock import BootClock
from tests.contract.kernel.conftest import eventually, inside

RTMGRP_IPV4_IFADDR = 0x10
TIGHT_BYTES = 2048
"""For a few messages: the kernel doubles it, and what comes then is an overrun."""


class Ear:
    """A netlink socket that hears of addresses, and what was read from it: a length, or an error's number."""

    def __init__(self, namespace: str) -> None:
        with entered(namespace):
            self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TIGHT_BYTES)
        self.socket.bind((0, RTMGRP_IPV4_IFADDR))
        self.heard: list[int] = []
        self.errors: list[int] = []

    def read(self) -> None:
        try:
            self.heard.append(len(self.socket.recv(65536)))
        except BlockingIOError:
            return
        except OSError as error:
            self.errors.append(error.errno or 0)


@pytest.fixture
def ear(namespace: str) -> Iterator[Ear]:
    made = Ear(namespace)
    yield made
    made.socket.close()


def addresses(namespace: str, verb: str, count: int) -> None:
    first = ip_address("10.9.0.1")
    lines = "\n".join(f"address {verb} {first + number}/32 dev lo" for number in range(count))
    done = inside(namespace, "sh", "-c", f"ip -batch - <<'.'\n{lines}\n.")
    assert done.returncode == 0, done.stderr


async def test_an_error_of_the_socket_is_not_the_last_thing_heard(namespace: str, ear: Ear) -> None:
    readable = Readable(ear.socket.fileno(), ear.read)
    addresses(namespace, "add", 64)
    await asyncio.sleep(0.1)
    assert errno.ENOBUFS in ear.errors, "no overrun, so this test shows nothing"
    before = len(ear.heard)
    addresses(namespace, "delete", 1)
    await asyncio.sleep(0.1)
    assert len(ear.heard) > before
    readable.close()


async def test_nothing_is_told_once_it_is_closed(namespace: str, ear: Ear) -> None:
    Readable(ear.socket.fileno(), ear.read).close()
    addresses(namespace, "add", 1)
    await asyncio.sleep(0.1)
    assert ear.heard == []


async def test_what_was_not_read_yet_is_told_again(namespace: str, ear: Ear) -> None:
    addresses(namespace, "add", 3)
    readable = Readable(ear.socket.fileno(), ear.read)
    await asyncio.sleep(0.1)
    assert len(ear.heard) == 3
    readable.close()


@pytest.fixture
def exhausted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No descriptor is left to watch a socket with, until it is undone."""

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(select, "epoll", refuse)
        yield patch


async def test_probes_go_on_when_there_are_descriptors_again(exhausted: pytest.MonkeyPatch) -> None:
    prober = Prober("lo", "127.0.0.1", "127.0.0.1", 20, BootClock(), lambda _: None)
    reach = Reach(BootClock())
    reach.watch(["127.0.0.1"], 20)
    for asks in (prober, reach):
        asks.start()
    await asyncio.sleep(0.1)
    assert prober.evaluate().send_errno == errno.EMFILE
    assert reach.reached() == frozenset()
    exhausted.undo()
    await eventually(lambda: prober.evaluate().judgement.last_answered_s is not None, "an answer to the probe")
    await eventually(reach.reached, "an answer on the LAN")
    for asks in (prober, reach):
        asks.close()


async def test_a_socket_that_can_t_be_watched_is_closed(exhausted: pytest.MonkeyPatch) -> None:
    sock = EchoSocket(None, "127.0.0.1")
    with pytest.raises(KernelRefused, match="EMFILE"):
        sock.listen(lambda: None)
    assert sock._socket.fileno() == -1


async def test_an_agent_whose_routes_can_t_be_watched_is_told(
    namespace: str, exhausted: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = RouteEvents(4711, lambda _: None, lambda: None, namespace)
    refusing = select.epoll
    exhausted.undo()
    await events.start()
    monkeypatch.setattr(select, "epoll", refusing)
    events._reopen()  # as after an overrun
    with pytest.raises(KernelRefused, match="EMFILE"):
        await asyncio.wait_for(events.until_broken(), 1)
    events.close()
