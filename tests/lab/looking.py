"""All that comes out of a lab, and the secrets that are in it: what they have in common must be nothing."""

import base64
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from bgplb_lab import control, credentials, topology
from bgplb_lab.errors import LabError
from bgplb_lab.etcdctl import etcdctl
from bgplb_lab.world import World

COMMAND = str(Path(sys.executable).parent / "bgplb")
METRICS = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
PORTS = {
    **dict.fromkeys(topology.ORCHESTRATORS, 9177),
    **dict.fromkeys(topology.EDGES, 9178),
    **dict.fromkeys(topology.GATEWAYS, 9179),
}
SHORT = 20
"""A line of a key's file that is no longer may be in other texts too."""
LOOK_EVERY_S = 0.5
TIMEOUT_S = 240.0
ANSWER_TIMEOUT_S = 20.0


class Look:
    """`seen` is what came out, by source; `secrets` what must not be in it, by file. Both grow with each look."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: dict[str, set[str]] = {}
        self.secrets: dict[str, str] = {}
        self.printed = ""
        """By the last command."""

    def run(self, *arguments: str) -> int:
        """`bgplb` to its end, its exit code; what it prints is seen, and what is seen while it runs."""
        command = [COMMAND, *arguments]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdin is not None
            process.stdin.write("bgplb status\nexit\n")  # of interest to a shell alone
            end = time.monotonic() + TIMEOUT_S
            while True:
                try:
                    self.printed = process.communicate(timeout=LOOK_EVERY_S)[0]
                    break
                except subprocess.TimeoutExpired:
                    self.around()
                    if time.monotonic() > end:
                        process.kill()
                        raise
        self.see(" ".join(arguments), self.printed)
        return process.returncode

    def see(self, source: str, text: str) -> None:
        """Keep a text that came out."""
        self.seen.setdefault(source, set()).add(text)

    def around(self) -> None:
        """The lab's secrets and logs, and the command line and environment of every process of this computer."""
        with suppress(OSError):  # the lab is just being removed
            self._secrets()
        for path in self.world.disk_folder.glob("*/log/*"):
            with suppress(OSError):
                # A log only grows: what it says now is all that it ever said.
                self.seen[f"{path.parent.parent.name}/{path.name}"] = {path.read_text(errors="replace")}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                name = (process / "comm").read_text().strip()
                self.see(f"command line of {name}", (process / "cmdline").read_text(errors="replace"))
                words = (process / "environ").read_text(errors="replace").split("\0")
                # The lab's way to look past our daemons is etcd's own command, which takes a password no better way.
                told = [word for word in words if not word.startswith("ETCDCTL_PASSWORD=")]
                self.see(f"environment of {name}", "\n".join(told))

    def inside(self) -> None:
        """What a lab at work answers: all that the store holds, and each daemon's metrics."""
        self.see("the store", etcdctl(self.world, "get", "--prefix", ""))
        for machine in self.world.pids().keys() & PORTS.keys():
            what = f"metrics of {machine}"
            self.see(what, control.wait_for(what, partial(self._metrics, machine), ANSWER_TIMEOUT_S, LOOK_EVERY_S))

    def found(self) -> set[str]:
        """Which secret is where. Raises AssertionError when it looked at too little to say so."""
        assert {"machine.log", "wireguard.key"} <= {Path(name).name for name in (*self.seen, *self.secrets)}
        assert {f"command line of {name}" for name in ("etcd", "bird", "wireguard-go")} <= self.seen.keys()
        return {
            f"{name} in {source}"
            for source, texts in self.seen.items()
            for name, word in self.secrets.items()
            if any(word in text for text in texts)
        }

    def _metrics(self, machine: str) -> str | None:
        """None while its daemon, that may just have been started again, does not answer."""
        url = f"http://127.0.0.1:{PORTS[machine]}/metrics"
        with suppress(LabError):
            return self.world.inside(machine, sys.executable, "-c", METRICS, url)
        return None

    def _secrets(self) -> None:
        """Every password, and every line of every private key, of etcd's users, members and tunnels."""
        for path in sorted(self.world.disk_folder.glob("*/*/**/*")):
            if path.suffix not in (".key", ".password") and path.parent.name != credentials.PASSWORDS:
                continue
            name = str(path.relative_to(self.world.disk_folder))
            for number, line in enumerate(path.read_text().splitlines()):
                if len(line) > SHORT and not line.startswith("---"):
                    self.secrets[name if number == 0 else f"{name}, line {number}"] = line
            if path.name == "wireguard.key":
                self.secrets[f"{name}, hex"] = base64.b64decode(path.read_text()).hex()
