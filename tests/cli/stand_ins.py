"""A store with a leader in it, and a clock on which waiting takes no time: what the commands are run against."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsm.records import (
    AgentRecord,
    Condition,
    EdgeGatewaySpec,
    EdgeReport,
    EdgeSpec,
    EdgeView,
    GatewayWitness,
    HistoryEntry,
    NodeReport,
    Plan,
    PoolRecord,
    PoolSpec,
    Request,
)
from orchestrator.cli.environment import Environment
from orchestrator.store.keys import Keys, RequestKey
from orchestrator.store.port import Guard, Op, Put, Snapshot, TxnResult
from orchestrator.store.records import decode, encode
from tests.contract.store.fake import FakeEtcd, FakeStore

KEYS = Keys()
NOON_MS = 1_900_000_000_000
POOL = "external-ip-pool-1"


class InstantClock:
    """Waiting moves the clock and takes no time."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        """Seconds of all waiting so far."""
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        """Let others run once."""
        self.seconds += seconds
        await asyncio.sleep(0)


@dataclass
class Leader:
    """What the leader answers to whom; None: nobody leads. `asked` has every request that was put."""

    answer: str | None = "done"
    accepted: bool = True
    asked: list[Request] = field(default_factory=list)


class LedStore(FakeStore):
    """A store whose leader answers each request at once, and whose agents beat at each look."""

    def __init__(self, server: FakeEtcd, leader: Leader, beating: Sequence[str]) -> None:
        super().__init__(server)
        self.leader = leader
        self.beating = beating

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        """Do it, and answer what was asked."""
        result = await super().txn(guards, ops)
        for op in ops:
            if result.succeeded and isinstance(op, Put) and isinstance(KEYS.parse(op.key), RequestKey):
                request = decode(op.value, Request, op.key)
                self.leader.asked.append(request)
                if self.leader.answer is not None:
                    answered = replace(request, answer=self.leader.answer, accepted=self.leader.accepted)
                    self.server.commit([Put(op.key, encode(answered))])
        return result

    async def list(self, prefix: str) -> Snapshot:
        """List, and let the living agents beat afterwards."""
        found = await super().list(prefix)
        self.server.commit([Put(key, b"{}") for key in self.beating])
        return found


@dataclass
class Stage:
    """All that a command meets."""

    environment: Environment
    server: FakeEtcd
    leader: Leader
    clock: InstantClock
    store: LedStore
    folder: Path

    def put(self, key: str, value: object) -> None:
        """Write a record."""
        self.server.commit([Put(key, value if isinstance(value, bytes) else encode(value))])


def stage(folder: Path, *, root: bool = True) -> Stage:
    """A store with one pool on gw-a, gw-b ready, all agents alive, and a configuration that leads to it."""
    clock = InstantClock()
    server = FakeEtcd(clock)
    leader = Leader()
    beating = [KEYS.heartbeat(role, name) for role, name in (("edge", "edge-1"), ("node", "gw-a"), ("node", "gw-b"))]
    store = LedStore(server, leader, beating)
    (folder / "cli.yaml").write_text("etcd: {endpoints: ['http://10.99.0.1:2379']}\n")
    environment = Environment(
        open_store=lambda etcd, clock: store,
        clock=clock,
        wall_ms=lambda: NOON_MS,
        user=lambda: "operator",
        is_root=lambda: root,
        etc=folder,
    )
    found = Stage(environment, server, leader, clock, store, folder)
    _intent(found)
    _agents(found)
    _machine(found)
    return found


def _intent(found: Stage) -> None:
    found.put(
        KEYS.spec("EdgeGateway", "edge-gateway"),
        EdgeGatewaySpec(
            name="edge-gateway",
            edges=(EdgeSpec("edge-1", "203.0.113.1", 64512),),
            gateways=("gw-a", "gw-b"),
            gateway_asn=64513,
            slots={"gw-a": 0, "gw-b": 1},
        ),
    )
    found.put(
        KEYS.spec("EIPPool", POOL),
        PoolSpec(
            name=POOL, aggregate="192.0.2.0/24", addresses=("192.0.2.0/26",), gateway_ref="edge-gateway", priority=10
        ),
    )


def _agents(found: Stage) -> None:
    up = GatewayWitness(session="up", probe="passing", settled=True, full_size="passing")
    for role, name in (("edge", "edge-1"), ("node", "gw-a"), ("node", "gw-b")):
        found.put(KEYS.agent(role, name), AgentRecord(name, role, "instance", "0.1.0", "key"))
        found.put(KEYS.heartbeat(role, name), b"{}")
    found.put(
        KEYS.observed_base("edge", "edge-1"),
        EdgeReport(instance="i", gateways={"gw-a": up, "gw-b": up}, bird="up", highest_epoch=7),
    )
    for name in ("gw-a", "gw-b"):
        found.put(KEYS.observed_base("node", name), NodeReport(instance="i", ready=True))
    found.put(KEYS.leader, b'{"schema":1,"name":"orch-1","instance":"i","since":"2030-03-17T17:46:40Z"}')


def _machine(found: Stage) -> None:
    found.put(
        KEYS.machine("pool", POOL),
        PoolRecord(
            name=POOL,
            state="ActiveHealthy",
            owner="gw-a",
            previous="gw-b",
            standby="gw-b",
            epoch=7,
            base_epoch=5,
            plan=(Plan("gw-b", 8, 7),),
            edges={"edge-1": EdgeView(7, "gw-a", "installed")},
            since_ms=NOON_MS,
            leader="orch-1",
            cause="session down, probe failing",
            evidence={"session": "down", "probe": "failing"},
            conditions=(Condition("AdvertisementPending", "NotSeenAtEdge", "no announcement by gw-a"),),
            seq=4,
            last_move={"from": "gw-b", "to": "gw-a", "epoch": 7, "outage_estimate_ms": 151.4},
            superseded={"epoch": 6, "target": "gw-b", "edge": "edge-1", "by_epoch": 7, "at_ms": 1_900_000_000_000},
        ),
    )
    states = ["ActiveHealthy", "FailureDetected", "Withdrawn", "PeerUpdated", "ActiveHealthy"]
    for seq in range(1, 5):
        entry = HistoryEntry(
            seq=seq,
            from_state=states[seq - 1],
            to_state=states[seq],
            event="OwnerUnfit",
            cause="session down",
            evidence={"session": "down"},
            epoch=7,
            owner="gw-b",
            target="gw-a",
            at_ms=NOON_MS,
            phases_ms={"detect": 120.0},
        )
        found.put(KEYS.history("pool", POOL, seq), entry)
