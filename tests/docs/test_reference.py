"""The pages on manifests and configuration are fresh, and the examples in them are accepted."""

import importlib.util
from pathlib import Path

import pytest

from orchestrator.config.intent import read_intent
from tests.docs.pages import REPOSITORY, Page, pages

SCRIPTS = sorted((REPOSITORY / "docs").glob("generate_*.py"))


def generated() -> dict[Path, str]:
    """Every generated page with the text that it must have."""
    found: dict[Path, str] = {}
    for script in SCRIPTS:
        spec = importlib.util.spec_from_file_location(script.stem, script)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= module.generated()
    return found


@pytest.mark.parametrize(("path", "text"), generated().items(), ids=lambda value: getattr(value, "name", ""))
def test_generated_pages_are_fresh(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: `make docs` renews it"


@pytest.mark.parametrize("page", [page for page in pages() if page.blocks("yaml")], ids=lambda page: page.name)
def test_manifests_in_examples_are_accepted(page: Page) -> None:
    manifests = [body for body in page.blocks("yaml") if "apiVersion" in body]
    for body in manifests:
        assert [str(problem) for problem in read_intent({"example.yaml": body.encode()}, "folder").problems] == []


def test_fields_marked_as_unused_are_fields() -> None:
    spec = importlib.util.spec_from_file_location("generate_reference", REPOSITORY / "docs" / "generate_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.manifests()
    assert page.count("*Kept") + page.count("*Checked") >= len(module.UNUSED)
    assert [field for field in module.UNUSED if f"| `{field}" not in page] == []
