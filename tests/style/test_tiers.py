"""The order of the tests, and what is cleaned up after a run that could not do so itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, TIERS, rank_of, sweep_namespaces, tier_of


def test_quick_tiers_come_first_and_the_lab_last() -> None:
    order = sorted([*TIERS, "something-new"], key=rank_of)
    assert order[:2] == ["style", "fsm"]
    assert order[-2:] == ["contract", "lab"]
    assert order.index("dataplane") < order.index("something-new") < order.index("contract")


def test_tier_is_the_first_folder() -> None:
    assert tier_of(REPOSITORY / "tests" / "contract" / "store" / "test_x.py") == "contract"
    assert tier_of(REPOSITORY / "tests" / "test_x.py") == ""


@pytest.mark.root
def test_namespaces_of_dead_runs_are_swept_and_no_others() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, alive, foreign = f"bgplb-t{ended.pid}-x", f"bgplb-t{os.getppid()}-x", f"bgplb-other{os.getpid()}"
    try:
        for name in (dead, alive, foreign):
            subprocess.run(["ip", "netns", "add", name], check=True, timeout=10)
        assert dead in sweep_namespaces()
        left = {path.name for path in Path("/run/netns").iterdir()}
        assert dead not in left
        assert {alive, foreign} <= left
    finally:
        for name in (dead, alive, foreign):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=10)


@pytest.mark.root
def test_a_run_that_is_told_to_stop_tears_down(tmp_path: Path) -> None:
    """SIGTERM ends the run through the fixtures: the namespace that a test made is gone afterwards."""
    folder = tmp_path / "tests" / "lab"
    folder.mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_text((REPOSITORY / "tests" / "conftest.py").read_text())
    (folder / "test_hang.py").write_text(
        "import pytest, subprocess, time\n"
        "@pytest.fixture\n"
        "def netns(run_id):\n"
        "    name = f'bgplb-{run_id}-hang'\n"
        "    subprocess.run(['ip', 'netns', 'add', name], check=True)\n"
        "    yield name\n"
        "    subprocess.run(['ip', 'netns', 'del', name], check=True)\n"
        "def test_hang(netns):\n"
        "    print('made', netns, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "pytest", "-s", "-c", str(REPOSITORY / "pyproject.toml"), f"--rootdir={tmp_path}"]
    run = subprocess.Popen([*command, str(folder)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        made = next(line.split()[-1] for line in run.stdout if "made bgplb-t" in line)
        assert (Path("/run/netns") / made).exists()
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=30)
        assert run.returncode == pytest.ExitCode.INTERRUPTED
        assert not (Path("/run/netns") / made).exists()
    finally:
        run.kill()
        run.wait()
