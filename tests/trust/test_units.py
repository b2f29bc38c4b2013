"""The units of deploy/systemd: accepted by systemd, and in step with what the daemons keep and the commands are."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

from orchestrator.cli.main import app
from orchestrator.wiring.hardening import EDGE, NODE, ORCHESTRATOR, Privileges

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
DAEMONS = {"orchestrator": ORCHESTRATOR, "edge-agent": EDGE, "node-agent": NODE}
MOUNTS = re.compile(
    r"^(Protect(System|Home|Proc|Kernel\w+|ControlGroups|Hostname|Clock)|Private\w+|\w+Paths|ProcSubset)=", re.M
)
"""Directives that give a service a mount namespace of its own (systemd.exec(5))."""


def setting(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.M)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_it(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for each in UNITS:  # the programs may not be installed here: what is checked is everything else
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", each.read_text(), flags=re.M)
        (tmp_path / each.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("role", "privileges"), DAEMONS.items(), ids=DAEMONS)
def test_it_leaves_the_daemon_what_it_needs_and_no_more(role: str, privileges: Privileges) -> None:
    text = (FOLDER / f"bgplb-{role}.service").read_text()
    (listed,) = setting(text, "CapabilityBoundingSet")
    wanted = {f"CAP_{each.name}" for each in privileges.always | privileges.at_times}
    dropping = {"CAP_SETPCAP"} if wanted else set()
    assert set(listed.split()) == wanted | dropping


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_comes_back_at_once_and_dumps_nothing(unit: Path) -> None:
    text = unit.read_text()
    wanted = {"Restart": "always", "RestartSec": "1", "LimitCORE": "0", "UMask": "0077", "NoNewPrivileges": "yes"}
    assert {name: setting(text, name) for name in wanted} == {name: [value] for name, value in wanted.items()}


@pytest.mark.parametrize("role", ["edge-agent", "node-agent", "bird"])
def test_announcements_outlive_a_restart(role: str) -> None:
    text = (FOLDER / f"bgplb-{role}.service").read_text()
    assert setting(text, "RuntimeDirectoryPreserve") == ["yes"]
    if role != "bird":
        assert setting(text, "KillMode") == ["process"], "wireguard-go would die with its agent"


def test_a_bird_without_configuration_fails_no_start() -> None:
    """It ends at once until the agent has written one; any type but this may make that the end of the start's job."""
    assert setting((FOLDER / "bgplb-bird.service").read_text(), "Type") == ["simple"]


def test_names_of_namespaces_are_seen_outside_of_the_node_agent() -> None:
    assert MOUNTS.findall((FOLDER / "bgplb-node-agent.service").read_text()) == []
    assert MOUNTS.findall((FOLDER / "bgplb-edge-agent.service").read_text()), "the look must see something"


def test_the_commands_exist() -> None:
    root = typer.main.get_command(app)
    for role in DAEMONS:
        (start,) = setting((FOLDER / f"bgplb-{role}.service").read_text(), "ExecStart")
        assert start.split()[1] in root.commands  # type: ignore[attr-defined]
    (start,) = setting((FOLDER / "bgplb-bird.service").read_text(), "ExecStart")
    assert start == "/usr/sbin/bird -f -c /run/bgplb/bird/bird.conf -s /run/bgplb/bird.ctl"
