"""The pod: echoes what it is sent. Run as `python -I -S echo.py udp|tcp ADDRESS PORT`; standard library only."""

import selectors
import socket
import sys


def echo_udp(address: str, port: int) -> None:
    """Send each datagram back where it came from, for ever."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        receive, send = server.recvfrom, server.sendto
        while True:
            data, sender = receive(2048)
            try:
                send(data, sender)
            except OSError as lost:
                # No route back just now: the asker counts it as lost, as it should.
                print(f"no answer to {sender}: {lost}", flush=True)


def echo_tcp(address: str, port: int) -> None:
    """Send each byte back on its connection, many connections at a time."""
    with selectors.DefaultSelector() as selector, socket.create_server((address, port), backlog=64) as server:
        selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is server:
                    connection, _ = server.accept()
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
    {"udp": echo_udp, "tcp": echo_tcp}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
