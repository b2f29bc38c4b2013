"""Starting the prober and the floor's listener in their machines, and reading what they wrote."""

import array
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgplb_lab import control, counting, topology
from bgplb_lab.world import World, own_programs

PROBE_MACHINE = "client"
INTERVAL_US = 1000
FOLDER = "/run/lab"
START_TIMEOUT_S = 10.0
END_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ProbeRun:
    """What a finished prober saw; stamps are CLOCK_MONOTONIC in ns, arrivals by IP version."""

    start_ns: int
    interval_ms: float
    sent_ns: Sequence[int]
    arrived_by: Mapping[str, Sequence[int | None]]

    @property
    def arrived_ns(self) -> Sequence[int | None]:
        """When a number had been answered over all IP versions that were asked; None if one never did."""
        return counting.answered_by_all(self.arrived_by.values())

    @property
    def counts(self) -> counting.Counts:
        """The figures of this run."""
        whole = counting.count(self.sent_ns, self.arrived_ns, self.interval_ms)
        if len(self.arrived_by) == 1:
            return whole
        return replace(
            whole,
            families={
                version: counting.count(self.sent_ns, arrived, self.interval_ms)
                for version, arrived in self.arrived_by.items()
            },
        )

    def cut(self, first: int, last: int) -> "ProbeRun":
        """The part of the run with the numbers first <= n < last, renumbered from 0."""
        sent = self.sent_ns[first:last]
        arrived = {version: arrived[first:last] for version, arrived in self.arrived_by.items()}
        return ProbeRun(sent[0] if sent else self.start_ns, self.interval_ms, sent, arrived)


class Prober:
    """A running prober. It is a service of the machine it runs in, so it can't outlive the lab."""

    def __init__(
        self,
        world: World,
        count: int = 0,
        machine: str = PROBE_MACHINE,
        family: topology.Family | None = None,
    ) -> None:
        """Start it; `count` 0 means until `stop`. Asks the service over `family`, by default over the world's.

        Returns once it is sending.
        """
        self.world, self.machine, self.count = world, machine, count
        self.services = (family or world.family).services(world.edges)
        self.name = f"prober-{secrets.token_hex(3)}"
        self.out = world.path_in(machine, FOLDER) / self.name
        numbers = (str(topology.UDP_PORT), str(INTERVAL_US), str(count))
        arguments = (*numbers, f"{FOLDER}/{self.name}", *self.services.values())
        argv = ("nice", "-n", "-10", *own_programs().script("prober", *arguments))
        service = {"name": self.name, "argv": argv, "restart_after_s": None}
        world.command(machine, {"cmd": "add", "service": service})
        start = self.file(".start", "the prober to start", START_TIMEOUT_S)
        self.start_ns = int(start)

    def file(self, suffix: str, what: str, timeout_s: float) -> bytes:
        """Wait for one of the prober's files and read it; raises TimedOut naming `what`."""
        path = Path(f"{self.out}{suffix}")
        return control.wait_for(what, lambda: path.read_bytes() if path.exists() else None, timeout_s)

    def wait_until(self, number: int) -> None:
        """Sleep until probe `number` is due."""
        time.sleep(max(0.0, (self.start_ns + number * INTERVAL_US * 1000 - time.monotonic_ns()) / 1e9))

    def due_now(self) -> int:
        """The number that is due now."""
        return (time.monotonic_ns() - self.start_ns) // (INTERVAL_US * 1000)

    def stop(self) -> ProbeRun:
        """End it now and read the result."""
        self.world.command(self.machine, {"cmd": "stop", "name": self.name})
        return self.result()

    def result(self) -> ProbeRun:
        """Wait for the end of a run with a count, and read it."""
        remaining_s = max(0.0, (self.count - self.due_now()) * INTERVAL_US / 1e6) if self.count else 0.0
        answers, sent = array.array("q"), array.array("q")
        answers.frombytes(self.file(".answers", "the prober to end", remaining_s + END_TIMEOUT_S))
        sent.frombytes(self.file(".sent", "the prober's record", END_TIMEOUT_S))
        arrived: dict[str, Sequence[int | None]] = {}
        for index, version in enumerate(self.services):
            triples = zip(answers[0::3], answers[1::3], answers[2::3], strict=True)
            own = ((number, stamp) for address, number, stamp in triples if address == index)
            arrived[version] = counting.arrivals(len(sent), own)
        return ProbeRun(self.start_ns, INTERVAL_US / 1000, sent, arrived)


class RouteWatch:
    """A running listener on the edge's routes: the signal table and the main one."""

    def __init__(self, world: World, edge: str) -> None:
        """Start it; returns once it listens."""
        self.world, self.edge = world, edge
        self.name = f"floor-{secrets.token_hex(3)}"
        self.out = world.path_in(edge, FOLDER) / self.name
        script = own_programs().script("floor", f"{FOLDER}/{self.name}", str(topology.SIGNAL_TABLE), "254")
        service = {"name": self.name, "argv": ("nice", "-n", "-10", *script), "restart_after_s": None}
        world.command(edge, {"cmd": "add", "service": service})
        control.wait_for("the edge's route listener to start", lambda: self.events() or None, START_TIMEOUT_S)

    def events(self) -> list[dict[str, Any]]:
        """All it has written so far."""
        if not self.out.exists():
            return []
        text = self.out.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def stamps(self, t0_ns: int, event: str, table: int, prefix: str) -> list[int]:
        """Stamps in ns of all such events after `t0_ns`."""
        wanted = (event, table, prefix)
        same = (e for e in self.events() if (e["event"], e.get("table"), e.get("prefix")) == wanted)
        return [int(event["t_ns"]) for event in same if event["t_ns"] >= t0_ns]

    def first_after(self, t0_ns: int, event: str, table: int, prefix: str) -> int | None:
        """Stamp in ns of the first such event after `t0_ns`, or None."""
        return next(iter(self.stamps(t0_ns, event, table, prefix)), None)

    def stop(self) -> None:
        """End it."""
        self.world.command(self.edge, {"cmd": "kill", "name": self.name, "hold": True})


class RouteWatches:
    """A listener on each edge of the lab."""

    def __init__(self, world: World) -> None:
        """Start them; returns once all listen."""
        self.watches = [RouteWatch(world, edge) for edge in world.edge_names]

    def first_after(self, t0_ns: int, event: str, table: int, prefix: str) -> int | None:
        """Stamp in ns of the first such event at that edge where it came last; None if it did not come everywhere."""
        stamps = [watch.first_after(t0_ns, event, table, prefix) for watch in self.watches]
        known = [stamp for stamp in stamps if stamp is not None]
        return max(known) if len(known) == len(stamps) else None

    def sessions_lost(self, t0_ns: int, gateway: str) -> int:
        """How often after `t0_ns` edges lost their session with a gateway."""
        prefix = topology.PROBE_PREFIXES[gateway]
        return sum(len(watch.stamps(t0_ns, "del", topology.SIGNAL_TABLE, prefix)) for watch in self.watches)

    def stop(self) -> None:
        """End them."""
        for watch in self.watches:
            watch.stop()
