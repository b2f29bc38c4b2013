"""What is wrong with a text that a person wrote: all of it at once, a line for each that says what is allowed."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

NO_VALUE = object()
"""Stands for a value that was not given at all, which is not the same as `null`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `object` is KIND/NAME in a manifest and empty in a configuration file."""

    file: str
    object: str
    field: str
    value: str
    allowed: str

    def __str__(self) -> str:
        """`FILE: [OBJECT: ][FIELD: ][value VALUE: ]ALLOWED`, on one line."""
        return ": ".join(part for part in (self.file, self.object, self.field, self.value, self.allowed) if part)


class ConfigError(Exception):
    """A configuration that cannot be used. `problems` holds every one; the text has one line each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Relations(ValueError):
    """Values that are fine by themselves and do not fit together: (field, what is allowed) each."""

    def __init__(self, broken: Sequence[tuple[str, str]]) -> None:
        self.broken = tuple(broken)
        super().__init__("; ".join(f"{field}: {allowed}" for field, allowed in self.broken))


def refuse(broken: Sequence[tuple[str, str]]) -> None:
    """Raise Relations if something is broken; a field may be a dotted path from the model that is checked."""
    if broken:
        raise Relations(broken)


def setting(default: Any, description: str, *, allowed: str, example: Any = NO_VALUE, **constraints: Any) -> Any:
    """A field of a model: what it means, and what may stand in it, in the words that a refusal uses.

    `default` of `...` makes it required; `example` is what `config example` shows for a field without a default.
    """
    extra: dict[str, Any] = {"allowed": allowed}
    if example is not NO_VALUE:
        extra["example"] = example
    return Field(default, description=description, json_schema_extra=extra, **constraints)


def quoted(value: Any) -> str:
    """The value as a problem shows it: `value 'X'`, cut where it is long, on one line."""
    if value is NO_VALUE:
        return "missing"
    text = value if isinstance(value, str) else _yaml_word(value)
    text = " ".join(text.split())
    return f"value '{text if len(text) <= 60 else text[:57] + '...'}'"


def _yaml_word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "a list" if value else "[]"
    if isinstance(value, dict | BaseModel):
        return "a mapping" if value else "{}"
    return str(value)


def allowed_of(field: FieldInfo | None) -> str:
    """What a field allows, as its model says it."""
    extra = field.json_schema_extra if field is not None else None
    return str(extra["allowed"]) if isinstance(extra, dict) and "allowed" in extra else ""


def inner_models(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models within an annotation: of `X | None`, `tuple[X, ...]` and X itself it is X."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    if get_origin(annotation) in (Union, UnionType, tuple, list):
        return tuple(m for part in get_args(annotation) if part is not NoneType for m in inner_models(part))
    return ()


def field_names(model: type[BaseModel]) -> tuple[str, ...]:
    """The names under which a text may set the fields of a model."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def problems_of(error: ValidationError, model: type[BaseModel], file: str, obj: str = "") -> list[Problem]:
    """Each error of pydantic as a problem in our words."""
    found: list[Problem] = []
    details = error.errors(include_url=False)
    for detail in details:
        loc = detail["loc"]
        if detail["type"] == "too_short" and any(d["loc"][:-1][: len(loc)] == loc for d in details):
            continue  # only short since its items were refused, which is said already
        owner, field = _find(model, loc)
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Relations):
            for name, allowed in cause.broken:
                where = (*loc, *steps(name))
                shown = _given_or_default(_value_at(detail["input"], name), _find(model, where)[1])
                found.append(Problem(file, obj, path_text(where), shown, allowed))
            continue
        if detail["type"] == "missing":
            value, allowed = NO_VALUE, allowed_of(field)
        elif detail["type"] == "extra_forbidden":
            value = detail["input"]
            allowed = "unknown field; known here: " + ", ".join(field_names(owner))
        elif isinstance(cause, ValueError):
            value, allowed = detail["input"], str(cause)
        elif detail["type"] == "model_type" or detail["type"] == "model_attributes_type":
            value, allowed = detail["input"], _section_text(model, loc)
        else:
            value, allowed = detail["input"], _typed(detail["type"], allowed_of(field) or detail["msg"])
        found.append(Problem(file, obj, path_text(loc), _shown(loc, value), allowed))
    return found


_SECRET = re.compile(r"password|secret|token|private|(^|_)key(_|$)", re.IGNORECASE)
"""Fields that a person may have typed a secret into, though none of ours takes one."""


def _shown(loc: tuple[int | str, ...], value: Any) -> str:
    """The value, unless the name of its field says that it may be a secret."""
    if value is not NO_VALUE and any(isinstance(part, str) and _SECRET.search(part) for part in loc):
        return "value hidden"
    return quoted(value)


TYPE_WORDS = {"int_type": "a whole number", "string_type": "a text", "bool_type": "true or false"}


def _typed(kind: str, allowed: str) -> str:
    """What is allowed, with the type in front where that is what was wrong: `'254'` in quotes is no number."""
    word = TYPE_WORDS.get(kind)
    return allowed if word is None or allowed.startswith(word) else f"{word}: {allowed}"


def path_text(loc: Iterable[int | str]) -> str:
    """`spec.edges[0].name`"""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _given_or_default(value: Any, field: FieldInfo | None) -> str:
    """A relation can be broken by a value that nobody gave."""
    if value is not NO_VALUE or field is None or field.is_required() or field.default is None:
        return quoted(value)
    return quoted(field.default).replace("value", "default", 1)


def _section_text(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    _, field = _find(model, loc)
    models = inner_models(field.annotation) if field is not None else (model,)
    names = ", ".join(name for m in models for name in field_names(m))
    return f"a mapping with the fields {names}"


def _find(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The model that the last named part of `loc` belongs to, and its field there, if there is such a field."""
    owner, field = model, None
    for part in loc:
        if isinstance(part, int):
            continue
        if field is not None:
            inner = inner_models(field.annotation)
            if not inner:
                return owner, field
            owner = inner[0]
        field = next((f for name, f in owner.model_fields.items() if (f.alias or name) == part), None)
        if field is None:
            return owner, None
    return owner, field


def steps(path: str) -> tuple[int | str, ...]:
    """`spec.edges.0.name` as the steps down from a model."""
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


def _value_at(value: Any, name: str) -> Any:
    for part in steps(name):
        if isinstance(part, int):
            value = value[part] if isinstance(value, list | tuple) and part < len(value) else NO_VALUE
        elif isinstance(value, BaseModel):
            names = {field.alias or key: key for key, field in type(value).model_fields.items()}
            value = getattr(value, names.get(part, part), NO_VALUE)
        elif isinstance(value, dict):
            value = value.get(part, NO_VALUE)
        else:
            return NO_VALUE
    return value
