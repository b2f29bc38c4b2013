"""A real edge agent that slept, whose disk or store is full, whose member of the store is cut off, whose BIRD hangs.

It works from its disk, so that there is a route in the kernel that must or must not move.
"""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm.records import EdgePool
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.journal import EdgeJournal
from orchestrator.store.keys import Keys
from orchestrator.store.records import encode
from tests.agents.fakes import WEB
from tests.freezing import freeze
from tests.wiring.box import Box, Daemon, need
from tests.wiring.test_daemons import remembered

pytestmark = [pytest.mark.root]

KEYS = Keys()
AGENT = KEYS.agent("edge", "edge-agent")
BEAT = KEYS.heartbeat("edge", "edge-agent")
OBSERVED = KEYS.observed("edge", "edge-agent", "pool", "web")
TTL_S = 2.0
"""The least that etcd grants."""
HELD = 3
"""The number that the edge has accepted, as `remembered` leaves it."""


class Edge:
    """The agent, and what the kernel and the store say of it."""

    def __init__(self, box: Box) -> None:
        need("etcd", "etcdctl", "wireguard-go")
        self.box = box
        self.agent: Daemon

    def start(self, **fields: Any) -> None:
        lease = {"ttl_ms": int(TTL_S * 1000), "renew_every_ms": 500}
        self.agent = self.box.bgplb("edge-agent", self.box.config("edge-agent", lease=lease, **fields))
        self.box.wait(lambda: self.steers_to("bgplb-g0"), "the route: " + self.agent.log.read_text())

    def stored(self, key: str) -> Any:
        done = self.box.run("etcdctl", "get", "--print-value-only", key, check=False)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def registered(self) -> None:
        self.box.wait(lambda: self.stored(AGENT), "the registration: " + self.agent.log.read_text())

    def order(self, epoch: int, owner: str) -> None:
        """What a leader would write."""
        key = KEYS.desired("edge", "edge-agent", "pool", "web")
        self.box.run("etcdctl", "put", key, encode(EdgePool(WEB, owner, epoch)).decode())

    def steers_to(self, device: str) -> bool:
        return f"dev {device}" in self.box.run("ip", "route", "show", WEB[0]).stdout

    def confirmed(self, epoch: int) -> bool:
        report = self.stored(OBSERVED)
        return bool(report and report["epoch"] == epoch and report["installed"] and not report.get("error"))

    def until(self, condition: Any, what: str, within_s: float = 15.0) -> None:
        self.box.wait(condition, what, within_s)

    def stays(self, device: str, for_s: float) -> None:
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            assert self.steers_to(device), self.box.run("ip", "route", "show", WEB[0]).stdout
            time.sleep(0.05)


@pytest.fixture
def edge(box: Box) -> Iterator[Edge]:
    made = Edge(box)
    remembered(box, "edge-agent")
    yield made
    assert made.agent.process.poll() is None, made.agent.log.read_text()


def test_one_that_slept_longer_than_its_lease_asks_before_it_obeys(edge: Edge) -> None:
    """What lies in its buffers when it wakes may be outdated; the store is silent at that moment, so nothing moves."""
    etcd = edge.box.etcd()
    edge.start()
    edge.registered()
    freeze(edge.agent.process.pid)
    edge.order(5, "gw-b")
    edge.until(lambda: edge.stored(AGENT) is None, "its lease to end", 3 * TTL_S)
    freeze(etcd.process.pid)
    edge.agent.process.send_signal(signal.SIGCONT)
    edge.until(lambda: edge.agent.events("stood still; what is wanted is read anew"), "it to notice")
    edge.stays("bgplb-g0", 1.0)
    etcd.process.send_signal(signal.SIGCONT)
    edge.until(lambda: edge.steers_to("bgplb-g1"), "the order that is still the order", 30)
    edge.until(lambda: edge.confirmed(5), "its word", 30)
    edge.order(4, "gw-a")
    edge.stays("bgplb-g1", 1.0)
    assert edge.confirmed(5), "what is older is refused, however late it was written"


