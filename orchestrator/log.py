"""The log: one line an event on standard error, JSON or for people, and never a secret in it."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

from fsm.records import HistoryEntry
from orchestrator.log_stream import LossyStream

REDACTED = "(redacted)"
_SECRET_WORDS = frozenset({"key", "password", "passphrase", "secret", "token"})
_HARMLESS = frozenset({"public_key", "store_key", "password_file", "private_key_file", "key_file"})
"""Names with such a word whose value is public: keys that are made to be shown, places, and keys of etcd."""

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, format_: str, *, role: str, name: str, stream: TextIO | None = None) -> None:
    """Set the log of this process up; `level` and `format_` as in the configuration's section `log`.

    Every line carries `role` and `name`. Lines of libraries go the same way, from `warning` on. Without `stream` it is
    standard error, which is never waited for.
    """
    out = stream if stream is not None else cast(TextIO, LossyStream(sys.stderr.fileno()))
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redact,
    ]
    renderer = _renderer(format_, out)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(role=role, name=name)
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), handlers=[handler], force=True)


def failed() -> None:
    """Write the exception that is being handled, with its place: an error that nobody foresaw."""
    structlog.get_logger().error("internal error", exc_info=True)


def _renderer(format_: str, out: TextIO) -> Any:
    if format_ == "console":
        return structlog.dev.ConsoleRenderer(colors=out.isatty())
    return structlog.processors.JSONRenderer(sort_keys=False)


def redact(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide the value of whatever is named like a secret, at any depth. A structlog processor."""
    return {name: _clean(str(name), value) for name, value in event.items()}


def is_secret(name: str) -> bool:
    """Whether a field of this name may hold a secret: one of its words is key, password, secret or token."""
    if name.lower() in _HARMLESS:
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return any(word in _SECRET_WORDS for word in re.split(r"[^a-z0-9]+", words))


def _clean(name: str, value: Any) -> Any:
    if is_secret(name) and value not in (None, ""):
        return REDACTED
    if isinstance(value, dict):
        return {key: _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(name, inner) for inner in value]
    return value


def transition(type_: str, name: str, entry: HistoryEntry) -> dict[str, Any]:
    """The fields of the one line that a transition gets: `log.info("transition", **transition(...))`."""
    fields: dict[str, Any] = {
        "machine": f"{type_}/{name}",
        "from": entry.from_state,
        "to": entry.to_state,
        "trigger": entry.event,
        "cause": entry.cause,
        "epoch": entry.epoch,
        "owner": entry.owner,
        "target": entry.target,
        "seq": entry.seq,
        "evidence": dict(entry.evidence),
        "phases_ms": dict(entry.phases_ms),
    }
    return {key: value for key, value in fields.items() if value not in (None, "", {})}
