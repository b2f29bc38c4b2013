"""The files around the code agree with each other and with what is installed."""

import importlib
import importlib.metadata
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.style.sources import LAB, PRODUCT, REPOSITORY

MAKEFILE = (REPOSITORY / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE))
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
LOCK = (REPOSITORY / "requirements.lock").read_text()


def named_targets(text: str) -> set[str]:
    """The targets of all `make X` in code (back-quoted, or a line of its own) of a text."""
    return set(re.findall(r"(?:`|^\s*(?:\$ )?)make ([a-z]+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_documented_make_targets_exist(name: str) -> None:
    named = named_targets((REPOSITORY / name).read_text())
    assert {"demo", "test"} <= named, f"{name} must name the two commands"
    assert named <= TARGETS


def test_undocumented_target_would_be_found() -> None:
    assert named_targets("run `make frobnicate`, or\n\n    make demo\n") == {"frobnicate", "demo"}
    assert "frobnicate" not in TARGETS


def test_every_target_has_a_line_in_help_and_is_phony() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony
    rules = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    assert rules == TARGETS == set(phony[1].split())


def test_ci_runs_what_people_run() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    assert "make test" in script.read_text()
    assert "set -euo pipefail" in script.read_text()


def test_lock_covers_every_requirement() -> None:
    pins = {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)}
    project = PYPROJECT["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    for requirement in map(Requirement, wanted):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"requirements.lock lacks {requirement.name}: run `make lock`"
        assert requirement.specifier.contains(pin, prereleases=True), f"{requirement} against {pin}: run `make lock`"


def test_lock_has_hashes_and_names_no_host() -> None:
    blocks = [block for block in re.split(r"\n(?=\S)", LOCK.strip()) if not block.startswith("#")]
    assert len(blocks) > len(PYPROJECT["project"]["dependencies"])
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in LOCK


@pytest.mark.parametrize("name", [*PRODUCT, "bgplb_lab"])
def test_imported_package_is_ours(name: str) -> None:
    """Short top-level names: another distribution's `fsm` must not be what gets imported."""
    folder = LAB if name == "bgplb_lab" else name
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == REPOSITORY / folder / "__init__.py"


def test_every_folder_of_code_is_a_package() -> None:
    """A folder without __init__.py would be left out of the distribution without a word."""
    for root in (*PRODUCT, LAB):
        for path in (REPOSITORY / root).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} holds code but is no package"


def test_command_and_plug_ins_load() -> None:
    distribution = importlib.metadata.distribution("bgplb")
    points = {(point.group, point.name): point for point in distribution.entry_points}
    assert {("console_scripts", "bgplb"), ("bgplb.cli", "lab")} <= set(points)
    for point in points.values():
        assert point.load() is not None


def test_licence_is_whole() -> None:
    text = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_an_installed_package_has_all_that_its_code_reads(tmp_path: Path) -> None:
    """Not only in this folder: scenarios and interface files must come along into a wheel."""
    argv = [sys.executable, "setup.py", "-q", "build_py", "-d", str(tmp_path)]
    subprocess.run(argv, cwd=REPOSITORY, check=True, capture_output=True, timeout=60)
    ours = {name: REPOSITORY / name for name in PRODUCT} | {"bgplb_lab": REPOSITORY / LAB}
    data = {
        f"{package}/{path.relative_to(folder)}"
        for package, folder in ours.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md")
    }
    assert "bgplb_lab/scenarios/flapping-active.yaml" in data
    assert {name for name in data if not (tmp_path / name).is_file()} == set()
