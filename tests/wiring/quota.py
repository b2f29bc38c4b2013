"""A share of one core for a process, and no more: a control group with a quota (cgroups v1 and v2)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PERIOD_US = 100_000
_ROOT = Path("/sys/fs/cgroup")


def _home() -> Path:
    """Where groups with a quota are made; skips by name where there is no such place."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if (_ROOT / "cpu" / "cpu.cfs_quota_us").exists() or (_ROOT / "cpu" / "cpu.shares").exists():
        return _ROOT / "cpu"
    controllers = _ROOT / "cgroup.subtree_control"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        return _ROOT
    pytest.skip("needs the cpu controller of control groups")


@contextmanager
def quota(pid: int, percent: int) -> Iterator[Path]:
    """Let that process have so much of one core while the block lasts. Gives the group's folder."""
    home = _home()
    group = home / f"bgplb-test-{os.getpid()}-{pid}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{PERIOD_US * percent // 100} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD_US * percent // 100))
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(left)
        group.rmdir()


def throttled(group: Path) -> int:
    """In how many periods the group was held up."""
    stat = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(stat["nr_throttled"])
