"""Every link leads somewhere, and every file and test that a page names is there."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, Page, pages
from tests.style import shape
from tests.style.sources import report

PICTURE = "docs/demo.svg"
ALL = pages()
NAMED = re.compile(
    r"(?P<path>(?:fsm|birdctl|dataplane|orchestrator|deploy|tests|docs)/[\w./-]*[\w/])(?![\w*])(?:::(?P<test>\w+))?"
)


def broken_links(page: Page, root: Path) -> list[str]:
    """Links of a page to a file or heading that is not there. Links to other sites are not followed."""
    found = []
    for link in page.links():
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (root / page.name).parent / path
        there = not path or target.exists()
        if there and anchor:
            there = anchor in (Page(link, target.read_text(encoding="utf-8")) if path else page).anchors()
        if not there:
            found.append(link)
    return found


def missing_names(page: Page, root: Path) -> list[str]:
    """Paths in a page's code, and tests in them, that are not there."""
    found = []
    for code in page.commands():
        for match in NAMED.finditer(code):
            if match.start() and re.match(r"[\w./-]", code[match.start() - 1]):
                continue  # the tail of a longer path
            path = root / match["path"]
            if not path.exists() or (match["test"] and f"def {match['test']}(" not in path.read_text(encoding="utf-8")):
                found.append(match[0])
    return found


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    assert [link for link in broken_links(page, REPOSITORY) if link != PICTURE] == []


def test_the_picture_of_the_demo_is_there() -> None:
    """It comes from a real run: `make demo`, then build/demo.svg is copied to docs/."""
    if not (REPOSITORY / PICTURE).exists():
        pytest.skip(f"needs {PICTURE}, which a run of make demo draws")
    assert (REPOSITORY / PICTURE).read_text(encoding="utf-8").lstrip().startswith("<svg")


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_files_and_tests_that_are_named_exist(page: Page) -> None:
    assert missing_names(page, REPOSITORY) == []


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_no_foreign_words(page: Page) -> None:
    """The style rule sees what git tracks; this one sees a page before it is added."""
    findings = shape.forbidden_words(page.name, page.text)
    assert not findings, report(findings)


def test_every_page_is_reached_from_the_readme() -> None:
    """A page that nothing links to is a page that nobody reads."""
    by_name = {page.name: page for page in ALL}
    seen, waiting = set(), ["README.md"]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        for link in by_name[name].links():
            path = ((REPOSITORY / name).parent / link.partition("#")[0]).resolve()
            if path.is_relative_to(REPOSITORY):
                waiting.append(path.relative_to(REPOSITORY).as_posix())
    assert sorted(set(by_name) - seen) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A *heading*, `code` too\n")
    good = Page("x.md", "# Top\n[a](there.md) [b](there.md#a-heading-code-too) [c](#top) [d](https://example.net/x)\n")
    assert broken_links(good, tmp_path) == []
    bad = Page("x.md", "[a](absent.md) [b](there.md#nothing) [c](#bottom)\n")
    assert broken_links(bad, tmp_path) == ["absent.md", "there.md#nothing", "#bottom"]
    assert broken_links(Page("x.md", "```\n[a](absent.md)\n```\n"), tmp_path) == []


def test_a_name_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_one() -> None: ...\n")
    page = Page("x.md", "`tests/test_a.py`, `pytest tests/test_a.py::test_one`, `/etc/tests/x`, `tests/test_*.py`\n")
    assert missing_names(page, tmp_path) == []
    page = Page("x.md", "`tests/test_b.py` and `tests/test_a.py::test_two`\n\n    pytest fsm/gone.py\n")
    assert missing_names(page, tmp_path) == ["tests/test_b.py", "tests/test_a.py::test_two", "fsm/gone.py"]
