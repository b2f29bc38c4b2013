"""Network namespaces of a test's own: made, named after this process, and removed by it."""

import asyncio
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane.errors import ProgramMissing
from dataplane.programs import Program, path_of

_numbers = itertools.count()


def need(*programs: Program) -> None:
    """Skip by name when we aren't root or a program is missing."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for program in programs:
        try:
            path_of(program)
        except ProgramMissing:
            pytest.skip(f"needs {program}")


def unique(stem: str) -> str:
    """A name that no other run has; at most 15 characters, as interface names are."""
    return f"{stem}{os.getpid():x}{next(_numbers):x}"[:15]


def ip(*arguments: str) -> str:
    """Run iproute2 and return what it prints; an error fails the test."""
    done = subprocess.run([str(path_of("ip")), *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def inside(namespace: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command inside a namespace."""
    return subprocess.run(
        [str(path_of("ip")), "netns", "exec", namespace, *command],
        capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def make_namespace() -> Iterator[Callable[[], str]]:
    """A function that makes empty namespaces; all go at the end, and with them what runs on their interfaces."""
    need("ip")
    made: list[str] = []

    def make() -> str:
        name = f"bgplb-t{os.getpid()}-{next(_numbers):x}"  # the form that the next run's sweep recognises
        ip("netns", "add", name)
        made.append(name)
        ip("-n", name, "link", "set", "lo", "up")
        return name

    yield make
    for name in made:
        # A TUN device would be moved, not removed, when its namespace goes: its process must end first.
        listing = ip("-n", name, "-o", "link", "show")
        for line in listing.splitlines():
            device = line.split(": ")[1].split("@")[0]
            if device != "lo":
                subprocess.run(
                    [str(path_of("ip")), "-n", name, "link", "del", device], capture_output=True, check=False
                )
        ip("netns", "del", name)


@pytest.fixture
def namespace(make_namespace: Callable[[], str]) -> str:
    """One empty namespace."""
    return make_namespace()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """Where a test's private key goes."""
    return tmp_path / "keys" / "private.key"


async def eventually(condition: Callable[[], object], what: str, within_s: float = 10.0) -> None:
    """Wait for a condition; raises when it does not come."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise AssertionError(f"not within {within_s:g} s: {what}") from error


def wire(namespace: str, one: str, other: str) -> None:
    """A veth pair in that namespace, both ends up."""
    ip("-n", namespace, "link", "add", one, "type", "veth", "peer", "name", other)
    for name in (one, other):
        ip("-n", namespace, "link", "set", name, "up")
