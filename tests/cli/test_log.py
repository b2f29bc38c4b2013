"""The log: one line an event, and no secret in it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from fsm.records import HistoryEntry
from orchestrator import log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes; everything is as before afterwards."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield io.StringIO()
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_one_json_object_a_line_with_role_and_name(stream: io.StringIO) -> None:
    log.configure("info", "json", role="node_agent", name="gw-a", stream=stream)
    structlog.get_logger().debug("nothing")
    structlog.get_logger().info("announced", prefixes=["192.0.2.0/26"])
    logging.getLogger("grpc").warning("a library speaks: %s", 5)
    logging.getLogger("grpc").info("too low")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["event"], first["role"], first["name"], first["level"]) == ("announced", "node_agent", "gw-a", "info")
    assert first["prefixes"] == ["192.0.2.0/26"]
    assert (second["event"], second["name"], second["level"]) == ("a library speaks: 5", "gw-a", "warning")


def test_console_lines_carry_the_event(stream: io.StringIO) -> None:
    log.configure("info", "console", role="edge_agent", name="edge-1", stream=stream)
    structlog.get_logger().info("steered", pool="p")
    assert "steered" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_an_error_that_nobody_foresaw_is_written_with_its_place(stream: io.StringIO) -> None:
    log.configure("info", "json", role="edge_agent", name="edge-1", stream=stream)
    try:
        raise RuntimeError("here")
    except RuntimeError:
        log.failed()
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert "test_an_error_that_nobody_foresaw_is_written_with_its_place" in line["exception"]


def test_secrets_are_hidden_at_any_depth(stream: io.StringIO) -> None:
    log.configure("info", "json", role="r", name="n", stream=stream)
    structlog.get_logger().info(
        "x",
        private_key="SECRET",
        password="SECRET",
        nested={"etcd": {"clientSecret": "SECRET", "user": "u"}},
        items=[{"token": "SECRET"}, {"api-token": "SECRET"}],
        tokens_seen=3,
    )
    assert "SECRET" not in stream.getvalue()
    assert stream.getvalue().count(log.REDACTED) == 5
    assert json.loads(stream.getvalue())["tokens_seen"] == 3


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("key", True),
        ("preshared_key", True),
        ("PrivateKey", True),
        ("db.password", True),
        ("passphrase", True),
        ("public_key", False),
        ("store_key", False),
        ("private_key_file", False),
        ("monkey", False),
        ("keepalive", False),
        ("name", False),
    ],
)
def test_what_counts_as_a_secret(name: str, secret: bool) -> None:
    assert log.is_secret(name) is secret


def test_the_line_of_a_transition() -> None:
    entry = HistoryEntry(3, "ActiveHealthy", "FailureDetected", "OwnerUnfit", "session down", {}, 8, "gw-a", "gw-b", 1)
    assert log.transition("pool", "p", entry) == {
        "machine": "pool/p",
        "from": "ActiveHealthy",
        "to": "FailureDetected",
        "trigger": "OwnerUnfit",
        "cause": "session down",
        "epoch": 8,
        "owner": "gw-a",
        "target": "gw-b",
        "seq": 3,
    }
