"""What a dump may be answered with: old answers, one that was disturbed, a refusal, nothing."""

import errno
import socket
import struct
from collections.abc import Iterator

import pytest

from dataplane.errors import KernelRefused, KernelTimeout
from dataplane.rtnetlink_reader import RtnetlinkReader
from dataplane.rtnetlink_wire import NLMSG_DONE, NLMSG_ERROR, RTM_NEWLINK

DISTURBED = 0x10
"""NLM_F_DUMP_INTR (linux/netlink.h)."""


class Kernel:
    """The other end of the reader's socket; what it says is there before it is asked."""

    def __init__(self) -> None:
        self._socket, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        self.reader = RtnetlinkReader()
        self.reader._socket = ours

    def says(self, sequence: int, kind: int, body: bytes, flags: int = 0) -> None:
        data = struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body
        self._socket.send(data + b"\0" * (-len(data) % 4))

    def shows(self, sequence: int, name: str, flags: int = 0) -> None:
        """A whole dump with one interface of that name in it."""
        attribute = struct.pack("=HH", 5 + len(name), 3) + name.encode() + b"\0"
        self.says(sequence, RTM_NEWLINK, struct.pack("=BxHiII", 0, 1, 7, 1, 0) + attribute, flags)
        self.says(sequence, NLMSG_DONE, struct.pack("=i", 0))

    def names(self) -> list[str]:
        return [link.name for link in self.reader.read_links().values()]

    def close(self) -> None:
        self._socket.close()
        self.reader.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


def test_the_answer_to_an_older_question_is_passed_over(kernel: Kernel) -> None:
    kernel.shows(0, "old")
    kernel.shows(1, "new")
    assert kernel.names() == ["new"]


def test_a_dump_that_was_disturbed_is_done_again(kernel: Kernel) -> None:
    kernel.shows(1, "half", DISTURBED)
    kernel.shows(2, "whole")
    assert kernel.names() == ["whole"]


def test_what_changes_faster_than_it_can_be_read_is_said_and_begun_afresh(kernel: Kernel) -> None:
    for sequence in range(1, 6):
        kernel.shows(sequence, "half", DISTURBED)
    with pytest.raises(KernelTimeout, match="read links"):
        kernel.names()
    assert kernel.reader._socket is None


@pytest.mark.parametrize("kind", [NLMSG_DONE, NLMSG_ERROR])
def test_a_refusal_has_its_number_and_leaves_no_socket_with_half_an_answer(kernel: Kernel, kind: int) -> None:
    kernel.says(1, kind, struct.pack("=i", -errno.EPERM))
    with pytest.raises(KernelRefused, match="read links") as caught:
        kernel.names()
    assert caught.value.errno == errno.EPERM
    assert kernel.reader._socket is None


def test_a_table_that_nobody_has_made_is_empty(kernel: Kernel) -> None:
    for sequence in (1, 2):
        kernel.says(sequence, NLMSG_ERROR, struct.pack("=i", -errno.ENOENT))
    assert kernel.reader.read(10177) == set()


def test_silence_is_a_timeout_and_nothing_is_waited_for(kernel: Kernel) -> None:
    with pytest.raises(KernelTimeout, match="read links"):
        kernel.names()
    assert kernel.reader._socket is None
