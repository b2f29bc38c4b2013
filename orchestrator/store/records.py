"""Records as the bytes that etcd keeps: JSON of the dataclasses of `fsm.records`, and which key holds which."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from fsm import records
from orchestrator.store import keys

T = TypeVar("T")

POOL_KIND = "EIPPool"
EDGE_GATEWAY_KIND = "EdgeGateway"
DRAIN_KIND = "GatewayDrain"
IDENTITY_KIND = "Identity"
"""The KINDs of `spec/KIND/NAME`. The first two are those of the manifests; a drain is an operator's order, an identity
what is remembered of an agent."""

SPEC_TYPES: dict[str, type] = {
    POOL_KIND: records.PoolSpec,
    EDGE_GATEWAY_KIND: records.EdgeGatewaySpec,
    DRAIN_KIND: records.GatewayDrain,
    IDENTITY_KIND: records.Identity,
}
_OBSERVED_BASE: dict[str, type] = {"edge": records.EdgeReport, "node": records.NodeReport}
_OBSERVED_POOL: dict[str, type] = {"edge": records.EdgePoolReport, "node": records.NodePoolReport}
_DESIRED_POOL: dict[str, type] = {"edge": records.EdgePool, "node": records.NodePool}


def _plain(value: object) -> object:
    """A mapping that is no dict, such as a read-only view of one."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


class RecordError(Exception):
    """A value in the store that is not the record it should be. `key` is where it is, `what` is wrong with it."""

    def __init__(self, key: str, what: str) -> None:
        self.key = key
        self.what = what
        super().__init__(f"{key or 'record'}: {what}")


class _Schema(msgspec.Struct):
    schema: Any = None


def encode(value: object) -> bytes:
    """The JSON of a record."""
    return _encoder.encode(value)


def decode(data: bytes, type_: type[T], key: str = "") -> T:
    """A record from its JSON. Fields that this version does not know are passed over.

    Raises RecordError for text that is no JSON, a field of a wrong type, or a schema number of another version.
    """
    try:
        value = _decoder(type_).decode(data)
    except msgspec.MsgspecError as error:
        _refuse_schema(data, key)
        raise RecordError(key, f"not a {type_.__name__}: {error}") from error
    except UnicodeDecodeError as error:
        raise RecordError(key, f"not a {type_.__name__}: the text is not UTF-8") from error
    if getattr(value, "schema", records.SCHEMA) != records.SCHEMA:
        _refuse_schema(data, key)
    return value


def _decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, made once: making one costs more than it takes to decode a hundred records."""
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.json.Decoder(type_)
    return decoder


def _refuse_schema(data: bytes, key: str) -> None:
    try:
        schema = _decoder(_Schema).decode(data).schema
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    if schema is not None and schema != records.SCHEMA:
        what = f"schema {schema!r} is unknown here, this version reads schema {records.SCHEMA}; update bgplb"
        raise RecordError(key, what)


def type_of(key: keys.Key) -> type | None:
    """The record that a key holds; None for a key whose value is not one of `fsm.records`."""
    match key:
        case keys.SpecKey(kind, _):
            return SPEC_TYPES.get(kind)
        case keys.AgentKey():
            return records.AgentRecord
        case keys.MachineKey("pool", _):
            return records.PoolRecord
        case keys.HistoryKey("pool", _, _):
            return records.HistoryEntry
        case keys.RequestKey():
            return records.Request
        case keys.DesiredBaseKey():
            return records.AgentBase
        case keys.ObservedBaseKey(role, _):
            return _OBSERVED_BASE.get(role)
        case keys.DesiredKey(role, _, "pool", _):
            return _DESIRED_POOL.get(role)
        case keys.ObservedKey(role, _, "pool", _):
            return _OBSERVED_POOL.get(role)
    return None
