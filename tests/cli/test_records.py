"""Records as bytes: what is written is read again, and what is no record is refused by the name of its key."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import records
from orchestrator.store import keys as k
from orchestrator.store.records import RecordError, decode, encode, type_of
from tests.cli.stand_ins import KEYS

RECORDS = [
    value for value in vars(records).values() if dataclasses.is_dataclass(value) and value.__module__ == "fsm.records"
]


# JSON has no infinities, and not every reader of it keeps a number above 2^53 whole.
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(),
    bool: st.booleans(),
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    type(None): st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint in PLAIN:
        return PLAIN[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return st.builds(hint, **{name: values(inner) for name, inner in get_type_hints(hint).items()})
    parts = [values(part) for part in get_args(hint) if part is not ...]
    if get_origin(hint) is tuple:
        return st.lists(parts[0], max_size=3).map(tuple)
    if get_origin(hint) is Mapping:
        return st.dictionaries(parts[0], parts[1], max_size=3).flatmap(
            lambda found: st.sampled_from([found, MappingProxyType(found)])
        )
    return st.one_of(parts)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_every_record_survives_the_way_through_its_bytes(data: st.DataObject) -> None:
    type_: Any = data.draw(st.sampled_from(RECORDS))
    value = data.draw(values(type_))
    value = dataclasses.replace(value, schema=1) if hasattr(value, "schema") else value
    again = decode(encode(value), type_)
    assert again == value
    assert encode(again) == encode(value)


def test_a_field_of_a_later_version_is_passed_over() -> None:
    found = decode(b'{"name":"gw-a","reason":"r","by":"b","schema":1,"colour":"red"}', records.GatewayDrain)
    assert found == records.GatewayDrain("gw-a", "r", "b")


BAD = [
    (b"", "not a GatewayDrain: Input data was truncated"),
    (b"{", "not a GatewayDrain: Input data was truncated"),
    (b"\xff", "not a GatewayDrain: "),
    (b"[]", "not a GatewayDrain: Expected `object`, got `array`"),
    (b'{"name":"a","reason":"r"}', "not a GatewayDrain: Object missing required field `by`"),
    (b'{"name":5,"reason":"r","by":"b"}', "not a GatewayDrain: Expected `str`, got `int` - at `$.name`"),
    (b'{"name":"a","reason":"r","by":"b","schema":2}', "schema 2 is unknown here, this version reads schema 1; update"),
    (b'{"schema":"x"}', "schema 'x' is unknown here"),
    (b'{"schema":2}', "schema 2 is unknown here"),
]


@pytest.mark.parametrize(("data", "said"), BAD)
def test_what_is_no_record(data: bytes, said: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode(data, records.GatewayDrain, "/k")
    assert str(caught.value).startswith(f"/k: {said}")
    assert caught.value.key == "/k"


@pytest.mark.parametrize(
    ("key", "type_"),
    [
        (KEYS.spec("EIPPool", "p"), records.PoolSpec),
        (KEYS.spec("EdgeGateway", "g"), records.EdgeGatewaySpec),
        (KEYS.spec("GatewayDrain", "gw-a"), records.GatewayDrain),
        (KEYS.spec("Other", "x"), None),
        (KEYS.agent("node", "a"), records.AgentRecord),
        (KEYS.machine("pool", "p"), records.PoolRecord),
        (KEYS.machine("egress", "p"), None),
        (KEYS.history("pool", "p", 1), records.HistoryEntry),
        (KEYS.desired_base("edge", "e"), records.AgentBase),
        (KEYS.desired("edge", "e", "pool", "p"), records.EdgePool),
        (KEYS.desired("node", "n", "pool", "p"), records.NodePool),
        (KEYS.observed_base("edge", "e"), records.EdgeReport),
        (KEYS.observed_base("node", "n"), records.NodeReport),
        (KEYS.observed("edge", "e", "pool", "p"), records.EdgePoolReport),
        (KEYS.observed("node", "n", "pool", "p"), records.NodePoolReport),
        (KEYS.request("1"), records.Request),
        (KEYS.meta, None),
    ],
)
def test_which_key_holds_which_record(key: str, type_: type | None) -> None:
    parsed: k.Key = KEYS.parse(key)
    assert type_of(parsed) is type_
