"""Connections that the other side resets, on the event loop of the daemons: there even a write may raise."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dataplane import wireguard_uapi
from orchestrator.admin import AdminServer


@pytest.fixture
async def complaints() -> list[Mapping[str, Any]]:
    """What tasks and callbacks ended with that nobody was there to see."""
    seen: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    return seen


class RudePeer:
    """A server that, with each caller, does as it was told and closes with bytes unread: a reset."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen()
        self.callers = 0

    def serve(self, *acts: Callable[[socket.socket], None]) -> None:
        """One act for each caller, in a thread."""

        def work() -> None:
            for act in acts:
                caller, _ = self._listening.accept()
                self.callers += 1
                caller.settimeout(10)
                act(caller)
                caller.close()

        threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def rude(tmp_path: Path) -> Iterator[RudePeer]:
    peer = RudePeer(tmp_path / "wg9.sock")
    yield peer
    peer.close()


def read_to(caller: socket.socket, end: bytes) -> None:
    data = b""
    while not data.endswith(end):
        data += caller.recv(1)


async def test_who_asks_the_admin_socket_and_is_gone_leaves_no_error(
    tmp_path: Path, complaints: list[Mapping[str, Any]]
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: Mapping[str, Any]) -> object:
        asked.set()
        await go_on.wait()
        return {}

    async def quick(_request: Mapping[str, Any]) -> object:
        return {}

    server = AdminServer(tmp_path / "a.sock", {"slow": slow, "quick": quick})
    await server.start()
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.connect(str(tmp_path / "a.sock"))
    caller.send(b'{"cmd":"quick"}\n{"cmd":"slow"}\n')
    await asyncio.wait_for(asked.wait(), 5)
    caller.close()  # with the first answer unread
    await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.sleep(0.05)
    await server.close()
    assert complaints == []


async def test_a_wireguard_go_that_reset_the_connection_is_asked_on_a_new_one(
    tmp_path: Path, rude: RudePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wireguard_uapi, "SOCKET_DIR", tmp_path)
    control = wireguard_uapi._Control("wg9", 5.0)

    def half_read(caller: socket.socket) -> None:
        caller.recv(3)
        caller.send(b"errno=0\n\n")

    def whole(caller: socket.socket) -> None:
        read_to(caller, b"\n\n")
        caller.send(b"listen_port=7\nerrno=0\n\n")

    rude.serve(half_read, whole)
    assert await control.exchange("get=1\n\n", "get") == "errno=0\n\n"
    await asyncio.sleep(0.05)
    assert control._streams is not None and control._streams[1].is_closing(), "no reset, so this test shows nothing"
    assert await control.exchange("get=1\n\n", "get") == "listen_port=7\nerrno=0\n\n"
    assert rude.callers == 2
    control.close()
