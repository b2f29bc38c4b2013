"""How long nobody acts when the leading orchestrator ends: asked to (SIGTERM), or killed (SIGKILL)."""

import base64
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bgplb_lab import control, faults, observe, report, roles, scenario, topology
from bgplb_lab.counting import nearest_rank
from bgplb_lab.errors import LabError, Unreachable
from bgplb_lab.etcdctl import etcdctl, etcdctl_command, root_machine
from bgplb_lab.world import World
from rich.table import Table

SCHEMA = 1
LEADER_KEY = "/bgplb/v1/leader"
RECORDS = "/bgplb/v1/machines/"
ENDS = {"term": "orchestrator-term", "kill": "orchestrator-kill"}
"""How a leader ends: the name in the record, and the fault."""
ACT_TIMEOUT_S = 20.0
BACK_TIMEOUT_S = 30.0
WARM_S = 1.5
"""After its start a follower has to have beaten a few times before it may declare anybody dead, in seconds."""
FLOOR_ROUNDS = 20


@dataclass(frozen=True)
class Seen:
    """One change in etcd, stamped when it arrived here (CLOCK_MONOTONIC). `value` None: deleted."""

    t_ns: int
    revision: int
    key: str
    value: Mapping[str, Any] | None


def parse(line: str, t_ns: int) -> Iterator[Seen]:
    """The changes in one line of `etcdctl watch -w json`."""
    for event in json.loads(line).get("Events") or ():
        kv = event["kv"]
        gone = event.get("type") in (1, "DELETE")
        value = None if gone else json.loads(base64.b64decode(kv.get("value", "")))
        yield Seen(t_ns, int(kv["mod_revision"]), base64.b64decode(kv["key"]).decode(), value)


