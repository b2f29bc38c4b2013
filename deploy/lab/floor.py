"""Writes down each change of the edge kernel's routes with its time; standard library only.

Run in the edge as `python -I -S floor.py OUT TABLE...`. Each line of OUT is one JSON object: `t_ns` (CLOCK_MONOTONIC,
stamped when the message was read), `event` (new or del), `table`, `prefix`, `device` (interface index or null). The
line `{"event": "listening"}` comes first; `{"event": "overrun"}` says that the kernel dropped messages.

The floor of a failover is the time from the cut to the deletion, in BIRD's table, of a prefix that nothing of ours
manages: what BIRD and BFD alone need.
"""

import errno
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

NETLINK_ROUTE_GROUPS = 0x40 | 0x400  # RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE
RTM_NEWROUTE, RTM_DELROUTE = 24, 25
RTA_DST, RTA_OIF, RTA_TABLE = 1, 4, 15
QUIET_S = 0.1
LONGEST_NS = 2_000_000_000
HEADER, ROUTE, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HH")


def route_changes(data: bytes) -> Iterator[dict[str, Any]]:
    """The route messages in one read of a netlink socket (linux/rtnetlink.h)."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, *_ = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        if kind in (RTM_NEWROUTE, RTM_DELROUTE):
            yield one_route(kind, data[offset + HEADER.size : offset + length])
        offset += (length + 3) & ~3


def one_route(kind: int, body: bytes) -> dict[str, Any]:
    """One RTM_NEWROUTE or RTM_DELROUTE."""
    family, dst_bits, _, _, table, *_ = ROUTE.unpack_from(body)
    attributes: dict[int, bytes] = {}
    offset = ROUTE.size
    while offset + ATTRIBUTE.size <= len(body):
        length, name = ATTRIBUTE.unpack_from(body, offset)
        if length < ATTRIBUTE.size:
            break
        attributes[name] = body[offset + ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    nothing = bytes(4 if family == socket.AF_INET else 16)
    address = socket.inet_ntop(family, attributes.get(RTA_DST, nothing))
    return {
        "event": "new" if kind == RTM_NEWROUTE else "del",
        "table": int.from_bytes(attributes[RTA_TABLE], sys.byteorder) if RTA_TABLE in attributes else table,
        "prefix": f"{address}/{dst_bits}",
        "device": int.from_bytes(attributes[RTA_OIF], sys.byteorder) if RTA_OIF in attributes else None,
    }


def main() -> None:
    """Listen until killed."""
    tables = {int(argument) for argument in sys.argv[2:]}
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as listener,
        Path(sys.argv[1]).open("a", encoding="utf-8", buffering=1) as out,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        listener.bind((0, NETLINK_ROUTE_GROUPS))
        out.write('{"event": "listening"}\n')
        while True:
            # All of a burst is stamped before any of it is written: the pen must not take time from what is measured.
            hasten(True)
            changes = burst(listener)
            hasten(False)
            for stamp_ns, data in changes:
                if data is None:
                    out.write('{"event": "overrun"}\n')
                    continue
                for change in route_changes(data):
                    if change["table"] in tables:
                        out.write(json.dumps({"t_ns": stamp_ns, **change}) + "\n")


def hasten(on: bool) -> None:
    """Before everybody else gets the processor, or as before: a stamp that is late is taken for a move that is.

    Where that is not allowed (RT group scheduling, no CAP_SYS_NICE) stamps are as late as the machine makes them.
    """
    policy = os.SCHED_FIFO if on else os.SCHED_OTHER
    with suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(os.sched_get_priority_min(policy)))


def burst(listener: socket.socket) -> list[tuple[int, bytes | None]]:
    """What the kernel tells, from the first message that comes until it is quiet again; None for an overrun."""
    found: list[tuple[int, bytes | None]] = []
    listener.settimeout(None)
    end_ns = 0
    while True:
        try:
            data = listener.recv(1 << 16)
        except TimeoutError:
            return found
        except OSError as failed:
            if failed.errno != errno.ENOBUFS:
                raise
            found.append((time.monotonic_ns(), None))
            continue
        now_ns = time.monotonic_ns()
        found.append((now_ns, data))
        end_ns = end_ns or now_ns + LONGEST_NS
        if now_ns >= end_ns:
            return found  # it is never quiet here
        listener.settimeout(QUIET_S)


if __name__ == "__main__":
    main()
