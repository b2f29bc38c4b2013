"""A machine of a test's own: network and mount namespace with a private /run, in which the real commands run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

PYTHON = sys.executable
BGPLB = (PYTHON, "-c", "from orchestrator.cli.main import main; main()")
REPOSITORY = Path(__file__).resolve().parents[2]


def need(*programs: str) -> None:
    """Skip by name without root or one of these programs."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")


class Daemon:
    """One of our processes, its log in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def lines(self) -> list[dict[str, Any]]:
        """What it logged so far; a line that is no JSON fails the test: a traceback, most likely."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.strip()]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line.get("event") == event]

    def terminate(self, within_s: float = 10.0, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; the exit code and the seconds that it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(within_s), time.monotonic() - began

    def end(self, within_s: float = 20.0) -> int:
        """Wait until it ends by itself; its exit code."""
        return self.process.wait(within_s)


class Box:
    """The machine. `run` waits for a command, `start` leaves a daemon running; `close` ends all of it."""

    def __init__(self, folder: Path) -> None:
        need("unshare", "nsenter", "ip", "nft")
        self.folder = folder
        self._daemons: list[Daemon] = []
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation=private", "sleep", "600"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        ours = os.stat("/proc/self/ns/net").st_ino
        self.wait(lambda: os.stat(f"/proc/{self._holder.pid}/ns/net").st_ino != ours, "the namespaces")
        self.wait(lambda: self._comm() == "sleep", "unshare to be done")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        self.run("mount", "-t", "sysfs", "sysfs", "/sys")
        self.run("mkdir", "-p", "/run/netns")
        self.run("ip", "link", "set", "lo", "up")

    def _comm(self) -> str:
        return Path(f"/proc/{self._holder.pid}/comm").read_text().strip()

    def _inside(self, command: tuple[str, ...]) -> list[str]:
        return ["nsenter", f"--target={self._holder.pid}", "--net", "--mount", "--", *command]

    def wire(self, other: "Box", ours: str, theirs: str) -> None:
        """A cable to another box, with an address (CIDR) at each end."""
        name = f"w{self._holder.pid}"
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", name, "netns", str(other._holder.pid))
        for box, address in ((self, ours), (other, theirs)):
            box.run("ip", "address", "add", address, "dev", name)
            box.run("ip", "link", "set", name, "up")

    @property
    def network(self) -> Path:
        """Its network namespace, as a process of it shows it."""
        return Path(f"/proc/{self._holder.pid}/ns/net").readlink()

    def run(self, *command: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command inside and wait for it."""
        done = subprocess.run(
            self._inside(command), capture_output=True, text=True, timeout=60, check=False, input=stdin, cwd=REPOSITORY
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def start(self, *command: str, name: str = "daemon") -> Daemon:
        """Start a process inside."""
        log = self.folder / f"{name}-{len(self._daemons)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self._inside(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=REPOSITORY
            )
        daemon = Daemon(process, log)
        self._daemons.append(daemon)
        return daemon

    def bgplb(self, role: str, config: Path) -> Daemon:
        """Start one of our daemons and wait until it took its signals over."""
        daemon = self.start(*BGPLB, role, "--config", str(config), name=role)
        self.wait(
            lambda: daemon.process.poll() is not None or daemon.events("started") or daemon.events("ended"),
            f"{role} to start: {daemon.log.read_text()}",
        )
        return daemon

    def config(self, role: str, **fields: Any) -> Path:
        """A configuration file; what is not given fits a test. Each `state_dir` stands for an installation."""
        settings: dict[str, Any] = {
            "name": role,
            "etcd": {"endpoints": ["http://127.0.0.1:2379"]},
            "state_dir": str(self.folder / f"state-{role}"),
            "run_dir": "/run/bgplb",
            "http": {"listen": None},
            **fields,
        }
        if role == "node-agent":
            settings.setdefault("lan", {"address": "10.10.0.11"})
        path = self.folder / f"{role}-{len(list(self.folder.glob('*.yaml')))}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def etcd(self, address: str = "127.0.0.1") -> Daemon:
        """An etcd on the box's own loopback, and on an address of it that others reach."""
        need("etcd", "etcdctl")
        urls = ",".join(f"http://{host}:2379" for host in sorted({"127.0.0.1", address}))
        flags = [f"--listen-client-urls={urls}", f"--advertise-client-urls={urls}", "--log-level=error"]
        daemon = self.start("etcd", f"--data-dir={self.folder / 'etcd'}", *flags, name="etcd")
        self.wait(lambda: self.run("etcdctl", "get", "x", check=False).returncode == 0, "etcd", 30)
        return daemon

    def stored(self) -> dict[str, str]:
        """All keys of that etcd."""
        lines = self.run("etcdctl", "get", "--prefix", "/bgplb/").stdout.splitlines()
        return dict(zip(lines[::2], lines[1::2], strict=True))

    def links(self) -> list[str]:
        listing = json.loads(self.run("ip", "-j", "link", "show").stdout)
        return sorted(link["ifname"] for link in listing)

    def wait(self, condition: Callable[[], object], what: str, within_s: float = 15.0) -> None:
        """Wait for a condition; raises when it does not come."""
        end = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {within_s:g} s: {what}")
            time.sleep(0.05)

    def close(self) -> None:
        """End what was started, and with the last interface the programs behind them."""
        for daemon in self._daemons:
            if daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait(10)
        for name in [link for link in self.links() if link != "lo"]:
            self.run("ip", "link", "del", name, check=False)
        self._holder.kill()
        self._holder.wait(10)
