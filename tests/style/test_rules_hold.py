"""The rules of the house hold for every file of the repository."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.style import banned, programs, shape
from tests.style.sources import LAB, PRODUCT, REPOSITORY, SETUP, Finding, Source, report, sources, tracked_files


def check(rule: Callable[[Source], list[Finding]], *folders: str) -> None:
    """Run a rule over folders; it must have looked at something and found nothing."""
    files = list(sources(*folders))
    assert files, f"no Python files in {folders}"
    findings = [finding for source in files for finding in rule(source)]
    assert not findings, report(findings)


def test_no_banned_calls() -> None:
    check(banned.banned_calls, *PRODUCT, LAB)


def test_only_listed_programs_are_started() -> None:
    check(programs.started_programs, *PRODUCT)


def test_functions_are_short() -> None:
    check(shape.long_functions, *PRODUCT, LAB, SETUP, "tests")


def test_files_are_short() -> None:
    check(shape.long_file, *PRODUCT, LAB, SETUP, "tests")


def test_the_files_that_tell_the_story_are_shorter_still() -> None:
    """The four that the README begins with: who has read them can change a transition."""
    story = (REPOSITORY / "README.md").read_text().partition("## Reading the code")[2].partition("## ")[0]
    files = re.findall(r"^\d\. \[(\S+\.py)\]", story, re.MULTILINE)
    assert len(files) == 4
    lengths = {file: len((REPOSITORY / file).read_text().splitlines()) for file in files}
    assert {file for file, lines in lengths.items() if lines >= 300} == set(), lengths


def test_names_say_something() -> None:
    check(shape.vague_name, *PRODUCT, LAB, SETUP, "tests")


def test_the_core_only_computes() -> None:
    check(shape.core_reaches_out, "fsm")


def test_import_contracts() -> None:
    """`lint-imports` keeps the contracts of .importlinter."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert ", 0 broken" in answer.stdout


def test_no_foreign_words_in_tracked_files() -> None:
    files = tracked_files()
    if files is None:
        pytest.skip("needs a git clone")
    findings = []
    for path in files:
        if path.is_symlink() or not path.is_file():
            continue
        name = path.relative_to(REPOSITORY).as_posix()
        findings += shape.forbidden_words(name, name) + shape.forbidden_words(name, path.read_text(errors="replace"))
    assert not findings, report(findings)
