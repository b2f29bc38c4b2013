"""Write the drawings and the table of the pool's machine into docs/: `python docs/generate_diagrams.py`."""

from pathlib import Path

from fsm.diagram import dot, markdown_table, mermaid
from fsm.picture import POOL_LAYOUT, svg
from fsm.pool import POOL

DOCS = Path(__file__).resolve().parent


def generated() -> dict[Path, str]:
    """Each generated file with the text that it must have."""
    return {
        DOCS / "diagrams" / "pool.mmd": mermaid(POOL),
        DOCS / "diagrams" / "pool.dot": dot(POOL),
        DOCS / "diagrams" / "pool.svg": svg(POOL, POOL_LAYOUT),
        DOCS / "pool-table.md": markdown_table(POOL),
    }


def main() -> None:
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
