"""Numbered UDP requests on an absolute schedule, one process sending and one receiving; standard library only.

Run in the client as `python -I -S prober.py PORT INTERVAL_US COUNT OUT ADDRESS...`; COUNT 0 means until SIGTERM. Each
number is sent to every address, one after the other, under one stamp. Stamps are CLOCK_MONOTONIC in ns, which is one
clock for all machines of the lab. Files, all of 64-bit integers in the machine's byte order: `OUT.sent` (the stamp of
sequence number i at place i), `OUT.answers` (in threes: place of the address, sequence number, stamp of arrival);
`OUT.start` (text) holds the stamp at which number 0 is due, and appears before it is sent.

Sender and receiver are two processes, not threads: neither waits for the other's interpreter lock, so a stamp is as
late as the scheduler makes it and no later.
"""

import array
import contextlib
import gc
import os
import secrets
import signal
import socket
import struct
import sys
import time
from pathlib import Path

LEAD_NS = 50_000_000
GRACE_S = 0.5
SO_RCVBUFFORCE = 33  # socket(7); as root, beyond what the machine allows everybody
ROOM_BYTES = 1 << 22
"""For seconds of answers that come while the receiver has to wait for a processor."""
PAYLOAD = struct.Struct("!QQ")


class Stop(Exception):
    """SIGTERM arrived."""


def stop(number: int, frame: object) -> None:
    """Signal handler: leave the loop at the next instruction."""
    raise Stop


def write_whole(path: str, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing."""
    Path(path + ".new").write_bytes(data)
    Path(path + ".new").replace(path)


def receive(connection: socket.socket, nonce: int, addresses: int, parent: int, out: str) -> None:
    """Stamp each answer on arrival until SIGTERM, or until the sender is gone."""
    answers = array.array("q")
    append, unpack, now, read = answers.append, PAYLOAD.unpack, time.monotonic_ns, connection.recv
    connection.settimeout(1.0)
    signal.signal(signal.SIGTERM, stop)
    try:
        while os.getppid() == parent:
            try:
                data = read(64)
            except TimeoutError:
                continue
            stamp_ns = now()
            if len(data) == PAYLOAD.size:
                number, run = unpack(data)
                if 0 <= run - nonce < addresses:
                    append(run - nonce)
                    append(number)
                    append(stamp_ns)
    except Stop:
        pass
    write_whole(out + ".answers", answers.tobytes()[: len(answers) // 3 * 24])


def send(
    connection: socket.socket, targets: list[tuple[str, int]], nonce: int, interval_ns: int, count: int, out: str
) -> None:
    """Send number i at start + i x interval, late ones at once, until `count` or SIGTERM."""
    stamps = array.array("q")
    numbered = [(nonce + place, target) for place, target in enumerate(targets)]
    append, pack, now, sleep, put = stamps.append, PAYLOAD.pack, time.monotonic_ns, time.sleep, connection.sendto
    # A flag and no exception: an exception could come between a stamp and its send, and that number would seem lost.
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    start_ns = now() + LEAD_NS
    write_whole(out + ".start", str(start_ns).encode())
    number = 0
    while not stopping and (number < count or count == 0):
        wait_ns = start_ns + number * interval_ns - now()
        if wait_ns > 0:
            sleep(wait_ns / 1e9)
        append(now())
        for run, target in numbered:
            with contextlib.suppress(OSError):  # no route just now: it stays unanswered and counts as lost
                put(pack(number, run), target)
        number += 1
    time.sleep(GRACE_S)
    write_whole(out + ".sent", stamps.tobytes())


def main() -> None:
    """Start the receiver, send, wait for the receiver's file."""
    port, interval_us, count, out, *addresses = sys.argv[1:]
    targets = [(address if ":" in address else f"::ffff:{address}", int(port)) for address in addresses]
    gc.disable()
    nonce = secrets.randbits(62)
    # One socket for both families: an IPv4 address is written as an IPv6 one (RFC 4291 section 2.5.5.2).
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as connection:
        connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        connection.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM_BYTES)
        connection.bind(("::", 0))
        parent = os.getpid()
        receiver = os.fork()
        if receiver == 0:
            receive(connection, nonce, len(targets), parent, out)
            return
        send(connection, targets, nonce, int(interval_us) * 1000, int(count), out)
        os.kill(receiver, signal.SIGTERM)
        os.waitpid(receiver, 0)


if __name__ == "__main__":
    main()
