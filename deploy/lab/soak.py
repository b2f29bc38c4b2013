"""Many moves in a row: whether anything is left of each, in kernels, etcd, or the daemons themselves."""

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from bgplb_lab import observe, scale, scenario, topology, world
from bgplb_lab.errors import LabError
from bgplb_lab.etcdctl import etcdctl
from rich.console import Console

GROWTH_AT_MOST = 1.05
"""Memory at the end, as a multiple of what it was when the daemons had warmed up."""
MOVES, WARM_AFTER = 200, 50
RING = 200
"""Transition records that are kept of each pool."""
OF_THEIR_OWN = ("/bgplb/v1/requests/", "/bgplb/v1/history/")
"""Keys that grow by design, and end: requests for an hour, history as a ring."""
LINGER_S = 2.0
SAMPLES, SAMPLE_EVERY_S = 12, 0.25

Inventory = dict[str, frozenset[str]]


@dataclass(frozen=True)
class Soaked:
    """What was found: leftovers by what they are left of, memory by daemon when warm and at the end, in MB."""

    moves: int
    took_s: float
    left: dict[str, list[str]]
    warm_mb: dict[str, float]
    end_mb: dict[str, float]
    growth_at_most: float

    def growth(self) -> dict[str, float]:
        """Memory at the end as a multiple of that when warm."""
        return {name: round(self.end_mb[name] / mb, 4) for name, mb in self.warm_mb.items() if name in self.end_mb}

    def failures(self) -> list[str]:
        """What is not as it should be, a line each."""
        found = [f"left {what}: {', '.join(items)}" for what, items in self.left.items() if items]
        found += [f"{name} ended" for name in self.warm_mb if name not in self.end_mb]
        grown = {name: factor for name, factor in self.growth().items() if factor > self.growth_at_most}
        return found + [f"{name} grew to {factor} of its size when warm" for name, factor in grown.items()]


def inventory(lab: world.World) -> Inventory:
    """All that moves might leave behind. Traffic's own traces (packet counters, neighbours) are not in it."""
    found: Inventory = {}
    for machine in (*lab.edge_names, *topology.GATEWAYS):
        found[f"rules of {machine}"] = _lines(lab, machine, "ip", "-d", "rule") | _lines(
            lab, machine, "ip", "-6", "-d", "rule"
        )
        found[f"routes of {machine}"] = _routes(lab, machine)
        found[f"nft of {machine}"] = frozenset(
            re.sub(r"packets \d+ bytes \d+", "", line) for line in _lines(lab, machine, "nft", "list", "ruleset")
        )
        found[f"links of {machine}"] = frozenset(
            link["ifname"] for link in json.loads(lab.inside(machine, "ip", "-j", "link"))
        )
        found[f"AllowedIPs of {machine}"] = _allowed_ips(lab, machine)
    keys = etcdctl(lab, "get", "--prefix", "--keys-only", "/bgplb/").splitlines()
    found["keys in etcd"] = frozenset(key for key in keys if key and not key.startswith(OF_THEIR_OWN))
    return found


def _lines(lab: world.World, machine: str, *argv: str) -> frozenset[str]:
    return frozenset(" ".join(line.split()) for line in lab.inside(machine, *argv).splitlines() if line.strip())


def _routes(lab: world.World, machine: str) -> frozenset[str]:
    found: set[str] = set()
    for family in ("-4", "-6"):
        for route in json.loads(lab.inside(machine, "ip", family, "-j", "-d", "route", "show", "table", "all") or "[]"):
            found.add(" ".join(str(route.get(k, "")) for k in ("type", "dst", "table", "dev", "protocol", "metrics")))
    return frozenset(found)


def _allowed_ips(lab: world.World, machine: str) -> frozenset[str]:
    found: set[str] = set()
    for line in lab.inside(machine, "wg", "show", "all", "allowed-ips").splitlines():
        device, peer, *allowed = line.split()
        found |= {f"{device} {peer} {address}" for address in allowed}
    return frozenset(found)


def leases(lab: world.World) -> int:
    """Leases that etcd holds."""
    lines = etcdctl(lab, "lease", "list").splitlines()
    return sum(1 for line in lines if re.fullmatch(r"[0-9a-f]{8,}", line.strip()))


def descriptors(processes: Mapping[str, int]) -> dict[str, int]:
    """Open files of each daemon: the fewest of several looks, since a program that is being run has pipes."""
    least: dict[str, int] = {}
    for _ in range(SAMPLES):
        for name, pid in processes.items():
            try:
                count = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            except OSError as gone:
                raise LabError(f"{name} ended during the soak: see `bgplb lab logs`") from gone
            least[name] = min(count, least.get(name, count))
        time.sleep(SAMPLE_EVERY_S)
    return least


def beyond(before: Inventory, after: Inventory) -> dict[str, list[str]]:
    """What is there afterwards and was not before, by place."""
    return {place: sorted(items - before.get(place, frozenset())) for place, items in after.items()}


