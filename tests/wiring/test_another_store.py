"""Real daemons and a real etcd that loses its data, is put back from a backup, or is another one: traffic stays.

The edge agent works from its disk, so that there is a route in the kernel that must not move.
"""

import json
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.store.keys import Keys
from tests.agents.fakes import WEB
from tests.wiring.box import BGPLB, Box, Daemon, need
from tests.wiring.test_daemons import remembered
from tests.wiring.test_replicas import MANIFESTS

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

KEYS = Keys()
EDGE = KEYS.agent("edge", "edge-agent")
HELD = 3
"""The number that the edge has accepted, as `remembered` leaves it."""


class Scene:
    """An etcd, an orchestrator and an edge agent that know each other."""

    def __init__(self, box: Box) -> None:
        need("etcd", "etcdctl", "wireguard-go")
        self.box = box
        self.etcd = box.etcd()
        (box.folder / "manifests").mkdir()
        (box.folder / "manifests" / "all.yaml").write_text(MANIFESTS.replace("edge-1", "edge-agent"))
        self.deciding = box.config("orchestrator", manifests=str(box.folder / "manifests"))
        self.orchestrator = box.bgplb("orchestrator", self.deciding)
        box.wait(lambda: self.orchestrator.events("leadership began"), "a leader")
        remembered(box, "edge-agent")
        self.steering = box.config("edge-agent")
        self.edge = box.bgplb("edge-agent", self.steering)
        box.wait(lambda: EDGE in box.stored(), "the edge: " + self.edge.log.read_text())
        box.wait(self.steers, "the route: " + self.edge.log.read_text())

    def steers(self) -> bool:
        return "dev bgplb-g0" in self.box.run("ip", "route", "show", WEB[0]).stdout

    def stored(self, key: str) -> Any:
        """A key's value, while an etcd answers."""
        done = self.box.run("etcdctl", "get", "--print-value-only", key, check=False)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def stop_etcd(self) -> None:
        self.etcd.process.kill()
        self.etcd.process.wait(10)

    def start_etcd(self, *arguments: str) -> None:
        folder = self.box.folder / "etcd"
        self.etcd = self.box.start("etcd", f"--data-dir={folder}", "--log-level=error", *arguments, name="etcd")
        self.box.wait(lambda: self.box.run("etcdctl", "get", "x", check=False).returncode == 0, "etcd", 30)

    def agent_again(self) -> Daemon:
        """The edge agent is killed and started anew."""
        self.edge.process.kill()
        self.edge.process.wait(10)
        self.edge = self.box.bgplb("edge-agent", self.steering)
        return self.edge

    def refused(self) -> None:
        """Edge and orchestrator refuse, also after a restart, and nobody moved anything."""
        self.box.wait(lambda: (self.stored(EDGE) or {}).get("refuses"), "the edge: " + self.edge.log.read_text(), 30)
        log = self.orchestrator.log
        self.box.wait(lambda: self.orchestrator.events("the store is not obeyed"), "it refuses: " + log.read_text(), 30)
        self.shows_what_it_knew()
        self.orchestrator.process.kill()
        self.orchestrator.process.wait(10)
        self.orchestrator = self.box.bgplb("orchestrator", self.deciding)
        self.box.wait(lambda: self.orchestrator.events("the store is not obeyed"), "the orchestrator refuses")
        self.agent_again()
        self.box.wait(lambda: self.edge.events("the store is not obeyed"), "the edge refuses", 20)
        assert self.steers()
        # A backup has the leader of its time in it, until that lease ends.
        self.box.wait(lambda: self.stored(KEYS.leader) is None, "nobody to lead")
        assert self.stored(KEYS.observed_base("edge", "edge-agent")) is None

    def shows_what_it_knew(self) -> None:
        """The replica goes on, with its last good state for who asks, and says why it is not obeyed."""
        assert self.orchestrator.process.poll() is None
        done = self.box.run(*BGPLB, "status", "--socket", "/run/bgplb/orchestrator.sock", "-o", "json")
        status = json.loads(done.stdout)
        assert [pool["name"] for pool in status["pools"]] == ["web"]
        assert any("'bgplb store accept'" in problem for problem in status["problems"])

    def accept(self) -> None:
        """After `store accept` there is a leader, the edge obeys, and every number is a new one."""
        done = self.box.run(*BGPLB, "store", "accept", "--edge", "edge-agent", "--config", str(self.deciding))
        assert f"edge edge-agent: highest number {HELD}" in done.stdout
        assert "every daemon that is registered obeys it" in done.stdout
        self.box.wait(lambda: self.orchestrator.events("leadership began"), "a leader", 30)
        self.box.wait(lambda: self.stored(KEYS.observed_base("edge", "edge-agent")), "the edge reports", 30)
        assert self.stored(KEYS.epoch_counter) >= HELD
        assert self.steers()


def write_many(scene: Scene) -> None:
    """What an etcd that others use does in a second or two: each write is a revision."""
    loop = "for n in $(seq 60); do etcdctl put /elsewhere x; done"
    scene.box.run("sh", "-c", loop)


def emptied(scene: Scene) -> None:
    scene.stop_etcd()
    shutil.rmtree(scene.box.folder / "etcd")
    scene.start_etcd()


def put_back(scene: Scene) -> None:
    """From a backup that was taken before the edge's last minutes."""
    backup = scene.box.folder / "backup.db"
    scene.box.run("etcdctl", "snapshot", "save", str(backup))
    write_many(scene)
    time.sleep(1.0)  # some heartbeats, which are how the edge knows
    scene.stop_etcd()
    folder = scene.box.folder / "etcd"
    shutil.rmtree(folder)
    scene.box.run("etcdctl", "snapshot", "restore", str(backup), f"--data-dir={folder}")
    scene.start_etcd()


def another(scene: Scene) -> None:
    """Another cluster behind the same address, with a history that is longer."""
    scene.stop_etcd()
    shutil.rmtree(scene.box.folder / "etcd")
    scene.start_etcd("--initial-cluster-token=another")
    write_many(scene)
    write_many(scene)


@pytest.mark.parametrize("lose", [emptied, put_back, another], ids=lambda lose: lose.__name__)
def test_it_is_refused_while_traffic_stays_and_accepted_by_an_order(box: Box, lose: Callable[[Scene], None]) -> None:
    scene = Scene(box)
    lose(scene)
    scene.refused()
    scene.accept()
    scene.agent_again()
    scene.box.wait(lambda: scene.edge.events("registered"), "the edge again")
    assert not scene.edge.events("the store is not obeyed"), "and it remembers the new one"
    assert scene.steers()
