"""Many pools: a failover of all of them at once, and what the daemons cost while nothing happens."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bgplb_lab import configs, control, faults, observe, report, scenario, topology
from bgplb_lab.errors import LabError
from bgplb_lab.etcdctl import etcdctl
from bgplb_lab.probes import RouteWatch
from bgplb_lab.world import World
from rich.table import Table

SCHEMA = 1
AGGREGATE = "198.18.0.0/15"
"""Where the extra pools come from (RFC 2544: for measuring, never routed in the Internet)."""
RECORDS = "/bgplb/v1/machines/pool/"
MANIFEST = "/etc/bgplb/manifests/many.yaml"
ALL_TIMEOUT_S = 120.0
WATCHED_S = 3.0
"""How long after a cut the edge's routes are watched before anybody is asked anything."""
LOOK_EVERY_S = 1.0
IDLE_S = 30.0
MAIN_TABLE = 254
DAEMONS = ("orchestrator", "edge-agent", "node-agent")


def prefixes(count: int) -> list[str]:
    """The prefixes of that many extra pools, one address each."""
    return [f"198.{18 + n // 65536}.{n // 256 % 256}.{n % 256}/32" for n in range(count)]


def manifest(count: int) -> str:
    """The extra pools as one file of manifests."""
    pools = []
    for number, prefix in enumerate(prefixes(count)):
        spec = {**configs.POOL["spec"], "aggregate": AGGREGATE, "addresses": [prefix]}
        spec.pop("aggregateIPv6", None)
        pools.append(configs.to_yaml({**configs.POOL, "metadata": {"name": f"many-{number:04d}"}, "spec": spec}))
    return "---\n".join(pools)


def machines(world: World) -> list[dict[str, Any]]:
    """The records of all pools, straight from etcd: a replica that is asked for them has less time for its work."""
    text = etcdctl(world, "get", "--prefix", "--print-value-only", RECORDS)
    return [json.loads(line) for line in text.splitlines() if line]


def wait_all(world: World, count: int, owner: str, armed: bool) -> float:
    """Wait until all pools are ActiveHealthy at `owner`, each with a plan if `armed`; the seconds that it took."""
    began = time.monotonic()
    seen = [0]

    def there() -> bool | None:
        good = [m for m in machines(world) if m["state"] == "ActiveHealthy" and m["owner"] == owner]
        seen[0] = sum(1 for machine in good if machine.get("plan") or not armed)
        return True if seen[0] > count else None  # the lab's own pool is one more

    try:
        control.wait_for(f"{count + 1} pools at {owner}", there, ALL_TIMEOUT_S, LOOK_EVERY_S)
    except LabError as late:
        raise type(late)(f"{late}; {seen[0]} were there at last") from late
    return time.monotonic() - began


def order(world: World, verb: str, gateway: str) -> None:
    """Drain or undrain a gateway, as an operator does."""
    argv = (world.programs.bgplb, "gateway", verb, gateway, "--reason", "the bench wants all pools on the other one")
    world.inside(topology.ORCHESTRATORS[0], *argv, timeout_s=scenario.MOVE_TIMEOUT_S)


def gathered_at_owner(world: World, count: int) -> float:
    """Move all pools to OWNER, each with a plan for its death; the seconds until all had moved."""
    other = scenario.other_than(scenario.OWNER)
    order(world, "drain", other)
    took_s = wait_all(world, count, scenario.OWNER, armed=False)
    order(world, "undrain", other)
    wait_all(world, count, scenario.OWNER, armed=True)
    return took_s


def accept_many(world: World, count: int) -> float:
    """Put the manifests there while only OWNER takes pools; the seconds until all were ActiveHealthy."""
    scenario.settled_at_owner(world, "the bench wants all pools here")
    order(world, "drain", scenario.other_than(scenario.OWNER))
    text = manifest(count)
    for name in topology.ORCHESTRATORS:
        path = world.path_in(name, MANIFEST)
        draft = path.with_name(".many.new")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    took_s = wait_all(world, count, scenario.OWNER, armed=False)
    order(world, "undrain", scenario.other_than(scenario.OWNER))
    wait_all(world, count, scenario.OWNER, armed=True)
    return took_s


@dataclass(frozen=True)
class ManyCut:
    """One power cut: times from T0 to the edge's kernel being told, of the floor and of the first and last pool."""

    floor_ms: float
    first_ms: float
    last_ms: float
    adopted_s: float
    drained_s: float


def steered(events: list[dict[str, Any]], t0_ns: int, wanted: set[str]) -> dict[str, int]:
    """When each of these prefixes was steered anew after T0, by the first replacement of its route."""
    stamps: dict[str, int] = {}
    for event in events:
        prefix = event.get("prefix")
        if event["event"] == "new" and event.get("table") == MAIN_TABLE and prefix in wanted and event["t_ns"] >= t0_ns:
            stamps.setdefault(str(prefix), int(event["t_ns"]))
    return stamps


