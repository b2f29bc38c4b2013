"""Drawings are made from the table that runs; those in docs/ are fresh."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fsm.diagram import dot, markdown_table, mermaid
from fsm.picture import POOL_LAYOUT, Layout, svg
from fsm.pool import POOL, ROWS, STATES

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "generate_diagrams.py"


def generated() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("generate_diagrams", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[Path, str] = module.generated()
    return found


@pytest.mark.parametrize("path", generated(), ids=lambda p: p.name)
def test_docs_are_fresh(path: Path) -> None:
    """Byte for byte; `make docs` (or docs/generate_diagrams.py) renews them."""
    assert path.read_bytes() == generated()[path].encode(), f"{path.name} is stale: run docs/generate_diagrams.py"


def test_mermaid_has_every_row_and_nothing_else() -> None:
    lines = mermaid(POOL).splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> Pending"]
    drawn = set()
    for line in lines[2:]:
        way, _, events = line.partition(": ")
        source, _, dest = way.strip().partition(" --> ")
        drawn |= {(event, source, dest) for event in events.split(" / ")}
    assert drawn == {(str(r.event), str(s), str(r.dest)) for r in ROWS for s in r.sources}


@pytest.mark.parametrize("state", [s.name for s in STATES])
def test_highlight(state: str) -> None:
    assert mermaid(POOL, [state]).endswith(f"    class {state} here\n")
    marked = [line for line in dot(POOL, [state]).splitlines() if "#ffd54d" in line]
    assert len(marked) == 1 and marked[0].strip().startswith(f"{state} [")
    assert svg(POOL, POOL_LAYOUT, [state]).count("#ffd54d") == 1


def test_markdown_names_every_reason() -> None:
    text = markdown_table(POOL)
    for row in POOL.rows:
        assert row.why in text
    for ignore in POOL.ignores:
        assert ignore.reason in text
    for state in POOL.states.values():
        assert f"| `{state.name}` | {state.meaning} |" in text


def test_svg_is_xml_with_every_state_and_event() -> None:
    root = ElementTree.fromstring(svg(POOL, POOL_LAYOUT))
    words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {str(s.name) for s in STATES} | {str(r.event) for r in ROWS} <= words


def test_svg_refuses_a_state_without_a_place() -> None:
    with pytest.raises(KeyError):
        svg(POOL, Layout(10, 10, {}, (0, 0)))
