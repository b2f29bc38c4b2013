"""docs/running.md, typed into six machines: each step takes its text from the page."""

import array
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.docs.pages import REPOSITORY, Page, pages
from tests.trust.small_internet import SmallInternet
from tests.trust.systemd_machine import SystemdMachine

ORCHESTRATORS, GATEWAYS, EDGE = ("orch-1", "orch-2", "orch-3"), ("gw-a", "gw-b"), "edge-1"
ARRIVED = "/root/arrived"
SERVICE, PORT = "192.0.2.10", "7"
LAB = REPOSITORY / "deploy" / "lab"
(PAGE,) = (page for page in pages() if page.name == "docs/running.md")


def blocks(number: int, language: str) -> list[str]:
    """The blocks of one numbered section of the page."""
    sections = re.split(r"^## ", PAGE.text, flags=re.MULTILINE)
    (found,) = (each for each in sections if each.startswith(f"{number}. "))
    return Page("", found).blocks(language)


class Installation:
    """The machines, wired; `install` goes through the page up to its section 7."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.net = SmallInternet()
        self.machines: dict[str, SystemdMachine] = {}
        try:
            for name in (*ORCHESTRATORS, EDGE, *GATEWAYS):
                self.machines[name] = SystemdMachine(folder, name)
                self.net.connect(self.machines[name])
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> SystemdMachine:
        return self.machines[name]

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        self.net.close()

    def install(self) -> None:
        self._certificates()
        self._etcd()
        for name in ORCHESTRATORS:
            self._orchestrator(name)
        self._edge()
        for number, name in enumerate(GATEWAYS, 1):
            self._gateway(name, number)
        self._operator()

    def bring(self, name: str, *files: str) -> None:
        """Carry `ca.pem` and files of a machine's own there."""
        for file in ("ca.pem", *files):
            self[name].write(f"{ARRIVED}/{file}", self["orch-1"].read(f"/root/pki/{file}"), 0o600)

    def _certificates(self) -> None:
        authority, every, _ = blocks(2, "sh")
        self["orch-1"].type(authority, "/root")
        self["orch-1"].type(every, "/root")

    def _etcd(self) -> None:
        prepare, restart, bootstrap = blocks(3, "sh")
        (settings,) = blocks(3, "ini")
        for name in ORCHESTRATORS:
            machine, number = self[name], name[-1]
            # What Debian's package leaves: its folder, and an etcd of one member.
            machine.run("install", "-d", "-o", "etcd", "-g", "etcd", "-m", "700", "/var/lib/etcd")
            machine.run("systemctl", "start", "etcd")
            self.bring(name, f"etcd-{number}.pem", f"etcd-{number}.key")
            machine.type(prepare.replace("etcd-1", f"etcd-{number}"), ARRIVED)
            lines = [
                line
                if line.startswith("ETCD_INITIAL_CLUSTER=")
                else line.replace("etcd-1", f"etcd-{number}").replace("10.99.0.11", f"10.99.0.1{number}")
                for line in settings.splitlines()
            ]
            machine.write("/etc/default/etcd", "\n".join(lines) + "\n")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self[name].type(restart), ORCHESTRATORS))
        self["orch-1"].write("/root/etcd-root.yaml", blocks(3, "yaml")[0])
        assert "access control: on" in self["orch-1"].type(bootstrap)

    def _orchestrator(self, name: str) -> None:
        prepare, start = blocks(4, "sh")
        config, manifests = blocks(4, "yaml")
        self.bring(name, f"bgplb-orchestrator-{name}.pem", f"bgplb-orchestrator-{name}.key")
        self[name].type(prepare.replace("orch-1", name), ARRIVED)
        self[name].write("/etc/bgplb/orchestrator.yaml", config.replace("orch-1", name))
        self[name].write("/etc/bgplb/manifests/web.yaml", manifests)
        self[name].type(start)

    def _keys(self, name: str, user: str) -> None:
        self.bring(name, f"{user}.pem", f"{user}.key")
        self[name].type(blocks(2, "sh")[2].replace("bgplb-edge-edge-1", user), ARRIVED)

    def _edge(self) -> None:
        self._keys(EDGE, "bgplb-edge-edge-1")
        self[EDGE].write("/etc/bgplb/edge-agent.yaml", blocks(5, "yaml")[0])
        self[EDGE].type(blocks(5, "sh")[0])

    def _gateway(self, name: str, number: int) -> None:
        self._keys(name, f"bgplb-node-{name}")
        config = blocks(6, "yaml")[0].replace("gw-a", name).replace("10.10.0.11", f"10.10.0.1{number}")
        self[name].write("/etc/bgplb/node-agent.yaml", config.replace("10.10.0.21", f"10.10.0.1{3 - number}"))
        self[name].type(blocks(6, "sh")[0])
        echo = str(LAB / "echo.py").replace(str(REPOSITORY), "/opt/bgplb")
        self[name].start("/opt/python/bin/python3", "-I", "-S", echo, "udp", PORT, SERVICE)

    def _operator(self) -> None:
        self.bring("orch-1", "bgplb-operator-alice.pem", "bgplb-operator-alice.key")
        self["orch-1"].write("/etc/bgplb/cli.yaml", blocks(7, "yaml")[0])
        self["orch-1"].type(blocks(7, "sh")[0], ARRIVED)

    def unplug(self, gateway: str) -> None:
        """Pull its cable to the world."""
        self[gateway].run("ip", "link", "set", "eth0", "down")

    def plug_in(self, gateway: str) -> None:
        """And put it back; the default route went with the cable."""
        self[gateway].run("ip", "link", "set", "eth0", "up")
        self[gateway].run("ip", "route", "add", "default", "via", f"10.0.{GATEWAYS.index(gateway) + 1}.1")

    def leader(self) -> str | None:
        """Who leads, None while nobody does or nobody answers."""
        found = self.status().get("leader")
        return str(found["name"]) if found else None

    def steered(self, gateway: str) -> bool:
        """Whether the edge's route of the pool leads to this gateway's tunnel."""
        route = self[EDGE].run("ip", "route", "show", "192.0.2.0/26").split()
        if "dev" not in route:
            return False
        return f"bgplb:{gateway}" in self[EDGE].run("ip", "link", "show", route[route.index("dev") + 1])

    def status(self) -> dict[str, Any]:
        """`bgplb status` as alice sees it; empty while nobody answers."""
        done = self["orch-1"].ask("bgplb", "status", "-o", "json")
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def pool(self) -> dict[str, Any]:
        """The pool of the page, empty while there is none."""
        pools = self.status().get("pools", [])
        return dict(pools[0]) if pools else {}

    def settled(self, owner: str | None = None) -> bool:
        """Whether the pool is well, with a ready standby, at this owner if one is named."""
        status = self.status()
        ready = [gateway["name"] for gateway in status.get("gateways", []) if gateway["ready"]]
        pools = status.get("pools", [])
        good = bool(pools) and pools[0]["state"] == "ActiveHealthy" and sorted(ready) == sorted(GATEWAYS)
        return good and owner in (None, pools[0]["owner"])

    def wait(self, condition: Callable[[], object], what: str, within_s: float = 40.0) -> None:
        """Ask until it holds; raises AssertionError saying how things stand."""
        end = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end, f"waited {within_s:g} s for {what}: {json.dumps(self.status())}"
            time.sleep(0.2)


class Probes:
    """A probe each 5 ms from beyond the edge to the service, from now until `lost`."""

    def __init__(self, installation: Installation) -> None:
        self.out = installation.folder / f"probes-{time.monotonic_ns()}"
        words = (PORT, "5000", "0", str(self.out), SERVICE)
        enter = ["nsenter", f"--target={installation.net.provider.pid}", "--net", "--"]
        self.process = subprocess.Popen([*enter, sys.executable, "-I", "-S", str(LAB / "prober.py"), *words])
        end = time.monotonic() + 10
        while not Path(f"{self.out}.start").exists():
            assert time.monotonic() < end, "waited 10 s for the prober"
            time.sleep(0.01)

    def lost(self) -> tuple[int, int]:
        """End it; how many were lost, of how many."""
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.wait(10)
        sent, answers = array.array("q"), array.array("q")
        sent.frombytes(Path(f"{self.out}.sent").read_bytes())
        answers.frombytes(Path(f"{self.out}.answers").read_bytes())
        return len(sent) - len(set(answers[1::3])), len(sent)
