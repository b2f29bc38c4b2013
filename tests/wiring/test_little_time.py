"""A real leader with a thousand pools and a fifth of a processor: it is slow, and it is not taken for dead."""

import signal
import threading
import time

import pytest
import yaml

from orchestrator.store.keys import Keys
from tests.wiring.box import PYTHON, Box, Daemon, need
from tests.wiring.test_replicas import MANIFESTS

pytestmark = [pytest.mark.root, pytest.mark.chaos, pytest.mark.timeout(180)]

KEYS = Keys()
POOLS = 1000
RUN_S, STOP_S = 0.02, 0.08
CHURN_S = 15.0

CHURN = """
import asyncio, itertools
from fsm.records import EdgePoolReport
from orchestrator.clock import BootClock
from orchestrator.store.etcd import EtcdStore
from orchestrator.store.keys import Keys
from orchestrator.store.port import Put
from orchestrator.store.records import encode

async def main():
    store = EtcdStore(["http://127.0.0.1:2379"], BootClock())
    for epoch in itertools.count(1):
        report = encode(EdgePoolReport(epoch, "gw-a"))
        for first in range(0, 1000, 100):
            keys = [Keys().observed("edge", "edge-1", "pool", f"pool-{n:04}") for n in range(first, first + 100)]
            await store.txn([], [Put(key, report) for key in keys])
            await asyncio.sleep(0.5)

asyncio.run(main())
"""
"""Two hundred reports a second, none of which says what the one before said."""


def manifests() -> str:
    """A group, and a thousand pools of one address."""
    group, pool = yaml.safe_load_all(MANIFESTS)
    documents = [group]
    for n in range(POOLS):
        spec = {**pool["spec"], "aggregate": "192.0.0.0/16", "addresses": [f"192.0.{n // 250}.{n % 250}/32"]}
        documents.append({**pool, "metadata": {"name": f"pool-{n:04}"}, "spec": spec})
    return yaml.safe_dump_all(documents)


class Quota(threading.Thread):
    """Lets a process run for a fifth of the time, until it is told that it is over."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self.daemon_, self.over = daemon, threading.Event()

    def run(self) -> None:
        while not self.over.wait(RUN_S):
            self.daemon_.process.send_signal(signal.SIGSTOP)
            time.sleep(STOP_S)
            self.daemon_.process.send_signal(signal.SIGCONT)


def test_a_leader_that_is_slow_under_load_stays_the_leader(box: Box) -> None:
    need("etcd", "etcdctl")
    box.etcd()
    folder = box.folder / "manifests"
    folder.mkdir()
    (folder / "all.yaml").write_text(manifests())
    leader = box.bgplb("orchestrator", box.config("orchestrator", manifests=str(folder)))
    box.wait(lambda: leader.events("leadership began"), "a leader", 30)

    def accepted() -> int:
        listed = box.run("etcdctl", "get", "--prefix", "--keys-only", KEYS.machines_prefix).stdout
        return len(listed.split())

    box.wait(lambda: accepted() == POOLS, "a thousand pools", 60)
    fields = {"name": "second", "state_dir": str(box.folder / "second"), "run_dir": "/run/second"}
    follower = box.bgplb("orchestrator", box.config("orchestrator", manifests=str(folder), **fields))
    box.wait(lambda: KEYS.agent("orchestrator", "second") in box.stored(), "a follower")
    before = box.stored()[KEYS.leader]
    box.start(PYTHON, "-c", CHURN, name="churn")
    quota = Quota(leader)
    quota.start()
    try:
        time.sleep(CHURN_S)
    finally:
        quota.over.set()
        quota.join()
    assert box.stored()[KEYS.leader] == before
    assert not leader.events("leadership ended")
    assert not leader.events("lease lost")
    assert not follower.events("leadership began")
