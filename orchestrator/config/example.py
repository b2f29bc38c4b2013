"""An example of a configuration file, written from the models: it can't tell anything else than they do."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestrator.config.problems import allowed_of, inner_models

WIDTH = 100


def example_text(model: type[BaseModel], role: str) -> str:
    """A file for that role with every field: required ones set, all others as comments that show the default."""
    head = [
        f"# /etc/bgplb/{role}.yaml: {(model.__doc__ or '').strip().splitlines()[0]}",
        f"# Check it with: bgplb config check {role} FILE",
        "# What is commented out shows its default, or an example where there is none.",
        "",
    ]
    return "\n".join([*head, *_fields(model, 0, required=True)]).rstrip() + "\n"


def _fields(model: type[BaseModel], depth: int, *, required: bool) -> Iterator[str]:
    """Lines of all fields. Within an optional section everything is a comment, so that the section stays out."""
    pad = "  " * depth
    defaults = {"name": _name_default(model)}
    listen = getattr(model, "LISTEN", "")
    for name, field in model.model_fields.items():
        inner = inner_models(field.annotation)
        needed = required and field.is_required()
        yield from _comment(field, pad, describe=not inner)
        mark = "" if needed else "# "
        if inner:
            yield f"{pad}{mark}{name}:"
            lines = list(_fields(inner[0], depth + 1, required=needed))
            if name == "http" and listen:
                lines = [line.replace("listen: null", f"listen: {listen}") for line in lines]
            yield from lines
        else:
            value = _example(field, defaults.get(name))
            yield f"{pad}{mark}{name}: {value}"
        if depth == 0:
            yield ""


def _name_default(model: type[BaseModel]) -> str:
    words = {"OrchestratorConfig": "orch-1", "EdgeAgentConfig": "edge-1", "NodeAgentConfig": "gw-a"}
    return words.get(model.__name__, "")


def _comment(field: FieldInfo, pad: str, *, describe: bool) -> Iterator[str]:
    text = f"{field.description}. Allowed: {allowed_of(field)}." if describe else f"{field.description}."
    for line in textwrap.wrap(text, WIDTH - len(pad) - 2):
        yield f"{pad}# {line}"


def _example(field: FieldInfo, name: str | None) -> str:
    extra = field.json_schema_extra
    if field.is_required() and name:
        return name
    if isinstance(extra, dict) and "example" in extra:
        return _flow(extra["example"])
    return _flow(field.get_default(call_default_factory=True, validated_data={}))


def _flow(value: Any) -> str:
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0xFFFF_FF:
        return f"{value:#x}"
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
