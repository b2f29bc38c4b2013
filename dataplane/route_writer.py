"""Writing one route, at once: on the failover's hot path nothing may be awaited between the decision and the kernel.

rtnetlink performs a request within the call that sends it, and the answer is there when that call returns. So there is
nothing to wait for, and a general library's encoding (0.3 ms, several ms on a loaded machine) is the only cost to save.
"""

import errno
import socket
import struct
from ipaddress import ip_address, ip_network
from typing import Literal

from dataplane.errors import KernelRefused, KernelTimeout
from dataplane.model import Route
from dataplane.namespace import entered
from dataplane.rtnetlink_wire import NLMSG_ERROR, RTM_DELROUTE, RTM_NEWROUTE

Verb = Literal["add", "replace", "del"]

_REQUEST_ACK = 0x1 | 0x4
_CREATE, _REPLACE, _EXCL = 0x400, 0x100, 0x200
_VERBS: dict[Verb, tuple[int, int]] = {
    "add": (RTM_NEWROUTE, _REQUEST_ACK | _CREATE | _EXCL),
    "replace": (RTM_NEWROUTE, _REQUEST_ACK | _CREATE | _REPLACE),
    "del": (RTM_DELROUTE, _REQUEST_ACK),
}
_TYPES = {"unicast": 1, "blackhole": 6, "unreachable": 7}
_SCOPE_UNIVERSE, _SCOPE_LINK, _SCOPE_NOWHERE = 0, 253, 255
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_METRICS, _RTA_TABLE = 1, 4, 5, 6, 7, 8, 15
_RTAX_LOCK, _RTAX_MTU = 1, 2
_HEADER = struct.Struct("=IHHII")
_RTMSG = struct.Struct("=BBBBBBBBI")
_ANSWER_BYTES = 1 << 16
_ABSENT = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV})


def encode(verb: Verb, route: Route, index: int, sequence: int) -> bytes:
    """The request; `index` is the interface's, 0 when the route names none."""
    network = ip_network(route.prefix)
    kind, flags = _VERBS[verb]
    scope = _SCOPE_UNIVERSE
    if verb == "del":
        scope = _SCOPE_NOWHERE  # any
    elif route.family == "ipv4" and route.kind == "unicast" and route.via is None:
        scope = _SCOPE_LINK  # without it the kernel wants a next hop
    family = socket.AF_INET if route.family == "ipv4" else socket.AF_INET6
    body = _RTMSG.pack(family, network.prefixlen, 0, 0, 0, route.protocol, scope, _TYPES[route.kind], 0)
    body += _number(_RTA_TABLE, route.table) + _attribute(_RTA_DST, network.network_address.packed)
    if index:
        body += _number(_RTA_OIF, index)
    if route.via is not None:
        body += _attribute(_RTA_GATEWAY, ip_address(route.via).packed)
    if route.source is not None:
        body += _attribute(_RTA_PREFSRC, ip_address(route.source).packed)
    if route.metric is not None:
        body += _number(_RTA_PRIORITY, route.metric)
    if route.mtu_lock is not None:
        metrics = _number(_RTAX_LOCK, 1 << _RTAX_MTU) + _number(_RTAX_MTU, route.mtu_lock)
        body += _attribute(_RTA_METRICS, metrics)
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


class RouteWriter:
    """One namespace's socket for route changes; opened at the first use, kept open."""

    def __init__(self, namespace: str | None = None) -> None:
        self._namespace = namespace
        self._socket: socket.socket | None = None
        self._sequence = 0

    def write(self, verb: Verb, route: Route) -> None:
        """Perform it now. Deleting what is gone already is no error.

        Raises KernelRefused with the kernel's errno; KernelTimeout when, against all rules, no answer is there.
        """
        op = f"{verb} {route}"
        try:
            answer = self._exchange(verb, route)
        except BlockingIOError as error:
            self.close()
            raise KernelTimeout(op, 0) from error
        except OSError as error:
            self.close()
            if verb == "del" and error.errno in _ABSENT:
                return
            raise KernelRefused(error.errno or 0, op) from error
        if answer and not (verb == "del" and answer in _ABSENT):
            raise KernelRefused(answer, op)

    def close(self) -> None:
        """Close the socket; it opens again when needed."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, verb: Verb, route: Route) -> int:
        index = 0
        if self._socket is None or (route.device is not None and route.kind == "unicast"):
            with entered(self._namespace):
                if self._socket is None:
                    flags = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                    self._socket = socket.socket(socket.AF_NETLINK, flags, socket.NETLINK_ROUTE)
                    self._socket.bind((0, 0))
                if route.device is not None and route.kind == "unicast":
                    # Asked each time: an interface that was made anew has another index.
                    index = socket.if_nametoindex(route.device)
        self._sequence += 1
        self._socket.send(encode(verb, route, index, self._sequence))
        while True:
            data = self._socket.recv(_ANSWER_BYTES)
            _, kind, _, sequence, _ = _HEADER.unpack_from(data)
            if kind == NLMSG_ERROR and sequence == self._sequence:
                return -int(struct.unpack_from("=i", data, _HEADER.size)[0])


def _attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + b"\0" * (-len(data) % 4)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))
