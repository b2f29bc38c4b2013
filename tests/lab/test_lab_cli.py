"""`bgplb lab` as a person types it: output, exit codes, and that an interrupted demo leaves nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bgplb_lab import control, world
from bgplb_lab.errors import LabError, MissingPrerequisite
from bgplb_lab.world import World, check_prerequisites

from tests.lab.standing import need_prerequisites

LAB_ID = f"c{os.getpid()}"
COMMAND = str(Path(sys.executable).parent / "bgplb")


def quiet(line: str) -> None:
    """The tests need no progress lines."""


def lab(*arguments: str, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([COMMAND, "lab", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="module")
def standing() -> Iterator[World]:
    need_prerequisites()
    made = World(LAB_ID, quiet)
    try:
        assert lab("up", "--no-daemons", "--id", LAB_ID).returncode == 0
        yield made
    finally:
        if made.exists():
            made.down()


def test_up_twice_is_refused(standing: World) -> None:
    again = lab("up", "--id", LAB_ID)
    assert again.returncode == 6
    assert f"bgplb lab down --id {LAB_ID}" in again.stderr.replace("\n", " ")
    assert standing.pids()


def test_status_names_every_machine_and_fault(standing: World) -> None:
    document = json.loads(lab("status", "--json", "--id", LAB_ID).stdout)
    assert document["schema"] == 1
    assert set(document["machines"]) == set(standing.machines)
    assert "etcd up" in document["machines"]["etcd-1"]["services"]
    assert "edge-agent held" in document["machines"]["edge-1"]["services"]
    assert lab("fault", "link-cut", "--on", "nat-a", "--id", LAB_ID).returncode == 0
    assert json.loads(lab("status", "--json", "--id", LAB_ID).stdout)["faults"] == [["link-cut", "nat-a"]]
    assert "in force: link-cut on nat-a" in lab("status", "--id", LAB_ID).stdout
    assert lab("heal", "link-cut", "--on", "nat-a", "--id", LAB_ID).returncode == 0
    assert json.loads(lab("status", "--json", "--id", LAB_ID).stdout)["faults"] == []


def test_exec_runs_inside_with_our_command_on_the_path(standing: World) -> None:
    found = lab("exec", "gw-a", "--id", LAB_ID, "--", "hostname")
    assert (found.returncode, found.stdout) == (0, "gw-a\n")
    assert lab("exec", "orch-1", "--id", LAB_ID, "--", "bgplb", "version").returncode == 0
    assert lab("exec", "gw-a", "--id", LAB_ID, "--", "false").returncode == 1


def test_logs_outlive_a_power_cut(standing: World) -> None:
    assert lab("fault", "power-cut", "--on", "transit", "--id", LAB_ID).returncode == 0
    assert "Started" in lab("logs", "transit", "operator-bird", "--id", LAB_ID).stdout
    assert lab("exec", "transit", "--id", LAB_ID, "--", "true").returncode == 6
    assert lab("heal", "power-cut", "--on", "transit", "--id", LAB_ID).returncode == 0
    assert lab("exec", "transit", "--id", LAB_ID, "--", "true").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("exec", "gw-z", "--", "true"), 4, "gw-b"),
        (("fault", "earthquake", "--on", "gw-a"), 4, "power-cut"),
        (("fault", "power-cut"), 4, "gw-a"),
        (("heal", "power-cut", "--on", "gw-a"), 6, "not in force"),
        (("logs", "gw-a", "nothing"), 4, "nothing"),
    ],
)
def test_what_can_not_be_is_refused_with_a_hint(
    standing: World, arguments: tuple[str, ...], code: int, word: str
) -> None:
    if "--" in arguments:
        at = arguments.index("--")
        arguments = (*arguments[:at], "--id", LAB_ID, *arguments[at:])
    else:
        arguments = (*arguments, "--id", LAB_ID)
    refused = lab(*arguments)
    assert refused.returncode == code, refused.stderr
    assert word in refused.stderr


def test_an_unknown_lab_is_not_found() -> None:
    assert lab("down", "--id", f"{LAB_ID}none").returncode == 4


def test_a_result_that_can_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    assert lab("demo", "--json", str(tmp_path), timeout_s=20.0).returncode == 2


def test_an_interrupted_demo_leaves_nothing(standing: World) -> None:
    interrupted = World(f"{LAB_ID}d", quiet)
    demo = subprocess.Popen(
        [COMMAND, "lab", "demo", "--id", interrupted.lab_id], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        control.wait_for("the demo's machines", lambda: len(interrupted.pids()) >= 15 or None, 30.0)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30.0) == 1
        assert not interrupted.exists()
        assert standing.pids()
    finally:
        demo.kill()
        demo.wait()
        if interrupted.exists():
            interrupted.down()


def test_a_lab_that_fails_half_way_is_removed(standing: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = World(f"{LAB_ID}e", quiet)
    monkeypatch.setattr(World, "make_bridges", failing)
    with pytest.raises(LabError, match="no bridges today"):
        broken.up(daemons=False)
    assert not broken.exists()
    assert broken.lab_id not in world.existing_labs()


def failing(made: World) -> None:
    raise LabError("no bridges today")


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingPrerequisite, match="root") as refused:
        check_prerequisites()
    assert refused.value.exit_code == 8
