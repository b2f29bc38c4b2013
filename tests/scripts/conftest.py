"""The `--rewrite` option: write what the core says now over what the files expect. Commit only what you can explain."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected output of tests/scripts/*.txt")
