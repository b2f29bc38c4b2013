"""Writing routes, at once: on the failover's hot path nothing may be awaited between the decision and the kernel.

rtnetlink performs a request within the call that sends it, and the answer is there when that call returns. So there is
nothing to wait for, and a general library's encoding (0.3 ms, several ms on a loaded machine) is the only cost to save.
"""

import errno
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Literal

from dataplane.errors import KernelRefused, KernelTimeout
from dataplane.model import Route, Rule
from dataplane.namespace import entered
from dataplane.rtnetlink_wire import NLMSG_ERROR, RTM_DELROUTE, RTM_DELRULE, RTM_NEWROUTE, RTM_NEWRULE, frames

Verb = Literal["add", "replace", "del"]
Change = tuple[Verb, Route | Rule]

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
_FRA_DST, _FRA_SRC, _FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE, _FRA_FWMASK, _FRA_PROTOCOL = 1, 2, 6, 10, 15, 16, 21
_FR_ACT_TO_TBL = 1
_HEADER = struct.Struct("=IHHII")
_RTMSG = struct.Struct("=BBBBBBBBI")
_ANSWER_BYTES = 1 << 16
_AT_ONCE = 100
"""Messages in one call: each leaves an answer of up to 1 kB (with the kernel's own account) in a buffer of 208 kB."""
_ABSENT = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV})


def encode(verb: Verb, route: Route, index: int, sequence: int) -> bytes:
    """The request; `index` is the interface's, 0 when the route names none."""
    family, length, address = _destination(route.prefix)
    kind, flags = _VERBS[verb]
    scope = _SCOPE_UNIVERSE
    if verb == "del":
        scope = _SCOPE_NOWHERE  # any
    elif family == socket.AF_INET and route.kind == "unicast" and route.via is None:
        scope = _SCOPE_LINK  # without it the kernel wants a next hop
    body = _RTMSG.pack(family, length, 0, 0, 0, route.protocol, scope, _TYPES[route.kind], 0)
    body += _attribute(_RTA_DST, address)
    body += _way(route.table, index, route.via, route.source, route.metric, route.mtu_lock)
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


@lru_cache(maxsize=1024)
def _way(
    table: int, index: int, via: str | None, source: str | None, metric: int | None, mtu_lock: int | None
) -> bytes:
    """All of a route but its destination: a thousand pools that move together have one way."""
    body = _number(_RTA_TABLE, table)
    if index:
        body += _number(_RTA_OIF, index)
    if via is not None:
        body += _attribute(_RTA_GATEWAY, ip_address(via).packed)
    if source is not None:
        body += _attribute(_RTA_PREFSRC, ip_address(source).packed)
    if metric is not None:
        body += _number(_RTA_PRIORITY, metric)
    if mtu_lock is not None:
        metrics = _number(_RTAX_LOCK, 1 << _RTAX_MTU) + _number(_RTAX_MTU, mtu_lock)
        body += _attribute(_RTA_METRICS, metrics)
    return body


