"""The client and the typed rows, against servers that say odd things."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from birdctl.client import BirdClient
from birdctl.commands import BfdSession, Bird, ProtocolState, Reconfigure
from birdctl.errors import BirdRefused, BirdTimeout, BirdUnreachable, ProtocolError

GREETING = b"0001 BIRD 2.0.12 ready.\n"


@pytest.fixture
def socket_path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="bgplb-birdctl-"))
    yield folder / "bird.ctl"
    shutil.rmtree(folder)


@asynccontextmanager
async def server(path: Path, *answers: bytes, greeting: bytes = GREETING) -> AsyncIterator[list[str]]:
    """A server that gives one answer a command, then hangs up; yields the commands it was given."""
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        for answer in answers:
            line = await reader.readline()
            if not line:
                break
            heard.append(line.decode().rstrip("\n"))
            writer.write(answer)
        else:
            await reader.readline()
        writer.close()

    listening = await asyncio.start_unix_server(serve, path)
    try:
        yield heard
    finally:
        listening.close()
        await listening.wait_closed()


async def test_an_absent_socket_names_the_path_and_what_to_do(socket_path: Path) -> None:
    with pytest.raises(BirdUnreachable, match=r"bird\.ctl is unreachable: .*see whether its service runs") as caught:
        await BirdClient(socket_path).command("show status")
    assert caught.value.path == socket_path
    assert not caught.value.sent


@pytest.mark.parametrize("text", ["", "  ", "show status\ndisable all", "show\tstatus", "show \x00", "show\r"])
async def test_a_text_that_could_be_two_commands_is_refused_before_it_is_sent(socket_path: Path, text: str) -> None:
    async with server(socket_path, b"0000 \n") as heard:
        client = BirdClient(socket_path)
        with pytest.raises(ValueError, match="command"):
            await client.commands(("show status", text))
        assert not heard
        await client.close()


async def test_a_name_cannot_carry_a_command(socket_path: Path) -> None:
    bird = Bird(BirdClient(socket_path))
    calls: tuple[Callable[[str], Awaitable[object]], ...] = (bird.enable, bird.disable, bird.exported, bird.routes)
    for call in calls:
        with pytest.raises(ValueError, match=r"quote|not the name"):
            await call('a" all')


def test_a_deadline_must_be_above_zero(socket_path: Path) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        BirdClient(socket_path, timeout_s=0)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH\n", b"0013 not a greeting\n"])
async def test_another_daemons_socket_is_a_protocol_error(socket_path: Path, greeting: bytes) -> None:
    async with server(socket_path, greeting=greeting):
        with pytest.raises(ProtocolError):
            await BirdClient(socket_path).command("show status")


async def test_silence_instead_of_a_greeting_is_a_timeout_and_nothing_was_sent(socket_path: Path) -> None:
    async with server(socket_path, greeting=b""):
        with pytest.raises(BirdTimeout, match="was not sent") as caught:
            await BirdClient(socket_path, timeout_s=0.1).command("show status")
    assert not caught.value.sent


async def test_half_a_reply_and_then_silence_is_indeterminate(socket_path: Path) -> None:
    async with server(socket_path, b"0011-a: ena"):
        client = BirdClient(socket_path, timeout_s=0.1)
        with pytest.raises(BirdTimeout, match="read back") as caught:
            await client.command('enable "a"')
    assert caught.value.sent


async def test_a_reply_nobody_asked_for_ends_the_connection(socket_path: Path) -> None:
    async with server(socket_path, b"0013 one\n0013 two too many\n", b"0013 three\n") as heard:
        client = BirdClient(socket_path)
        assert (await client.command("first")).text == "one"
        assert (await client.command("second")).text == "one"
        assert heard == ["first", "second"]
        await client.close()


async def test_rows_with_a_date_in_two_words(socket_path: Path) -> None:
    """The operator's own BIRD may use `timeformat protocol iso long`."""
    rows = (
        b"2002-Name       Proto      Table      State  Since         Info\n"
        b"1002-transit    BGP        ---        up     2026-01-02 03:04:05.678  Established   \n"
        b" kernel1    Kernel     master4    down   12:00:00.000  \n0000 \n"
    )
    async with server(socket_path, rows):
        bird = Bird(BirdClient(socket_path))
        assert await bird.protocols() == (
            ProtocolState("transit", "BGP", "---", True, "up", "2026-01-02 03:04:05.678", "Established"),
            ProtocolState("kernel1", "Kernel", "master4", False, "down", "12:00:00.000", ""),
        )
        await bird.client.close()


async def test_bfd_rows_of_several_protocols(socket_path: Path) -> None:
    rows = (
        b"1020-one:\n IP address  Interface  State      Since         Interval  Timeout\n"
        b" 10.77.0.1                 bgplb-g0   Up         2026-01-02 03:04:05.678    0.050    0.150\n \n"
        b" two:\n fd77::1  ---  Down  12:00:00.000  0.300  0.000\n0000 \n"
    )
    async with server(socket_path, rows, b"9001 There is no BFD protocol running\n"):
        bird = Bird(BirdClient(socket_path))
        assert await bird.bfd_sessions() == (
            BfdSession(ip_address("10.77.0.1"), "bgplb-g0", "Up", "2026-01-02 03:04:05.678", 50.0, 150.0),
            BfdSession(ip_address("fd77::1"), None, "Down", "12:00:00.000", 300.0, 0.0),
        )
        assert await bird.bfd_sessions() == ()
        await bird.client.close()


async def test_routes_of_one_network_count_once(socket_path: Path) -> None:
    rows = (
        b"1007-Table master4:\n 192.0.2.0/26         unicast [a 12:00:00] * (100) [AS64513i]\n"
        b" \tvia 10.77.0.1 on bgplb-g0\n                      unicast [b 12:00:00] (100) [AS64513i]\n"
        b" \tvia 10.77.1.1 on bgplb-g1\n \n Table master6:\n 2001:db8:2::/64      unicast [a 12:00:00] * (100)\n0000 \n"
    )
    async with server(socket_path, rows, b"8001 Network not found\n"):
        bird = Bird(BirdClient(socket_path))
        assert await bird.exported("a") == (ip_network("192.0.2.0/26"), ip_network("2001:db8:2::/64"))
        assert await bird.exported("a") == ()
        await bird.client.close()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"0002-Reading\n0003 Reconfigured\n", Reconfigure.DONE),
        (b"0002-Reading\n0004 Reconfiguration in progress\n", Reconfigure.IN_PROGRESS),
        (b"0002-Reading\n0005 Already in progress, queueing\n", Reconfigure.QUEUED),
    ],
)
async def test_configure_by_code(socket_path: Path, answer: bytes, outcome: Reconfigure) -> None:
    async with server(socket_path, answer) as heard:
        bird = Bird(BirdClient(socket_path))
        assert await bird.configure_soft() is outcome
        assert heard == ["configure soft"]
        await bird.client.close()


async def test_a_bird_that_shuts_down_has_not_taken_the_configuration(socket_path: Path) -> None:
    async with server(socket_path, b"0002-Reading\n0006 Reconfiguration ignored, shutting down\n"):
        bird = Bird(BirdClient(socket_path))
        with pytest.raises(BirdRefused, match="0006"):
            await bird.configure_soft()
        await bird.client.close()