def memory(processes: Mapping[str, int]) -> dict[str, float]:
    """Resident memory of each daemon in MB."""
    return {name: scale.load(pid).rss_mb for name, pid in processes.items()}


def soak(lab: world.World, moves: int, warm_after: int, growth_at_most: float = GROWTH_AT_MOST) -> Soaked:
    """Move the pool to and fro, an even number of times, so that it ends where it began."""
    if moves % 2 or not 0 < warm_after < moves:
        raise LabError(f"{moves} moves, warm after {warm_after}: an even number, and some of them before")
    homes = (scenario.OWNER, scenario.other_than(scenario.OWNER))
    scenario.settled_at_owner(lab, "a soak begins")
    for target in (homes[1], homes[0]):  # what the first move of all makes, it may keep
        _move(lab, target)
    processes = scale.daemons(lab)
    before, held, open_files = _quiet_inventory(lab), leases(lab), descriptors(processes)
    warm: dict[str, float] = {}
    began_s = time.monotonic()
    for number in range(1, moves + 1):
        _move(lab, homes[number % 2])
        if number == warm_after:
            warm = memory(processes)
        if number % 20 == 0:
            lab.say(f"{number} of {moves} moves, {time.monotonic() - began_s:.0f} s")
    took_s = time.monotonic() - began_s
    end = memory(processes)
    left = beyond(before, _quiet_inventory(lab))
    left["leases"] = [f"{more} more"] if (more := leases(lab) - held) > 0 else []
    now = descriptors(processes)
    left["open files"] = [
        f"{name}: {now[name] - count} more" for name, count in open_files.items() if now[name] > count
    ]
    left["history"] = _over_the_ring(lab)
    left["daemons started anew"] = [n for n, pid in scale.daemons(lab).items() if processes.get(n) != pid]
    return Soaked(moves, round(took_s, 1), left, warm, end, growth_at_most)


def _move(lab: world.World, target: str) -> None:
    observe.wait_settled(lab, scenario.READY_TIMEOUT_S)
    scenario.move_pool(lab, target, "soak")


def _quiet_inventory(lab: world.World) -> Inventory:
    """After the last move's linger, with a ready standby and a plan."""
    observe.wait_settled(lab, scenario.READY_TIMEOUT_S)
    time.sleep(LINGER_S)
    return inventory(lab)


def _over_the_ring(lab: world.World) -> list[str]:
    counts: dict[str, int] = {}
    for key in etcdctl(lab, "get", "--prefix", "--keys-only", OF_THEIR_OWN[1]).splitlines():
        pool = key.rpartition("/")[0]
        counts[pool] = counts.get(pool, 0) + 1 if pool else 0
    return [f"{pool}: {count} records" for pool, count in counts.items() if count > RING]


def document_of(found: Soaked) -> dict[str, Any]:
    """The record of a soak."""
    return {
        "schema": 1,
        "bench": "soak",
        "moves": found.moves,
        "took_s": found.took_s,
        "left": {what: items for what, items in found.left.items() if items},
        "rss_warm_mb": {name: round(mb, 1) for name, mb in found.warm_mb.items()},
        "rss_end_mb": {name: round(mb, 1) for name, mb in found.end_mb.items()},
        "rss_growth": found.growth(),
        "failures": found.failures(),
    }


def report_lines(found: Soaked) -> Iterable[str]:
    """The record for people."""
    yield f"{found.moves} moves in {found.took_s:.0f} s"
    for name, factor in sorted(found.growth().items()):
        yield f"{name}: {found.warm_mb[name]:.1f} MB warm, {found.end_mb[name]:.1f} MB at the end, x {factor:.3f}"
    yield from (f"FAILED: {line}" for line in found.failures())
    if not found.failures():
        yield "nothing is left of them: no rule, route, nft object, AllowedIP, lease, key or open file more than before"


def command(
    moves: Annotated[int, typer.Option("--moves", min=2, help="How many, an even number.")] = MOVES,
    warm_after: Annotated[int, typer.Option("--warm-after", min=1, help="Memory is compared with that move's.")] = 50,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record here.", show_default=False)] = None,
    lab_id: Annotated[
        str | None, typer.Option("--id", help="Name of the lab; a random one unless given.", show_default=False)
    ] = None,
) -> None:
    """Move a pool to and fro and see that nothing is left of it: rules, routes, keys, leases, files, memory.

    Exits with 0 only when nothing is left and no daemon grew by more than 5 % after it was warm.

    \b
    Example:
      bgplb lab bench soak --moves 200 --json soak.json
    """
    err = Console(stderr=True, soft_wrap=True)
    lab = world.World(lab_id or world.new_lab_id(), lambda line: err.print(line, style="dim", highlight=False))
    with scenario.standing(lab):
        found = soak(lab, moves, warm_after)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(document_of(found), indent=2) + "\n", encoding="utf-8")
    for line in report_lines(found):
        print(line)
    if found.failures():
        raise typer.Exit(1)
