"""What each daemon has given up, read from the kernel's own account of the real processes."""

import stat
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from dataplane.capabilities import Capability
from orchestrator.wiring.hardening import EDGE, NODE, ORCHESTRATOR, Privileges
from tests.wiring.box import PYTHON, REPOSITORY, Box, Daemon, need
from tests.wiring.test_daemons import remembered

pytestmark = [pytest.mark.root]

ROLES = [("orchestrator", ORCHESTRATOR), ("edge-agent", EDGE), ("node-agent", NODE)]


def status(task: Path) -> dict[str, str]:
    """The fields of a /proc/.../status file."""
    lines = (line.split(":", 1) for line in (task / "status").read_text().splitlines())
    return {name: value.strip() for name, value in lines}


def masks(found: dict[str, str]) -> dict[str, int]:
    return {name: int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}


def mask(capabilities: frozenset[Capability]) -> int:
    return sum(1 << capability for capability in capabilities)


def started(box: Box, role: str) -> Daemon:
    """The daemon at work: an agent has its tunnels, a node agent its responder as well."""
    if role == "orchestrator":
        return box.bgplb(role, box.config(role))
    need("wireguard-go")
    remembered(box, role)
    daemon = box.bgplb(role, box.config(role))
    tunnel = "bgplb-g0" if role == "edge-agent" else "bgplb-e0"
    box.wait(lambda: tunnel in box.links(), f"the tunnel: {daemon.log.read_text()}")
    return daemon


@pytest.mark.parametrize(("role", "privileges"), ROLES, ids=[role for role, _ in ROLES])
def test_a_daemon_keeps_only_what_it_needs(box: Box, role: str, privileges: Privileges) -> None:
    process = Path(f"/proc/{started(box, role).process.pid}")
    tasks = sorted((process / "task").iterdir())
    assert tasks
    for task in tasks:  # a thread that was started before would still have everything
        found = status(task)
        assert masks(found) == {
            "CapInh": 0,
            "CapPrm": mask(privileges.always | privileges.at_times),
            "CapEff": mask(privileges.always),
            "CapBnd": mask(privileges.always | privileges.at_times),
            "CapAmb": 0,
        }, task
        assert found["NoNewPrivs"] == "1"
        assert found["Umask"] == "0077"
    limit = next(line for line in (process / "limits").read_text().splitlines() if line.startswith("Max core file"))
    assert limit.split()[4:6] == ["0", "0"]


@pytest.mark.parametrize("role", ["ORCHESTRATOR", "EDGE", "NODE"])
def test_no_core_file_and_no_other_reads_its_memory(role: str) -> None:
    """PR_GET_DUMPABLE before and after, in a process of its own: nothing in /proc tells it of another process."""
    script = (
        "import ctypes; from orchestrator.wiring import hardening\n"
        "look = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)\n"
        f"before = look(); hardening.harden(hardening.{role}); print(before, look())"
    )
    done = subprocess.run(
        [PYTHON, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["1", "0"]


def test_what_an_agent_starts_gets_no_more_than_it_has(box: Box) -> None:
    agent = started(box, "edge-agent")
    network = Path(f"/proc/{agent.process.pid}/ns/net").readlink()
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it ended meanwhile
            if process.name.isdigit() and (process / "ns" / "net").readlink() == network:
                found += [process] if (process / "comm").read_text().strip() == "wireguard-go" else []
    assert found
    for process in found:
        assert masks(status(process))["CapPrm"] == mask(EDGE.always)


def test_a_node_agent_makes_its_responder_and_enters_it(box: Box) -> None:
    started(box, "node-agent")
    box.wait(lambda: "bgplb-probe" in box.run("ls", "/run/netns").stdout, "the responder's namespace")
    box.wait(lambda: "bgplb-p0" in box.links(), "its veth")
    inside = box.run("ip", "netns", "exec", "bgplb-probe", "ip", "-o", "-4", "address", "show", "p0").stdout
    assert "169.254.77.2/30" in inside


def test_sockets_and_folders_have_their_modes(box: Box) -> None:
    need("bird")
    box.bgplb("orchestrator", box.config("orchestrator"))
    started(box, "edge-agent")
    box.start("bird", "-f", "-c", "/run/bgplb/bird/bird.conf", "-s", "/run/bgplb/bird.ctl", name="bird")
    modes = {
        "/run/bgplb": 0o755,
        "/run/bgplb/bird": 0o755,
        "/run/bgplb/bird/bird.conf": 0o644,
        "/run/bgplb/orchestrator.sock": 0o660,
        "/run/bgplb/bird.ctl": 0o660,
    }
    for path, mode in modes.items():
        box.wait(lambda path=path: box.run("stat", path, check=False).returncode == 0, path)  # type: ignore[misc]
        assert int(box.run("stat", "-c", "%a", path).stdout, 8) == mode, path
    for file in (box.folder / "state-edge-agent").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
