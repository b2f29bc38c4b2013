"""What all tests share: the order of the tiers, what a tier needs, and cleaning up after a run that was killed."""

import asyncio
import os
import re
import signal
import subprocess
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

REPOSITORY = Path(__file__).resolve().parents[1]

# The order in which folders of tests run, and the line that announces each. A folder
# that is not named here runs after the quick ones, before the servers are needed.
TIERS = {
    "style": "the rules of the house: imports, banned calls, sizes",
    "fsm": "the core: tables, rules, properties",
    "scripts": "conversations with the core, compared with golden output",
    "sim": "deterministic simulation",
    "model": "exhaustive exploration of small systems",
    "birdctl": "BIRD's control protocol and configuration",
    "dataplane": "the kernel's state as values, and the real kernel in a namespace",
    "config": "configuration and manifests: what is accepted, what is refused and in which words",
    "cli": "commands, views, admin socket",
    "leader": "the leader's loop on a fake store, with agents of paper",
    "agents": "edge and node agent with everything around them in memory",
    "wiring": "the daemons as real processes",
    "trust": "what leaks, and which rights are left",
    "docs": "pages: links, commands, freshness",
    "contract": "one suite against the fake and the real etcd, BIRD and kernel",
    "vm": "the stock kernel in a virtual machine",
    "lab": "whole labs: namespaces, real packets, faults",
}
QUICK = ("style", "fsm", "scripts", "sim", "model")
LAST = ("contract", "lab")
# A hung lab must end the run with a traceback, not stop it for ever.
LAB_TIMEOUT_S = 600
NAMESPACES = Path("/run/netns")
# The name of a test's namespace: bgplb-t, the pid of the run that made it, a dash, anything.
TEST_NAMESPACE = re.compile(r"bgplb-t(?P<pid>\d+)-")


def tier_of(path: Path) -> str:
    """The folder directly under tests/ that a test file is in."""
    parts = path.relative_to(REPOSITORY / "tests").parts
    return parts[0] if len(parts) > 1 else ""


def rank_of(tier: str) -> tuple[int, int, str]:
    """Sort key of a tier: quick ones, then the others, then those that need servers or a lab."""
    known = list(TIERS)
    group = 0 if tier in QUICK else 2 if tier in LAST else 1
    return group, known.index(tier) if tier in known else len(known), tier


def pytest_configure(config: pytest.Config) -> None:
    """Turn SIGTERM into an interrupt, so that a run that is told to stop still tears down what its tests made."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    if not hasattr(config, "workerinput"):
        sweep_namespaces()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the event loop that the daemons run on."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what a test of this very run left behind in spite of its fixtures."""
    sweep_namespaces(own=True)


def sweep_namespaces(own: bool = False) -> list[str]:
    """Delete namespaces of test runs that live no more (and, with `own`, of this one). Returns their names."""
    swept = []
    for path in sorted(NAMESPACES.glob("bgplb-t*")) if os.geteuid() == 0 else []:
        match = TEST_NAMESPACE.match(path.name)
        if match is None:
            continue
        pid = int(match["pid"])
        if (pid == os.getpid()) if own else not Path(f"/proc/{pid}").exists():
            subprocess.run(["ip", "netns", "del", path.name], check=False, timeout=10)
            swept.append(path.name)
    return swept


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tiers, give the lab its time, and skip by name what this user may not do."""
    items.sort(key=lambda item: rank_of(tier_of(item.path)))
    no_root = pytest.mark.skip(reason="needs root")
    for item in items:
        if tier_of(item.path) == "lab" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LAB_TIMEOUT_S))
        if os.geteuid() != 0 and (item.get_closest_marker("root") or item.get_closest_marker("lab")):
            item.add_marker(no_root)
    sizes: dict[str, int] = {}
    for item in items:
        sizes[tier_of(item.path)] = sizes.get(tier_of(item.path), 0) + 1
    config.stash[TIER_SIZES] = sizes


TIER_SIZES = pytest.StashKey[dict[str, int]]()
TIER_SHOWN = pytest.StashKey[str]()


class TierHeadings:
    """Prints a line when a tier begins, so that a long run says where it is."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        parts = Path(nodeid.split("::", 1)[0]).parts
        tier = parts[1] if len(parts) > 2 and parts[0] == "tests" else ""
        if reporter is None or not tier or self.config.stash.get(TIER_SHOWN, "") == tier:
            return
        self.config.stash[TIER_SHOWN] = tier
        count = self.config.stash[TIER_SIZES].get(tier, 0)
        reporter.ensure_newline()
        reporter.section(f"{tier} ({count}): {TIERS.get(tier, tier)}", sep="-")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Headings make no sense where several workers run tiers side by side."""
    if not session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(TierHeadings(session.config), "bgplb-tier-headings")


@pytest.fixture(scope="session")
def run_id() -> Iterator[str]:
    """A prefix for names of namespaces, folders and sockets: unique to this process, and swept by the
    next run if this one is killed."""
    yield f"t{os.getpid()}"