class StoreWatch:
    """What happens to the leader key and to the machines' records, as a client of etcd sees it. Use it with `with`."""

    def __init__(self, world: World) -> None:
        self.seen: list[Seen] = []
        self.changed = threading.Condition()
        # All keys from the one to the last of the others; what lies between them in etcd is one of these two.
        command, environment = etcdctl_command(world, "watch", "-w", "json", LEADER_KEY, f"{RECORDS[:-1]}0")
        machine = root_machine(world)
        argv = ["nice", "-n", "-10", *control.enter(world.pid(machine), command, whole=True)]
        environment |= {"PATH": control.SERVICE_PATH}
        # A group of its own: what enters a process namespace starts a child there, and both have to go.
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        self.reader = threading.Thread(target=self.read, name="store watch", daemon=True)
        self.reader.start()

    def __enter__(self) -> "StoreWatch":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join()

    def read(self) -> None:
        """Stamp each line as it comes, until the end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = list(parse(line, time.monotonic_ns()))
            with self.changed:
                self.seen += found
                self.changed.notify_all()

    def next_leader(self, after_ns: int) -> "Handover":
        """Wait until another leader than before has written its first record; raises TimedOut."""

        def acted() -> Handover | None:
            with self.changed:
                self.changed.wait(0.2)
                return handover([seen for seen in self.seen if seen.t_ns >= after_ns], after_ns)

        return control.wait_for("another orchestrator to lead and to write", acted, ACT_TIMEOUT_S, 0.0)


@dataclass(frozen=True)
class Handover:
    """Times from the end of a leader: until another one had the key, and until its first write was in etcd."""

    leader: str
    led_ms: float
    acted_ms: float


def handover(seen: Iterable[Seen], t0_ns: int) -> Handover | None:
    """The first one after T0; None as long as nobody new has written.

    A record names the leader that wrote it last, and a new one writes every record: it takes its deadlines over.
    """
    name = ""
    led: Seen | None = None
    for change in seen:
        if change.key == LEADER_KEY and change.value is not None:
            name, led = str(change.value["name"]), change
        elif led is not None and change.revision > led.revision and (change.value or {}).get("leader") == name:
            return Handover(name, (led.t_ns - t0_ns) / 1e6, (change.t_ns - t0_ns) / 1e6)
    return None


def wait_warm(world: World, leader: str) -> None:
    """Wait until every orchestrator runs, follows the store and sees this leader."""

    def there() -> bool | None:
        for name, pid in world.pids().items():
            if name not in topology.ORCHESTRATORS:
                continue
            try:
                answer = control.ask_socket(f"/proc/{pid}/root/run/bgplb/{name}.sock", {"cmd": "status"})
            except Unreachable:
                return None
            if (answer.get("leader") or {}).get("name") != leader:
                return None
        return True

    control.wait_for(f"all orchestrators to follow {leader}", there, BACK_TIMEOUT_S, 0.2)
    time.sleep(WARM_S)


def read_ms(world: World) -> float:
    """A read that a majority of etcd agrees on, as etcdctl itself times it: the least that anything here can take."""
    (answer,) = json.loads(etcdctl(world, "endpoint", "health", "-w", "json", endpoints=[next(iter(topology.ETCD))]))
    return milliseconds(str(answer["took"]))


def milliseconds(took: str) -> float:
    """A time as Go prints it, such as 1.5ms; raises ValueError for one of minutes and more."""
    for unit, factor in (("µs", 1e-3), ("ms", 1.0), ("s", 1e3)):
        if took.endswith(unit) and took.removesuffix(unit).replace(".", "", 1).isdigit():
            return float(took.removesuffix(unit)) * factor
    raise ValueError(f"no time: {took!r}")


def bench(world: World, runs: int, keep: bool = False) -> dict[str, Any]:
    """`runs` leaders asked to end and as many killed, each back as a follower before the next. No run is left out."""
    with scenario.standing(world, keep):
        observe.wait_settled(world, scenario.READY_TIMEOUT_S)
        return measure(world, runs)


def measure(world: World, runs: int) -> dict[str, Any]:
    """The same in a lab that stands and is healthy; it is so afterwards."""
    found: dict[str, list[Handover]] = {end: [] for end in ENDS}
    floor_ms = [read_ms(world) for _ in range(FLOOR_ROUNDS)]
    with StoreWatch(world) as watch:
        for number in range(1, runs + 1):
            for end, fault in ENDS.items():
                found[end].append(end_one(world, watch, fault))
            last = ", ".join(f"{end} {found[end][-1].acted_ms:.0f} ms" for end in ENDS)
            world.say(f"run {number} of {runs}: the next leader acts after {last}")
    observe.wait_settled(world, scenario.READY_TIMEOUT_S)
    return document(found, floor_ms)


def end_one(world: World, watch: StoreWatch, fault: str) -> Handover:
    """End the leader once all are there, wait for the next one to act, start the old one again."""
    old = roles.leader(world)
    wait_warm(world, old)
    t0_ns = time.monotonic_ns()
    faults.strike(world, fault, old)
    handed = watch.next_leader(t0_ns)
    faults.heal(world, fault, old)
    if handed.leader == old:
        raise LabError(f"{old} was ended by {fault} and leads again")
    return handed


def document(found: Mapping[str, list[Handover]], floor_ms: list[float]) -> dict[str, Any]:
    """The record of a bench, schema 1: a list of each figure, in milliseconds, and median, 99th percentile, worst."""
    ends: dict[str, Any] = {}
    for end, handovers in found.items():
        acted = [handed.acted_ms for handed in handovers]
        ends[end] = {
            "led_ms": [round(handed.led_ms, 2) for handed in handovers],
            "acted_ms": [round(value, 2) for value in acted],
            "acted_median_ms": round(median(acted), 2),
            "acted_p99_ms": round(nearest_rank(acted, 99), 2),
            "acted_worst_ms": round(max(acted), 2),
        }
    return {
        "schema": SCHEMA,
        "bench": "leader",
        "runs": len(next(iter(found.values()))),
        "store_read_ms": [round(value, 3) for value in floor_ms],
        **ends,
    }


def table(document: Mapping[str, Any]) -> Table:
    """The record for people."""
    rows = {
        "SIGTERM: another has the leader key (ms)": document["term"]["led_ms"],
        "SIGTERM: it acts, first write committed (ms)": document["term"]["acted_ms"],
        "SIGKILL: another has the leader key (ms)": document["kill"]["led_ms"],
        "SIGKILL: it acts, first write committed (ms)": document["kill"]["acted_ms"],
        "a read that a majority of etcd agrees on (ms)": document["store_read_ms"],
    }
    return report.medians(f"{document['runs']} leaders asked to end, {document['runs']} killed", rows)
