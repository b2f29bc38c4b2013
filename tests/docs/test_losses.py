"""The page of losses names every scenario of the library, and no other."""

import re

from tests.docs.pages import REPOSITORY

LIBRARY = REPOSITORY / "deploy" / "lab" / "scenarios"


def test_every_scenario_has_a_row_and_every_row_something_that_plays_it() -> None:
    text = (REPOSITORY / "docs" / "losses.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")][2:]
    played = [re.findall(r"`([^`]+)`", row[-1]) for row in rows]
    assert all(played), "a row that nothing plays"
    named = {name for row in played for name in row if re.fullmatch(r"[a-z]+(-[a-z]+)+", name)}
    assert named == {path.stem for path in LIBRARY.glob("*.yaml")}
