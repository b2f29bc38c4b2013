"""Agents of paper on a real etcd: an edge and two gateways that obey for a thousand pools, and babble when told to."""

import asyncio
from collections.abc import Mapping
from itertools import islice

from fsm.records import (
    AgentRecord,
    EdgePool,
    EdgePoolReport,
    EdgeReport,
    GatewayWitness,
    NodePool,
    NodePoolReport,
    NodeReport,
)
from fsm.types import PROBE_UNFIT_AFTER
from orchestrator.store.keys import DesiredKey, Keys
from orchestrator.store.mirror import Mirror
from orchestrator.store.port import MAX_TXN_OPS, Change, Delete, Indeterminate, Op, Put, Store, Unavailable
from orchestrator.store.records import decode, encode
from tests.agents.fakes import RealClock

KEYS = Keys()
EDGE = "edge-1"
BEAT_S = 0.25
_UP = GatewayWitness("up", "passing", 0, True, "passing")
_DOWN = GatewayWitness("down", "failing", PROBE_UNFIT_AFTER)


class Crowd:
    """`run` beside the test. `dead`: gateways whose power is off; `babble`: pools whose report changes at each beat."""

    def __init__(self, store: Store, gateways: tuple[str, ...]) -> None:
        self._store, self._gateways = store, gateways
        self.dead: set[str] = set()
        self.babble = 0
        self._beats = 0
        self._edge_pools: dict[str, EdgePool] = {}
        self._reports: dict[str, bytes | None] = {}
        self._wake = asyncio.Event()
        self._mirror = Mirror(store, f"{KEYS.prefix}desired/", RealClock(), 10.0, self._told)

    async def run(self) -> None:
        """For ever."""
        for role, name in ((EDGE, "edge"), *((gateway, "node") for gateway in self._gateways)):
            record = AgentRecord(role, name, f"i-{role}", "1", f"key-{role}", "10.10.0.1", incarnation=f"i-{role}@0")
            await self._store.put(KEYS.agent(name, role), encode(record))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirror.run())
            group.create_task(self._beat_all())
            group.create_task(self._report_all())

    def _told(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            key = KEYS.parse(change.key)
            if not isinstance(key, DesiredKey):
                continue
            at = KEYS.observed(key.role, key.agent, "pool", key.name)
            if change.value is None:
                self._reports[at] = None
            elif key.role == "edge":
                command = self._edge_pools[key.name] = decode(change.value, EdgePool, change.key)
                self._reports[at] = encode(self._edge_report(command))
            elif key.agent not in self.dead:
                order = decode(change.value, NodePool, change.key)
                self._reports[at] = encode(NodePoolReport(order.epoch, order.announce, True))
        self._wake.set()

    def _edge_report(self, command: EdgePool, phase_ms: float = 0.0) -> EdgePoolReport:
        return EdgePoolReport(
            command.epoch,
            command.owner,
            withdrawn=True,
            installed=True,
            announced_by=(command.owner,) if command.owner else (),
            armed_plan=command.plan[0].epoch if command.plan else None,
            phases_ms={"babble": phase_ms} if phase_ms else {},
        )

    async def _beat_all(self) -> None:
        while True:
            self._beats += 1
            beat = encode({"seq": self._beats})
            seen = {gateway: _DOWN if gateway in self.dead else _UP for gateway in self._gateways}
            report = EdgeReport(f"i-{EDGE}", seen, "up", 0)
            ops: list[Op] = [
                Put(KEYS.heartbeat("edge", EDGE), beat),
                Put(KEYS.observed_base("edge", EDGE), encode(report)),
            ]
            for gateway in set(self._gateways) - self.dead:
                ops.append(Put(KEYS.heartbeat("node", gateway), beat))
                ops.append(Put(KEYS.observed_base("node", gateway), encode(NodeReport(f"i-{gateway}", True, (), 1, 1))))
            await self._write(ops)
            names = list(self._edge_pools)
            for number in range(self.babble):
                name = names[(self._beats * self.babble + number) % len(names)]
                report_at = KEYS.observed("edge", EDGE, "pool", name)
                self._reports[report_at] = encode(self._edge_report(self._edge_pools[name], float(self._beats)))
            self._wake.set()
            await asyncio.sleep(BEAT_S)

    async def _report_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._reports:
                due: Mapping[str, bytes | None] = dict(islice(self._reports.items(), MAX_TXN_OPS))
                for key in due:
                    del self._reports[key]
                ops: list[Op] = [Delete(key) if data is None else Put(key, data) for key, data in due.items()]
                while not await self._write(ops):
                    await asyncio.sleep(0.2)

    async def _write(self, ops: list[Op]) -> bool:
        """Whether the store has taken them: on a machine that is short of time it may take too long."""
        try:
            await self._store.txn([], ops)
        except (Unavailable, Indeterminate):
            return False
        return True
