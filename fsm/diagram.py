"""A table as text: Mermaid, Graphviz and Markdown. Drawn from the rows that run, so that a picture cannot lie."""

from collections.abc import Iterable, Iterator
from typing import Any

from fsm.table import Row, Table


def arrows(table: Table[Any]) -> dict[tuple[str, str], list[str]]:
    """Events by (source, destination), in the table's order."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        for source in row.sources:
            events = found.setdefault((source, row.dest), [])
            if row.event not in events:
                events.append(row.event)
    return found


def ordered_arrows(table: Table[Any]) -> Iterator[tuple[str, str, list[str]]]:
    """The same, sorted by the order of the states."""
    order = {name: index for index, name in enumerate(table.states)}
    for (source, dest), events in sorted(arrows(table).items(), key=lambda a: (order[a[0][0]], order[a[0][1]])):
        yield source, dest, events


def mermaid(table: Table[Any], highlight: Iterable[str] = ()) -> str:
    """A Mermaid state diagram; states in `highlight` are filled."""
    marked = sorted(set(highlight), key=list(table.states).index)
    lines = ["stateDiagram-v2", f"    [*] --> {table.initial}"]
    lines += [f"    {source} --> {dest}: {' / '.join(events)}" for source, dest, events in ordered_arrows(table)]
    if marked:
        lines.append("    classDef here fill:#ffd54d,stroke:#333333,stroke-width:2px")
        lines += [f"    class {name} here" for name in marked]
    return "\n".join(lines) + "\n"


def dot(table: Table[Any], highlight: Iterable[str] = ()) -> str:
    """A Graphviz digraph; states in `highlight` are filled."""
    marked = set(highlight)
    lines = [f"digraph {table.name} {{", '    node [shape=box, style="rounded,filled", fillcolor=white];']
    for name, state in table.states.items():
        fill = ', fillcolor="#ffd54d"' if name in marked else ""
        lines.append(f'    {name} [tooltip="{_quoted(state.meaning)}"{fill}];')
    for source, dest, events in ordered_arrows(table):
        label = "\\n".join(events)
        lines.append(f'    {source} -> {dest} [label="{label}"];')
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def markdown_table(table: Table[Any]) -> str:
    """States with meaning and deadline, rows in the order in which they are tried, ignores with their reasons."""
    lines = [f"# The {table.name} table", "", "Generated from the table that runs; do not edit.", ""]
    lines += ["## States", "", "| state | meaning | deadline |", "| --- | --- | --- |"]
    for state in table.states.values():
        limit = "none" if state.deadline_ms is None else f"{state.deadline_ms / 1000:g} s"
        lines.append(f"| `{state.name}` | {state.meaning} | {limit} |")
    lines += ["", "## Rows", "", "The first row whose guard holds is taken.", ""]
    lines += ["| event | in | leads to | if | acts | why |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [_row(row) for row in table.rows]
    lines += ["", "## Ignored, and why", "", "| events | in | reason |", "| --- | --- | --- |"]
    for ignore in table.ignores:
        lines.append(f"| {_names(ignore.events)} | {_names(ignore.states)} | {ignore.reason} |")
    return "\n".join(lines) + "\n"


def _row(row: Row[Any]) -> str:
    guard = row.guard.__name__.replace("_", " ") if row.guard else ""
    acts = ", then ".join(act.__name__.replace("_", " ") for act in row.acts)
    return f"| `{row.event}` | {_names(row.sources)} | `{row.dest}` | {guard} | {acts} | {row.why} |"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
