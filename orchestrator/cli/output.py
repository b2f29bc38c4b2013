"""How a command shows what it found."""

import enum
import json
import sys
from collections.abc import Sequence
from typing import Any


class Format(enum.StrEnum):
    """Formats of a view."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    WIDE = "wide"


def structured(data: Any, format_: str) -> bool:
    """Print data as JSON or YAML if that is the format; says whether it did."""
    if format_ == "json":
        print(json.dumps(data, indent=2, ensure_ascii=False))
        return True
    if format_ == "yaml":
        import yaml

        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=False), end="")
        return True
    return False


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Print a table; `empty` is said where there are no rows. Nothing is cut where the output is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        print(empty)
        return
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(word(value), style=_style(value)) for value in row))
    is_terminal = sys.stdout.isatty()
    Console(file=sys.stdout, width=None if is_terminal else 400, highlight=False).print(shown)


def word(value: object) -> str:
    """A value in a cell."""
    if value is None or value == "" or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value)


GOOD = frozenset({"ActiveHealthy", "fresh", "up", "passing", "healthy"})
BAD = frozenset({"Stranded", "FailureDetected", "expired", "down", "failing", "unfit", "dead"})


def _style(value: object) -> str:
    if value is True or (isinstance(value, str) and value in GOOD):
        return "green"
    if isinstance(value, str) and value in BAD:
        return "red"
    return ""


def age(age_ms: int) -> str:
    """How old a view is: every view says it. A replica that has not read the store yet has no age, -1."""
    if age_ms < 0:
        return "an unknown time"
    return f"{age_ms} ms" if age_ms < 10_000 else f"{age_ms // 1000} s"


def edge_texts(edges: dict[str, Any]) -> list[str]:
    """What each edge acknowledged: its name, how far it is, with which owner and epoch."""
    return [f"{name} {edge['phase']} {edge['owner'] or '-'}@{edge['epoch']}" for name, edge in edges.items()]
