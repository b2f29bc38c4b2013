"""Every command that a page names exists, with the options that it is shown with."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from orchestrator.cli.main import app
from tests.docs.pages import REPOSITORY, Page, pages

ALL = pages()
ROOT = typer.main.get_command(app)
TARGETS = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
CALL = re.compile(r"(?:^|(?<=[\s/(]))bgplb(?= )")
MAKE = re.compile(r"(?:^|(?<=\s))make ((?:[a-z]+)(?: [a-z]+)*)$")


def calls(code: str) -> Iterator[list[str]]:
    """Each call of `bgplb` in a piece of code, as words; a call within another (`exec ... -- bgplb ...`) by itself."""
    code = re.split(r"\s#\s|\s\||\s&&|\s>", code)[0]
    for call in CALL.split(code)[1:]:
        yield shlex.split(re.split(r"\s--(?=\s|$)", call)[0])


def fault(words: list[str]) -> str:
    """What is wrong with a call, empty if nothing is. Words in capitals stand for anything."""
    command: Any = ROOT
    context = type(ROOT).context_class(ROOT, info_name="bgplb")
    options: set[str] = {"-h", "--help"}
    for word in words:
        if word.startswith("-"):
            options |= {
                option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
            }
            if word.partition("=")[0] not in options:
                return f"{command.name or 'bgplb'} has no option {word}"
        elif hasattr(command, "list_commands") and not word.isupper() and word != "...":
            found = command.get_command(context, word)
            if found is None and command.no_args_is_help:
                return f"{command.name or 'bgplb'} has no command {word}"
            command = found or command
    return ""


@pytest.mark.parametrize("page", [page for page in ALL if page.name != "docs/cli.md"], ids=lambda page: page.name)
def test_commands_exist(page: Page) -> None:
    found = {" ".join(words): fault(words) for code in page.commands() for words in calls(code)}
    assert {call: wrong for call, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_make_targets_exist(page: Page) -> None:
    named = {word for code in page.commands() for match in MAKE.finditer(code.split(" #")[0].strip())
             for word in match[1].split()}  # fmt: skip
    assert named - TARGETS == set()


def test_the_pages_name_commands() -> None:
    """The look must see something, or it proves nothing."""
    seen = {words[0] for page in ALL for code in page.commands() for words in calls(code) if words}
    assert {"status", "fsm", "pool", "gateway", "manifests", "config", "lab", "orchestrator", "edge-agent"} <= seen


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("bgplb status -o json", ""),
        (".venv/bin/bgplb lab bench failover --runs 30 --json FILE", ""),
        ("bgplb lab exec orch-1 -- bgplb fsm dump --history 5  # how", ""),
        ("bgplb lab exec orch-1 -- bgplb fsm dmup", "fsm has no command dmup"),
        ("bgplb stauts", "bgplb has no command stauts"),
        ("bgplb pool drain POOL --resaon why", "drain has no option --resaon"),
        ("bgplb edge-agent cleanup", ""),
        ("bgplb_lab", ""),
    ],
)
def test_a_wrong_command_is_found(code: str, wrong: str) -> None:
    faults = [fault(words) for words in calls(code)]
    assert [text for text in faults if text] == ([wrong] if wrong else [])


SELECTION = re.compile(r"pytest ((?:tests[\w./-]* )+)-k (\"[^\"]+\"|\S+)")


def empty_selections(code: str) -> list[str]:
    """Alternatives of a `pytest PATHS -k EXPRESSION` that select no test."""
    found = []
    for match in SELECTION.finditer(code):
        paths = [REPOSITORY / path for path in match[1].split()]
        files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
        tests = [name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))]
        terms = match[2].strip('"').split(" or ")
        found += [term for term in terms if not any(term in name for name in tests)]
    return found


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_selections_of_tests_select_something(page: Page) -> None:
    assert [term for code in page.commands() for term in empty_selections(code)] == []


def test_an_empty_selection_is_found() -> None:
    assert empty_selections("pytest tests/fsm/test_fence.py -k first_command") == []
    assert empty_selections('pytest tests/fsm -k "first_command or no_such_thing"') == ["no_such_thing"]
