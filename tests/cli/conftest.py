"""Fixtures of the command line's tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from tests.cli.stand_ins import Stage, stage

Run = Callable[..., Result]


@pytest.fixture
def on_stage(tmp_path: Path) -> Stage:
    """A store with a pool, and a leader who grants everything."""
    return stage(tmp_path)


@pytest.fixture
def bgplb(on_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line on that stage."""
    monkeypatch.delenv("BGPLB_CONFIG", raising=False)

    def run(*args: str) -> Result:
        result = CliRunner().invoke(app, list(args), obj=on_stage.environment, prog_name="bgplb")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