def encode_rule(verb: Verb, rule: Rule, sequence: int) -> bytes:
    """The request for a policy rule (linux/fib_rules.h). Raises ValueError for a verb that rules do not know."""
    if verb == "replace":
        raise ValueError(f"{rule}: a rule can't be replaced, only added and deleted")
    family = socket.AF_INET if rule.family == "ipv4" else socket.AF_INET6
    lengths, attributes = {"source": 0, "to": 0}, b""
    for name, prefix, kind in (("source", rule.source, _FRA_SRC), ("to", rule.to, _FRA_DST)):
        if prefix is not None:
            _, lengths[name], address = _destination(prefix)
            attributes += _attribute(kind, address)
    body = _RTMSG.pack(family, lengths["to"], lengths["source"], 0, 0, 0, 0, _FR_ACT_TO_TBL, 0) + attributes
    body += _number(_FRA_TABLE, rule.table) + _number(_FRA_PRIORITY, rule.priority)
    body += _attribute(_FRA_PROTOCOL, bytes((rule.protocol,)))
    if rule.fwmark is not None:
        body += _number(_FRA_FWMARK, rule.fwmark) + _number(_FRA_FWMASK, rule.fwmask or 0)
    kind, flags = (RTM_NEWRULE, _VERBS["add"][1]) if verb == "add" else (RTM_DELRULE, _VERBS["del"][1])
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was attempted: the `op` of an error. `more` others were in the same call."""

    verb: Verb
    what: Route | Rule
    more: int = 0

    def __str__(self) -> str:
        return f"{self.verb} {self.what}" + (f" and {self.more} more" if self.more else "")


@lru_cache(maxsize=4096)
def _destination(prefix: str) -> tuple[int, int, bytes]:
    """(address family, length, address) of a prefix."""
    network = ip_network(prefix)
    family = socket.AF_INET if network.version == 4 else socket.AF_INET6
    return family, network.prefixlen, network.network_address.packed


class RouteWriter:
    """One namespace's socket for changes of routes and rules; opened at the first use, kept open."""

    def __init__(self, namespace: str | None = None) -> None:
        self._namespace = namespace
        self._socket: socket.socket | None = None
        self._sequence = 0

    def write(self, verb: Verb, route: Route) -> None:
        """Perform it now. Deleting what is gone already is no error.

        Raises KernelRefused with the kernel's errno; KernelTimeout when, against all rules, no answer is there.
        """
        self.write_all([(verb, route)])

    def write_all(self, changes: Sequence[Change]) -> None:
        """Perform all of them now, in order, many in one call: some 20 microseconds each.

        One that fails keeps none of the others back. Raises KernelRefused for the first that failed, KernelTimeout
        when, against all rules, no answer is there.
        """
        failed: list[tuple[int, Change]] = []
        for start in range(0, len(changes), _AT_ONCE):
            part = changes[start : start + _AT_ONCE]
            try:
                failed += self._exchange(part)
            except BlockingIOError as error:
                self.close()
                raise KernelTimeout(Attempt(*part[0], len(part) - 1), 0) from error
            except OSError as error:
                self.close()
                raise KernelRefused(error.errno or 0, Attempt(*part[0], len(part) - 1)) from error
        if failed:
            code, change = failed[0]
            raise KernelRefused(code, Attempt(*change))

    def close(self) -> None:
        """Close the socket; it opens again when needed."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, changes: Sequence[Change]) -> list[tuple[int, Change]]:
        """One call for all of these; those that failed, with their errno."""
        failed: list[tuple[int, Change]] = []
        sent: dict[int, Change] = {}
        with entered(self._namespace):
            # Asked for each call: an interface that was made anew has another index.
            indexes = _indexes(changes)
            if self._socket is None:
                flags = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                self._socket = socket.socket(socket.AF_NETLINK, flags, socket.NETLINK_ROUTE)
                self._socket.bind((0, 0))
        requests: list[bytes] = []
        for verb, what in changes:
            index = indexes.get(what.device, 0) if isinstance(what, Route) and what.kind == "unicast" else 0
            if index is None:
                if verb != "del":  # with the interface its routes are gone
                    failed.append((errno.ENODEV, (verb, what)))
                continue
            self._sequence += 1
            sent[self._sequence] = (verb, what)
            if isinstance(what, Route):
                requests.append(encode(verb, what, index, self._sequence))
            else:
                requests.append(encode_rule(verb, what, self._sequence))
        if sent:
            self._socket.send(b"".join(requests))
            failed += self._answers(sent)
        return failed

    def _answers(self, sent: Mapping[int, Change]) -> list[tuple[int, Change]]:
        """Read until the last of them is answered; the errors. Each is answered before the next is looked at."""
        assert self._socket is not None
        last = max(sent)
        failed: list[tuple[int, Change]] = []
        while True:
            for kind, _flags, sequence, body in frames(self._socket.recv(_ANSWER_BYTES)):
                if kind != NLMSG_ERROR or sequence not in sent:
                    continue
                code = -int(struct.unpack_from("=i", body)[0])
                if code and not _harmless(code, *sent[sequence]):
                    failed.append((code, sent[sequence]))
                if sequence == last:
                    return failed


def _harmless(code: int, verb: Verb, what: Route | Rule) -> bool:
    """Taking away what is gone, and adding a rule that is there: a route that is there may be somebody else's."""
    return code in _ABSENT if verb == "del" else code == errno.EEXIST and isinstance(what, Rule)


def _indexes(changes: Sequence[Change]) -> dict[str | None, int | None]:
    """The index of each interface that these routes name; None for one that does not exist."""
    found: dict[str | None, int | None] = {None: 0}
    for _verb, route in changes:
        if (
            isinstance(route, Route)
            and route.kind == "unicast"
            and route.device is not None
            and route.device not in found
        ):
            try:
                found[route.device] = socket.if_nametoindex(route.device)
            except OSError:
                found[route.device] = None
    return found


def _attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + b"\0" * (-len(data) % 4)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))
