"""A machine whose first process is systemd, with the programs that a newcomer has installed, and nothing else yet."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wiring.box import REPOSITORY, need

SYSTEMD = Path("/lib/systemd/systemd")
PACKAGES = next(Path(path) for path in sys.path if path.endswith("site-packages"))
PROGRAM = """\
#!/opt/python/bin/python3
import sys
sys.path[:0] = ["/opt/bgplb", "/opt/packages"]
from orchestrator.cli.main import main
main()
"""
LIBRARIES = "/opt/python/lib"
"""The interpreter may come with a library of its own beside it."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAMESPACES = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child")
BOOT = str(Path(__file__).with_name("boot.py"))
BOOT_S = 30.0


def cgroup_mount() -> Path:
    """Where the unified hierarchy of control groups is; skips by name where there is none that can be written."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            return Path(target)
    pytest.skip("needs a cgroup2 mount that can be written")


class SystemdMachine:
    """Up when made; `close` ends every process of it. Its network is empty but for what a test wires."""

    def __init__(self, folder: Path, name: str) -> None:
        need("unshare", "nsenter", "ip", "etcd", "bird", "wireguard-go")
        if not SYSTEMD.exists():
            pytest.skip("needs systemd")
        self.name, self.pid = name, 0
        self.group = cgroup_mount() / f"bgplb-t{os.getpid()}-{name}"
        root = folder / f"root-{name}"
        root.mkdir()
        files = {
            "/usr/local/bin/bgplb": PROGRAM,
            "/etc/hostname": name,
            "/etc/hosts": f"127.0.0.1 localhost {name}\n",
            "/etc/systemd/system.conf": f"[Manager]\nDefaultEnvironment=LD_LIBRARY_PATH={LIBRARIES}\n",
        }
        modes = {"/usr/local/bin/bgplb": "755"}
        spec = folder / f"{name}.json"
        binds = [(sys.base_prefix, "/opt/python"), (str(REPOSITORY), "/opt/bgplb"), (str(PACKAGES), "/opt/packages")]
        document = {
            "root": str(root),
            "binds": binds,
            "files": files,
            "modes": {"/usr/local/bin/bgplb": "755", **modes},
        }
        spec.write_text(json.dumps(document))
        self.group.mkdir()
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", *NAMESPACES, sys.executable, "-I", "-S", BOOT, str(spec)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=self._join,
            )  # fmt: skip
        try:
            self.wait(self._find, "the first process", BOOT_S)
            self.wait(lambda: self.ask("systemctl", "is-active", "basic.target").stdout.strip() == "active", "systemd")
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        """In the new process: into a control group of the machine's own, which is then the root of what it sees."""
        (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def _find(self) -> bool:
        """Look for the machine's first process; raises AssertionError when it ended."""
        assert self.process.poll() is None, self.log.read_text()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                self.pid = int(child)
                return True
        return False

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program inside, whatever comes of it."""
        enter = ["nsenter", f"--target={self.pid}", "--all", "--", *command]
        environment = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/root", "LD_LIBRARY_PATH": LIBRARIES}
        return subprocess.run(enter, capture_output=True, text=True, timeout=60, check=False, env=environment)

    def type(self, script: str, folder: str = "/opt/bgplb") -> str:
        """Type lines at a root prompt; what they print. Raises AssertionError at the first that fails."""
        return self.run("sh", "-e", "-c", f"cd {folder}\n{script}")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file there, as with an editor."""
        self.run("mkdir", "-p", str(Path(path).parent))
        target = Path(f"/proc/{self.pid}/root{path}")
        target.write_text(text)
        target.chmod(mode)

    def read(self, path: str) -> str:
        """A file of it."""
        return Path(f"/proc/{self.pid}/root{path}").read_text()

    def run(self, *command: str) -> str:
        """Run a program inside; its output. Raises AssertionError with its complaint."""
        done = self.ask(*command)
        assert done.returncode == 0, f"{self.name}: {' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def property(self, unit: str, name: str) -> str:
        """What systemd says of a unit."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).strip()

    def journal(self, unit: str) -> str:
        """What a unit wrote."""
        return self.run("journalctl", "-u", unit, "-o", "cat", "--no-pager")

    def wait(self, condition: Callable[[], object], what: str, within_s: float = 20.0) -> None:
        """Ask until it holds; raises AssertionError with the journal's end."""
        end = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end:
                tail = self.ask("journalctl", "-n", "40", "--no-pager", "-o", "short-monotonic").stdout
                raise AssertionError(f"{self.name}: waited {within_s:g} s for {what}\n{tail}")
            time.sleep(0.1)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Leave a program running inside; it ends with the machine."""
        enter = ["nsenter", f"--target={self.pid}", "--all", "--", *command]
        return subprocess.Popen(enter, stdin=subprocess.DEVNULL, env={"PATH": PATH, "LD_LIBRARY_PATH": LIBRARIES})

    def main_pid(self, unit: str) -> int:
        """Its process as the machine counts, 0 while there is none."""
        return int(self.property(unit, "MainPID"))

    def close(self) -> None:
        """Kill the first process, and with it all others."""
        self.process.kill() if self.pid == 0 else os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)
        folders = [path for path in self.group.rglob("*") if path.is_dir()]
        for folder in [*sorted(folders, key=lambda path: -len(path.parts)), self.group]:
            self._remove(folder)

    def _remove(self, folder: Path) -> None:
        """An emptied control group can be removed a moment after the last process of it is gone."""
        end = time.monotonic() + 5.0
        while True:
            try:
                return folder.rmdir()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
