"""The page of what went wrong elsewhere: every kind has a row, and every row tests that are there."""

import re

from tests.docs.pages import REPOSITORY

KINDS = 27
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below that heading."""
    text = (REPOSITORY / "docs" / "field.md").read_text(encoding="utf-8")
    part = text.split(heading, 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_kind_has_a_row() -> None:
    kinds = rows("# What went wrong elsewhere")
    assert [row[0] for row in kinds] == [str(number) for number in range(1, KINDS + 1)]
    assert all(len(row) == 5 and all(row) for row in kinds)
    assert all(re.search(r"#\d+|measured|its etcd elector", row[2]) for row in kinds), "somebody reported it"


def test_every_row_names_tests_that_are_there() -> None:
    for row in [*rows("# What went wrong elsewhere"), *rows("## Found in bgplb itself")]:
        named = TEST.findall(row[-1])
        assert named, row[0]
        assert len(named) == row[-1].count("`") // 2, f"something else than tests in row {row[0]}: {row[-1]}"
        for path, test in named:
            text = (REPOSITORY / path).read_text(encoding="utf-8")
            assert re.search(rf"def {test}\(" if test else r"def test_", text), f"{path}::{test}"
