"""The program itself: start, plug-ins, help, the last door for errors, and the page that is made from it."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from docs import generate_cli
from orchestrator.cli import main
from tests.cli.conftest import Run


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of Python in a process of its own."""
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )


def test_the_page_is_what_the_commands_say() -> None:
    for path, text in generate_cli.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: run `python docs/generate_cli.py`"


def test_heavy_modules_are_not_loaded_before_a_command_needs_them() -> None:
    heavy = [
        "grpc",
        "kubernetes",
        "pydantic",
        "pyroute2",
        "rich",
        "structlog",
        "prometheus_client",
        "yaml",
        "transitions",
    ]
    code = f"import json, sys, orchestrator.cli.main; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    found = python(code)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == []


def test_help_teaches(bgplb: Run) -> None:
    root = bgplb("--help").stdout
    assert "First steps:" in root
    assert "5 store or daemon unreachable" in root
    assert "Examples:" in bgplb("pool", "drain", "--help").stdout
    assert bgplb().exit_code == 2
    assert bgplb("nonsense").exit_code == 2


def plugin(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Install one plug-in."""
    point = EntryPoint(name="extra", value=value, group=main.PLUGINS)

    def points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [point] if name in (None, point.name) else []

    monkeypatch.setattr(main, "entry_points", points)


def test_a_plugin_is_a_command(bgplb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(monkeypatch, "orchestrator.cli.gateway:app")
    assert "extra" in bgplb("--help").stdout
    assert "undrain" in bgplb("extra", "--help").stdout


def test_a_plugin_that_cannot_be_loaded_is_code_8(bgplb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(monkeypatch, "no_such_package:app")
    result = bgplb("extra")
    assert result.exit_code == 8
    assert result.stderr.startswith(
        "bgplb: the plug-in 'extra' (no_such_package:app) cannot be loaded: No module named"
    )
    assert bgplb("version").exit_code == 0


BROKEN = "import orchestrator.cli.main as m, sys; sys.argv = ['bgplb', 'version']; m.app = lambda **k: 1 / 0; m.main()"


def test_an_error_that_nobody_foresaw_is_a_sentence() -> None:
    found = python(BROKEN, BGPLB_TRACEBACK="")
    assert found.returncode == 1
    assert found.stderr == (
        "bgplb: internal error, please report it: ZeroDivisionError: division by zero; BGPLB_TRACEBACK=1 shows where "
        "it happened\n"
    )
    assert "Traceback" in python(BROKEN, BGPLB_TRACEBACK="1").stderr


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).parent / "bgplb"
    if not command.exists():
        pytest.skip("needs the bgplb command beside this Python (make setup)")
    found = subprocess.run([command, "version"], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout.split()[0]) == (0, "bgplb")
