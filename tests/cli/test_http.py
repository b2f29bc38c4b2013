"""Metrics and health over HTTP."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from orchestrator.http import MAX_HEAD_BYTES, HttpError, HttpServer


class Served:
    """A running server, and what it says of itself."""

    def __init__(self) -> None:
        self.missing = ""
        self.registry = CollectorRegistry()
        self.server = HttpServer("127.0.0.1:0", self.registry, lambda: self.missing)

    async def send(self, data: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(data)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return await self.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server on a port that the kernel chose."""
    found = Served()
    await found.server.start()
    yield found
    await found.server.close()


async def test_health_and_readiness(served: Served) -> None:
    assert await served.get("/healthz") == (200, b"ok\n")
    assert await served.get("/readyz") == (200, b"ready\n")
    served.missing = "etcd unreachable for 4 s"
    assert await served.get("/readyz") == (503, b"etcd unreachable for 4 s\n")
    assert await served.get("/healthz?verbose") == (200, b"ok\n")


async def test_metrics(served: Served) -> None:
    Counter("bgplb_moves", "Moves", registry=served.registry).inc()
    status, body = await served.get("/metrics")
    assert status == 200
    assert b"bgplb_moves_total 1.0" in body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /secrets HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/9\r\n\r\n", 400),
        (b"GET /" + b"x" * (MAX_HEAD_BYTES * 2) + b" HTTP/1.1\r\n\r\n", 400),
    ],
)
async def test_nothing_else_is_served(served: Served, data: bytes, status: int) -> None:
    assert (await served.send(data))[0] == status
    assert (await served.get("/healthz"))[0] == 200


async def test_head_has_no_body(served: Served) -> None:
    assert await served.send(b"HEAD /healthz HTTP/1.1\r\n\r\n") == (200, b"")


async def test_a_port_that_is_taken_is_named(served: Served) -> None:
    address = f"127.0.0.1:{served.server.port}"
    second = HttpServer(address, served.registry, lambda: "")
    with pytest.raises(
        HttpError, match=rf"http {address}: .*in use.*; set http\.listen to another address, or to null"
    ):
        await second.start()
    assert second.port == 0
