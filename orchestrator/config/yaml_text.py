"""YAML as people write it into our files, read strictly: no key twice, no aliases, no surprises left for later."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MAX_BYTES = 1_048_576
"""A longer file is refused; a folder of a thousand pools in one file is a third of it."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(Exception):
    """A text that is not the YAML we read. `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        self.line = line
        self.what = what
        super().__init__(f"line {line}: {what}")


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file, and the line at which it begins."""

    line: int
    value: Any


def documents(data: bytes) -> list[Document]:
    """All documents of a text that say something; a comment alone is none.

    Raises YamlError for a syntax error, a text that is no UTF-8, a key given twice, an alias, or too long a text.
    """
    if len(data) > MAX_BYTES:
        raise YamlError(1, f"the file has {len(data)} bytes, at most {MAX_BYTES} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise YamlError(line, "the text is not UTF-8") from error
    try:
        return list(_read(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise YamlError(line, f"not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise YamlError(1, f"not valid YAML: {error}") from error
    except ValueError as error:  # a date that is none, such as 2026-02-31
        raise YamlError(1, f"not valid YAML: {error}") from error
    except RecursionError as error:
        raise YamlError(1, "nested too deeply") from error


def _read(text: str) -> Iterator[Document]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            _refuse_surprises(node)
            value = loader.construct_document(node)
            if value is not None:
                yield Document(node.start_mark.line + 1, value)
    finally:
        loader.dispose()


def _refuse_surprises(root: yaml.Node) -> None:
    """An alias can make a small text endless, and of a key given twice only the last would count."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            raise YamlError(node.start_mark.line + 1, "anchors and aliases (&NAME, *NAME) are not read; write it out")
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise YamlError(line, "a key must be a plain word")
                if key.value in keys:
                    raise YamlError(line, f"the key '{key.value}' is given twice")
                keys.add(key.value)
                todo.append(value)
