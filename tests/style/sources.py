"""Which files the style rules look at, and what a rule reports."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("fsm", "birdctl", "dataplane", "orchestrator")
LAB = "deploy/lab"
SETUP = "deploy/setup"


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root of the repository, and its text."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)


def is_generated(path: Path) -> bool:
    """Whether a generator wrote it (gRPC stubs): no rule of ours applies to that."""
    return "_pb2" in path.name


def sources(*folders: str) -> Iterator[Source]:
    """Every Python file below these folders that people wrote."""
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if not is_generated(path):
                yield Source(path.relative_to(REPOSITORY).as_posix(), path.read_text())


def tracked_files() -> list[Path] | None:
    """What git tracks here; None where this is not a git clone."""
    answer = subprocess.run(["git", "-C", str(REPOSITORY), "ls-files", "-z"], capture_output=True, check=False)
    if answer.returncode != 0:
        return None
    return [REPOSITORY / name for name in answer.stdout.decode().split("\0") if name]


def report(findings: list[Finding]) -> str:
    """The findings, one a line, for the message of an assertion."""
    return "\n" + "\n".join(map(str, findings))
