"""Numbered ICMP echo over a raw socket: packets as bytes, and the socket that sends and collects them."""

import errno
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

from dataplane.errors import KernelRefused
from dataplane.namespace import entered
from dataplane.readable import Readable

SMALL_BYTES = 16
"""Payload of an ordinary echo request: the token and the number."""

_SO_BINDTODEVICE = socket.SO_BINDTODEVICE
_ICMP_FILTER = 1  # linux/icmp.h
_SOL_RAW, _SOL_ICMPV6 = 255, 58
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER = 10, 23
_PMTUDISC_PROBE = 3
"""Sets DF, and ignores what an earlier ICMP error said about the path: each packet is a fresh question."""
_HEADER = struct.Struct("!BBHHH")
_PAYLOAD = struct.Struct("!8sQ")
_LIMIT = 256
_HEAD_BYTES = 128
"""All of an answer that is looked at: the longest IPv4 header, and what :data:`SMALL_BYTES` holds."""


@dataclass(frozen=True)
class _Protocol:
    family: socket.AddressFamily
    number: int
    request: int
    reply: int
    ip_header_bytes: int


_V4 = _Protocol(socket.AF_INET, socket.IPPROTO_ICMP, 8, 0, 20)
_V6 = _Protocol(socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, 129, 40)


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071): in one's complement a sum of 16-bit words is a remainder by 0xFFFF."""
    return ~(int.from_bytes(data + b"\0" * (len(data) % 2)) % 0xFFFF) & 0xFFFF


class EchoSocket:
    """One raw socket for echo requests from one address or device. Answers that are not ours are not seen.

    Each request carries a random token and a 64-bit number, so an answer to an earlier process of ours is not taken
    for one to this.
    """

    def __init__(
        self, source: str | None, destination_family: str, device: str | None = None, namespace: str | None = None
    ) -> None:
        """`destination_family`: any address of the family to be asked. Raises KernelRefused (needs CAP_NET_RAW)."""
        self._protocol = _V4 if ip_address(destination_family).version == 4 else _V6
        self._token = os.urandom(8)
        self._identifier = int.from_bytes(os.urandom(2), "big")
        self._readable: Readable | None = None
        try:
            with entered(namespace):
                self._socket = self._open(source, device)
        except OSError as error:
            raise KernelRefused(error.errno or 0, f"open an ICMP socket on {device or source}") from error

    def _open(self, source: str | None, device: str | None) -> socket.socket:
        protocol = self._protocol
        sock = socket.socket(protocol.family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol.number)
        try:
            sock.setblocking(False)
            if protocol is _V4:
                sock.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", 0xFFFFFFFF & ~(1 << protocol.reply)))
                sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
            else:
                passing = bytearray(b"\xff" * 32)
                passing[protocol.reply // 32 * 4 + protocol.reply % 32 // 8] &= ~(1 << protocol.reply % 8) & 0xFF
                sock.setsockopt(_SOL_ICMPV6, _ICMP_FILTER, bytes(passing))
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
            if device is not None:
                sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, device.encode())
            if source is not None:
                sock.bind((source, 0))
        except OSError:
            sock.close()
            raise
        return sock

    def listen(self, on_readable: Callable[[], None]) -> None:
        """Be called from the event loop when there may be answers to :meth:`receive`, until the socket is closed.

        Raises KernelRefused, with the socket closed.
        """
        try:
            self._readable = Readable(self._socket.fileno(), on_readable)
        except KernelRefused:
            self.close()
            raise

    def renew_identifier(self) -> None:
        """Ask under another ICMP identifier from now on: to every connection tracker on the way a new connection.

        A flow that was tracked before a translation rule existed is never translated as long as it is kept alive.
        """
        self._identifier = (self._identifier + 1) & 0xFFFF

    def send(self, destination: str, number: int, packet_bytes: int | None = None) -> int:
        """Send request `number`; `packet_bytes` is the size of the whole IP packet (None: small).

        Returns 0, or the errno with which the packet could not leave. That is an observation, not a failure of ours.
        """
        data = self._request(number, packet_bytes)
        try:
            self._socket.sendto(data, (destination, 0))
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def receive(self, on_answer: Callable[[int, str], bool | None]) -> None:
        """Take the answers that are there, without waiting: `on_answer(number, from)`; when it says true, no more."""
        for _ in range(_LIMIT):
            try:
                data, address = self._socket.recvfrom(_HEAD_BYTES)
            except BlockingIOError:
                return
            except OSError:
                # An ICMP error or a device that went away, reported once: the unanswered request says the same.
                continue
            number = self._number_of(data)
            if number is not None and on_answer(number, address[0]):
                return

    def close(self) -> None:
        """Close the socket."""
        if self._readable is not None:
            self._readable.close()
        self._socket.close()

    def _request(self, number: int, packet_bytes: int | None) -> bytes:
        payload = _PAYLOAD.pack(self._token, number)
        if packet_bytes is not None:
            payload = payload.ljust(packet_bytes - self._protocol.ip_header_bytes - _HEADER.size, b"\0")
        header = _HEADER.pack(self._protocol.request, 0, 0, self._identifier, number & 0xFFFF)
        if self._protocol is _V4:  # for ICMPv6 the kernel does it: its sum covers addresses too
            sum_ = checksum(header + payload)
            header = _HEADER.pack(self._protocol.request, 0, sum_, self._identifier, number & 0xFFFF)
        return header + payload

    def _number_of(self, data: bytes) -> int | None:
        offset = (data[0] & 0x0F) * 4 if self._protocol is _V4 and data else 0
        if len(data) < offset + _HEADER.size + _PAYLOAD.size or data[offset] != self._protocol.reply:
            return None
        token, number = _PAYLOAD.unpack_from(data, offset + _HEADER.size)
        return int(number) if token == self._token else None