def test_one_without_room_on_its_disk_acknowledges_nothing_that_it_could_forget(edge: Edge) -> None:
    edge.box.etcd()
    edge.box.run("mkdir", "/run/small")
    edge.box.run("mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", "/run/small")
    edge.box.run("cp", str(edge.box.folder / "state-edge-agent" / "edge.json"), "/run/small/")
    edge.start(state_dir="/run/small")
    edge.registered()
    edge.box.run("dd", "if=/dev/zero", "of=/run/small/full", "bs=1k", check=False)
    epoch, owner, error = HELD, "gw-a", ""
    while not error:
        epoch, owner = epoch + 1, "gw-b" if owner == "gw-a" else "gw-a"
        assert epoch < HELD + 40, "the rest of a page holds some lines of the journal, not that many"
        edge.order(epoch, owner)

        def answered(epoch: int = epoch) -> bool:
            report = edge.stored(OBSERVED)
            return bool(report and (report["error"] or (report["epoch"] == epoch and report["installed"])))

        edge.until(answered, f"an answer to number {epoch}")
        error = edge.stored(OBSERVED)["error"]
    assert "is the disk full?" in error
    assert edge.stored(OBSERVED)["epoch"] == epoch - 1
    edge.stays("bgplb-g0" if owner == "gw-b" else "bgplb-g1", 0.5)
    assert on_disk(edge) == epoch - 1
    edge.box.run("rm", "/run/small/full")
    edge.until(lambda: edge.confirmed(epoch), "it is obeyed once there is room")
    assert on_disk(edge) == epoch


def on_disk(edge: Edge) -> int:
    """The number that a restart would begin with."""
    path = Path(f"/proc/{edge.agent.process.pid}/root/run/small/edge.json")
    return EdgeJournal(path).load(EdgeState("")).fence.pools["web"].command.epoch


@pytest.mark.chaos
def test_one_whose_store_has_no_space_serves_on_and_reports_again_once_there_is(edge: Edge) -> None:
    """etcd's NOSPACE alarm: it answers reads, refuses every write, and the leases that hang on writes run out."""
    box = edge.box
    box.start(
        "etcd", f"--data-dir={box.folder / 'etcd'}", "--log-level=error", "--quota-backend-bytes=400000", name="etcd"
    )
    box.wait(lambda: box.run("etcdctl", "get", "x", check=False).returncode == 0, "etcd", 30)
    edge.start()
    edge.registered()
    for n in range(9):
        box.run("etcdctl", "put", f"/large/{n}", stdin="x" * 100_000, check=False)
    edge.until(lambda: edge.agent.events("the store refuses"), "the refusal: " + edge.agent.log.read_text())
    assert "disarm its NOSPACE alarm" in edge.agent.events("the store refuses")[0]["reason"]
    edge.until(lambda: edge.stored(AGENT) is None, "its lease to end")
    edge.stays("bgplb-g0", 0.5)
    box.run("etcdctl", "del", "--prefix", "/large/")
    status = json.loads(box.run("etcdctl", "endpoint", "status", "-w", "json").stdout)
    box.run("etcdctl", "compact", str(status[0]["Status"]["header"]["revision"]))
    box.run("etcdctl", "defrag")
    box.run("etcdctl", "alarm", "disarm")
    edge.registered()
    edge.order(5, "gw-b")
    edge.until(lambda: edge.confirmed(5), "it obeys again: " + edge.agent.log.read_text())


SILENT = """
import socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen(64)
kept = []
while True:
    kept.append(server.accept())
"""


