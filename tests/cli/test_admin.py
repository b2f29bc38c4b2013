"""The admin socket: who may open it, what it answers, and what it survives."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.admin import MAX_REQUEST_BYTES, AdminError, AdminServer, CommandRefused, ask, history_asked


async def dump(request: Mapping[str, Any]) -> object:
    """Answers with what it was asked."""
    return {"schema": 1, "history": history_asked(request)}


async def refuse(request: Mapping[str, Any]) -> object:
    """Has no answer."""
    raise CommandRefused("not the leader")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Path]:
    """The path of a socket that is served."""
    server = AdminServer(tmp_path / "run" / "orch-1.sock", {"dump": dump, "status": refuse})
    await server.start()
    yield tmp_path / "run" / "orch-1.sock"
    await server.close()


async def raw(path: Path, *lines: bytes) -> list[bytes]:
    """What comes back for these bytes until the other side closes."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"".join(lines))
    writer.write_eof()
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer.splitlines()


async def test_owner_and_group_may_open_it_and_nobody_else(served: Path) -> None:
    mode = await asyncio.to_thread(lambda: served.stat().st_mode)
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o660
    assert [path.name for path in served.parent.iterdir()] == ["orch-1.sock"]


async def test_it_answers_in_one_line(served: Path) -> None:
    assert await ask(served, {"cmd": "dump", "history": 5}) == {"schema": 1, "history": 5}
    lines = await raw(served, b'{"cmd":"dump"}\n', b'{"cmd":"dump","history":7}\n')
    assert [json.loads(line)["history"] for line in lines] == [0, 7]


async def test_a_refusal_reaches_who_asked(served: Path) -> None:
    with pytest.raises(CommandRefused, match="not the leader"):
        await ask(served, {"cmd": "status"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"dump\n", "a request is one line of JSON"),
        (b"\xff\xfe\n", "a request is one line of JSON"),
        (b"[" * 3000 + b"\n", "a request is one line of JSON"),
        (b"[]\n", "cmd is one of dump, status"),
        (b'{"cmd":["dump"]}\n', "cmd is one of dump, status"),
        (b'{"cmd":"dump","history":201}\n', "history is a whole number of 0 to 200"),
        (b'{"cmd":"dump","history":"x"}\n', "history is a whole number of 0 to 200"),
        (b'{"cmd":"shutdown"}\n', "cmd is one of dump, status"),
    ],
)
async def test_nonsense_is_answered_and_the_next_request_too(served: Path, line: bytes, said: str) -> None:
    first, second = await raw(served, line, b'{"cmd":"dump"}\n')
    assert json.loads(first) == {"error": said}
    assert json.loads(second)["schema"] == 1


async def test_a_line_without_end_is_not_collected(served: Path) -> None:
    assert await raw(served, b"x" * (MAX_REQUEST_BYTES * 4)) == []
    assert await ask(served, {"cmd": "dump"}) == {"schema": 1, "history": 0}


async def test_an_answer_longer_than_any_buffer(tmp_path: Path) -> None:
    async def long(request: Mapping[str, Any]) -> object:
        return {"text": "x" * 3_000_000}

    server = AdminServer(tmp_path / "a.sock", {"long": long})
    await server.start()
    assert len((await ask(tmp_path / "a.sock", {"cmd": "long"}))["text"]) == 3_000_000
    await server.close()


async def test_the_socket_of_a_dead_process_is_replaced_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    dead = await asyncio.start_unix_server(lambda reader, writer: None, path)
    dead.close()
    await dead.wait_closed()
    assert path.is_socket() or not path.exists()
    first, second = AdminServer(path, {"dump": dump}), AdminServer(path, {"dump": dump})
    await first.start()
    with pytest.raises(AdminError, match="another process serves this socket"):
        await second.start()
    assert await ask(path, {"cmd": "dump"}) == {"schema": 1, "history": 0}
    await first.close()
    assert not path.exists()


async def test_a_daemon_that_does_not_answer(tmp_path: Path) -> None:
    async def never(request: Mapping[str, Any]) -> object:
        await asyncio.Event().wait()
        return None

    server = AdminServer(tmp_path / "a.sock", {"never": never})
    await server.start()
    with pytest.raises(AdminError, match="no answer within 0 s; look at the daemon's log"):
        await ask(tmp_path / "a.sock", {"cmd": "never"}, timeout_s=0.2)
    await server.close()


async def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match=r"none\.sock: No such file or directory; is the daemon running"):
        await ask(tmp_path / "none.sock", {"cmd": "dump"})
