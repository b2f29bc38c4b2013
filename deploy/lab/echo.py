"""The pod: echoes what it is sent. Run as `python -I -S echo.py udp|tcp PORT ADDRESS...`; standard library only."""

import selectors
import socket
import sys

SO_RCVBUFFORCE = 33  # socket(7); as root, beyond what the machine allows everybody
ROOM_BYTES = 1 << 22
"""For seconds of questions that come while we have to wait for a processor: else they would seem lost on the way."""


def family_of(address: str) -> socket.AddressFamily:
    """The family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def echo_udp(addresses: list[str], port: int) -> None:
    """Send each datagram back where it came from, for ever."""
    with selectors.DefaultSelector() as selector:
        for address in addresses:
            server = socket.socket(family_of(address), socket.SOCK_DGRAM)
            server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM_BYTES)
            server.bind((address, port))
            server.setblocking(False)
            selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                answer(key.fileobj)  # type: ignore[arg-type]


def answer(server: socket.socket) -> None:
    """Send back all that is there."""
    while True:
        try:
            data, sender = server.recvfrom(65536)
        except BlockingIOError:
            return
        try:
            server.sendto(data, sender)
        except OSError as lost:
            # No route back just now: the asker counts it as lost, as it should.
            print(f"no answer to {sender}: {lost}", flush=True)


def echo_tcp(addresses: list[str], port: int) -> None:
    """Send each byte back on its connection, many connections at a time."""
    with selectors.DefaultSelector() as selector:
        servers = [socket.create_server((each, port), family=family_of(each), backlog=64) for each in addresses]
        for server in servers:
            selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj in servers:
                    connection, _ = key.fileobj.accept()
                    connection.settimeout(5.0)
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj  # type: ignore[assignment]
                try:
                    data = connection.recv(65536)
                    if data:
                        connection.sendall(data)
                except OSError:
                    data = b""  # The asker reset or hung: the connection is over, and it knows.
                if not data:
                    selector.unregister(connection)
                    connection.close()


if __name__ == "__main__":
    {"udp": echo_udp, "tcp": echo_tcp}[sys.argv[1]](sys.argv[3:], int(sys.argv[2]))