def cut_many(world: World, count: int) -> ManyCut:
    """Cut OWNER's power, watch every pool move, give the power back and move all of them back."""
    watch = RouteWatch(world, scenario.EDGE)
    t0_ns = faults.strike(world, "power-cut", scenario.OWNER)
    time.sleep(WATCHED_S)  # asking anybody would cost the time that is measured
    events = watch.events()
    if any(event["event"] == "overrun" for event in events):
        raise LabError("the edge's route listener was overrun: its stamps are worth nothing")
    floor_ns = watch.first_after(t0_ns, "del", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX)
    stamps = steered(events, t0_ns, set(prefixes(count)))
    if floor_ns is None or len(stamps) < count:
        raise LabError(f"{len(stamps)} of {count} pools were steered anew within {WATCHED_S:g} s; floor: {floor_ns}")
    watch.stop()
    other = scenario.other_than(scenario.OWNER)
    adopted_s = WATCHED_S + wait_all(world, count, other, armed=False)
    faults.heal(world, "power-cut", scenario.OWNER)
    observe.wait_settled(world, scenario.MOVE_TIMEOUT_S, other)
    drained_s = gathered_at_owner(world, count)
    return ManyCut(
        floor_ms=round((floor_ns - t0_ns) / 1e6, 3),
        first_ms=round((min(stamps.values()) - t0_ns) / 1e6, 3),
        last_ms=round((max(stamps.values()) - t0_ns) / 1e6, 3),
        adopted_s=round(adopted_s, 1),
        drained_s=round(drained_s, 1),
    )


def bench_failover(world: World, pools: int, runs: int, keep: bool = False) -> dict[str, Any]:
    """`runs` power cuts of a gateway that owns `pools` pools besides the lab's own. No run is left out."""
    cuts: list[ManyCut] = []
    with scenario.standing(world, keep):
        accepted_s = accept_many(world, pools)
        world.say(f"{pools} pools are accepted and at {scenario.OWNER}, after {accepted_s:.1f} s")
        for number in range(1, runs + 1):
            cut = cut_many(world, pools)
            cuts.append(cut)
            world.say(
                f"run {number} of {runs}: floor {cut.floor_ms:.1f} ms, first pool {cut.first_ms:.1f} ms, last "
                f"{cut.last_ms:.1f} ms, ratio {cut.last_ms / cut.floor_ms:.3f}; adopted after {cut.adopted_s:.1f} s, "
                f"drained back in {cut.drained_s:.1f} s"
            )
    ratios = [cut.last_ms / cut.floor_ms for cut in cuts]
    return {
        "schema": SCHEMA,
        "bench": "failover-many",
        "pools": pools,
        "runs": runs,
        "accepted_s": round(accepted_s, 1),
        **{name: [getattr(cut, name) for cut in cuts] for name in ManyCut.__dataclass_fields__},
        "ratio": [round(ratio, 4) for ratio in ratios],
        "ratio_median": round(median(ratios), 4),
        "ratio_worst": round(max(ratios), 4),
    }


# ---- idle ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """What a process has used so far: seconds of a core, and its memory now."""

    cpu_s: float
    rss_mb: float


def daemons(world: World) -> dict[str, int]:
    """Our daemons as `MACHINE DAEMON`, with their process ids as this machine sees them."""
    found: dict[str, int] = {}
    homes = {Path(f"/proc/{pid}/ns/pid").readlink(): name for name, pid in world.pids().items()}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            role = next((word for word in words if word in DAEMONS), None)
            home = homes.get((folder / "ns/pid").readlink()) if role else None
            if home is not None:
                found[f"{home} {role}"] = int(folder.name)
    return found


def load(pid: int) -> Load:
    """Read /proc (proc_pid_stat(5), proc_pid_statm(5)). Raises LabError when the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError as gone:
        raise LabError(f"process {pid} ended while its load was measured: see `bgplb lab logs`") from gone
    ticks = int(fields[11]) + int(fields[12])
    return Load(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 1e6)


def bench_idle(world: World, pools: int, seconds: float = IDLE_S, keep: bool = False) -> dict[str, Any]:
    """What each daemon uses over some seconds in which nothing happens, with that many pools at rest."""
    with scenario.standing(world, keep):
        accepted_s = accept_many(world, pools)
        world.say(f"{pools} pools are at rest; measuring for {seconds:g} s")
        leader = observe.replica(world, {"cmd": "status"})["leader"]
        time.sleep(5.0)
        rows = measured(daemons(world), seconds, time.sleep)
    return {
        "schema": SCHEMA,
        "bench": "idle",
        "pools": pools,
        "seconds": seconds,
        "accepted_s": round(accepted_s, 1),
        "leader": leader and leader["name"],
        "daemons": rows,
    }


def measured(processes: dict[str, int], seconds: float, pause: Callable[[float], None]) -> dict[str, dict[str, float]]:
    """Percent of a core and memory of each process."""
    before = {name: load(pid) for name, pid in processes.items()}
    began = time.monotonic()
    pause(seconds)
    took_s = time.monotonic() - began
    rows: dict[str, dict[str, float]] = {}
    for name, pid in sorted(processes.items()):
        now = load(pid)
        cpu = (now.cpu_s - before[name].cpu_s) / took_s * 100
        rows[name] = {"cpu_percent": round(cpu, 2), "rss_mb": round(now.rss_mb, 1)}
    return rows


def failover_table(document: dict[str, Any]) -> Table:
    """The record of a failover of many for people."""
    named = {
        "floor (ms)": "floor_ms",
        "first pool steered (ms)": "first_ms",
        "last pool steered (ms)": "last_ms",
        "last / floor": "ratio",
        "adopted after (s)": "adopted_s",
        "drained back in (s)": "drained_s",
    }
    title = f"{document['pools']} pools, {document['runs']} power cuts"
    return report.medians(title, {name: document[key] for name, key in named.items()})


def idle_table(document: dict[str, Any]) -> Table:
    """The record of an idle lab for people."""
    title = f"{document['pools']} pools at rest, {document['seconds']:g} s; {document['leader']} leads"
    table = report.numbers(title, "daemon", "% of a core", "memory (MB)")
    for name, row in document["daemons"].items():
        table.add_row(name, f"{row['cpu_percent']:.2f}", f"{row['rss_mb']:.0f}")
    return table