@pytest.mark.chaos
def test_one_whose_bird_accepts_and_never_answers_goes_on(edge: Edge) -> None:
    """A BIRD that hangs makes sessions unknown, never down; and it holds up neither commands nor signs of life."""
    edge.box.etcd()
    edge.box.run("mkdir", "-p", "/run/bgplb")
    edge.box.start("python3", "-c", SILENT, "/run/bgplb/bird.ctl", name="silent-bird")
    edge.box.wait(lambda: "bird.ctl" in edge.box.run("ls", "/run/bgplb").stdout, "the socket")
    edge.start()
    edge.registered()
    lease_at = edge.stored(AGENT)
    base = KEYS.observed_base("edge", "edge-agent")
    edge.until(lambda: "bird" in " ".join((edge.stored(base) or {}).get("problems", [])).lower(), "it is missed")
    edge.order(5, "gw-b")
    edge.until(lambda: edge.steers_to("bgplb-g1"), "the command", 3.0)
    beats = edge.stored(BEAT)["progress"]
    time.sleep(TTL_S + 0.5)
    report = edge.stored(base)
    assert report["bird"] == "silent"
    assert {witness["session"] for witness in report["gateways"].values()} == {"unknown"}
    assert edge.stored(BEAT)["progress"] > beats
    assert edge.stored(AGENT) == lease_at
    assert not edge.agent.events("lease lost")


PORTS = (2379, 2479, 2579)


def cluster(box: Box) -> None:
    """Three members, each with a client port of its own."""
    peers = ",".join(f"m{port}=http://127.0.0.1:{port + 1}" for port in PORTS)
    for port in PORTS:
        box.start(
            "etcd", f"--name=m{port}", f"--data-dir={box.folder / f'etcd-{port}'}", "--log-level=error",
            f"--listen-client-urls=http://127.0.0.1:{port}", f"--advertise-client-urls=http://127.0.0.1:{port}",
            f"--listen-peer-urls=http://127.0.0.1:{port + 1}", f"--initial-cluster={peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{port + 1}", name=f"etcd-{port}",
        )  # fmt: skip
    box.wait(lambda: box.run("etcdctl", "endpoint", "health", check=False).returncode == 0, "three members", 30)


def members_in_use(box: Box, pid: int) -> set[int]:
    """Client ports that a process is connected to."""
    lines = box.run("ss", "-Htnp", "state", "established").stdout.splitlines()
    return {port for port in PORTS for line in lines if f"pid={pid}," in line and f":{port} " in line.split("users")[0]}


@pytest.mark.chaos
def test_one_whose_member_is_cut_off_without_a_word_moves_to_another_within_its_lease(edge: Edge) -> None:
    """Half-open: packets to that member vanish, no connection is closed. The other members are well."""
    need("ss")
    box = edge.box
    cluster(box)
    edge.start(etcd={"endpoints": [f"http://127.0.0.1:{port}" for port in PORTS]})
    others = f"--endpoints=http://127.0.0.1:{PORTS[1]},http://127.0.0.1:{PORTS[2]}"
    edge.registered()
    assert members_in_use(box, edge.agent.process.pid) == {PORTS[0]}
    box.run("nft", "add", "table", "inet", "cut")
    box.run("nft", "add", "chain", "inet", "cut", "in", "{ type filter hook input priority 0; }")
    before = seen(box, others)
    box.run("nft", "add", "rule", "inet", "cut", "in", "tcp", "dport", str(PORTS[0]), "drop")
    cut_s = time.monotonic()
    box.wait(lambda: seen(box, others) > before + 4, "signs of life again", 2 * TTL_S)
    assert time.monotonic() - cut_s < TTL_S
    assert not edge.agent.events("lease lost"), edge.agent.log.read_text()
    box.run("etcdctl", others, "put", KEYS.desired("edge", "edge-agent", "pool", "web"),
            encode(EdgePool(WEB, "gw-b", 5)).decode())  # fmt: skip
    box.wait(lambda: edge.steers_to("bgplb-g1"), "its watch goes on elsewhere, too", TTL_S)


def seen(box: Box, members: str) -> int:
    """The agent's last sign of life."""
    found = box.run("etcdctl", members, "get", "--print-value-only", BEAT).stdout
    return int(json.loads(found)["seq"])
