"""What the daemons and the machines say: replicas by their admin sockets, the edge by its kernel and WireGuard."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bgplb_lab import control, topology
from bgplb_lab.errors import LabError, Unreachable
from bgplb_lab.world import World

HISTORY = 60
ALIAS = "bgplb:"
FOREIGN_PRIORITY = 10085
FOREIGN_TABLE = "bgplb_other"
FOREIGN_ROUTES = dict.fromkeys(topology.EDGES, ("192.0.2.64/26", "main"))
FOREIGN_ROUTES |= dict.fromkeys(topology.GATEWAYS, ("198.18.64.0/18", "10077"))


def replica(world: World, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the orchestrators one after the other; raises Unreachable when none answers."""
    refusals = []
    running = world.pids()
    for name in topology.ORCHESTRATORS:
        if name not in running:
            refusals.append(f"{name} is off")
            continue
        try:
            answer = control.ask_socket(f"/proc/{running[name]}/root/run/bgplb/{name}.sock", request)
        except Unreachable as failed:
            refusals.append(str(failed))
            continue
        if "error" in answer:
            refusals.append(f"{name}: {answer['error']}")
        elif answer.get("store", answer).get("age_ms", 0) < 0:
            refusals.append(f"{name} has just started, and has not read the store yet")
        else:
            return answer
    raise Unreachable(f"no orchestrator answers: {'; '.join(refusals)}")


def pool(world: World) -> dict[str, Any]:
    """The pool's machine as `fsm dump -o json` gives it, with its history; raises Unreachable while there is none."""
    for machine in replica(world, {"cmd": "dump", "history": HISTORY})["machines"]:
        if machine["type"] == "pool" and machine["name"] == topology.POOL:
            return dict(machine)
    raise Unreachable(f"no orchestrator knows the pool {topology.POOL} yet")


def situation(world: World, owner: str | None, with_standby: bool) -> tuple[dict[str, Any] | None, str]:
    """The pool's machine if it is ActiveHealthy at `owner` (any, if None), else None; and what was seen, in a sentence.

    Owner and standby must also be ready in the replica's own view when `with_standby` is true.
    """
    try:
        machine = pool(world)
        gateways = {gateway["name"]: gateway for gateway in replica(world, {"cmd": "status"})["gateways"]}
    except Unreachable as not_yet:
        return None, str(not_yet)
    ready = [name for name, gateway in gateways.items() if gateway["ready"]]
    seen = (
        f"{machine['state']} at {machine['owner']}, standby {machine['standby']}, ready: {', '.join(ready) or 'none'}"
    )
    for name, gateway in gateways.items():
        if name not in ready:
            seen += f"; {name} is not ready: {', '.join(gateway['not_ready'])}"
    good = machine["state"] == "ActiveHealthy" and owner in (None, machine["owner"])
    if with_standby:
        good = good and machine["owner"] in ready and machine["standby"] in ready
    return (machine if good else None), seen


def wait_settled(world: World, timeout_s: float, owner: str | None = None, with_standby: bool = True) -> dict[str, Any]:
    """Wait until `situation` is good; raises TimedOut saying what was seen last."""
    last = ["nothing"]

    def probe() -> dict[str, Any] | None:
        machine, last[0] = situation(world, owner, with_standby)
        return machine

    wanted = f"pool {topology.POOL} ActiveHealthy at {owner or 'any gateway'}"
    wanted += " with a ready standby" if with_standby else ""
    try:
        return control.wait_for(wanted, probe, timeout_s, 0.05)
    except LabError as late:
        raise type(late)(f"{late}; last seen: {last[0]}") from late


def wait_armed(world: World, timeout_s: float, owner: str) -> dict[str, Any]:
    """Wait until the pool is settled at `owner` and its edge has a plan for that owner's death; several have none."""

    def probe() -> dict[str, Any] | None:
        machine, _ = situation(world, owner, with_standby=True)
        return machine if machine is not None and (machine["plan"] or world.edges > 1) else None

    return control.wait_for(f"pool {topology.POOL} at {owner} to have a plan", probe, timeout_s, 0.05)


def states_since(machine: dict[str, Any], seq: int) -> tuple[str, ...]:
    """The states that the machine entered after history entry `seq`; a state that it stayed in does not count.

    The leader also records what it reserves while nothing moves: the numbers of a plan.
    """
    return tuple(entry["to"] for entry in machine["history"] if entry["seq"] > seq and entry["to"] != entry["from"])


def phases_since(machine: dict[str, Any], seq: int) -> dict[str, float]:
    """The phase times of all transitions after history entry `seq`, in ms, each from the clock that measured it."""
    phases: dict[str, float] = {}
    for entry in machine["history"]:
        if entry["seq"] > seq:
            phases |= entry["phases_ms"]
    return phases


def last_seq(machine: dict[str, Any]) -> int:
    """Number of the newest history entry, -1 when there is none."""
    return max((int(entry["seq"]) for entry in machine["history"]), default=-1)


@dataclass(frozen=True)
class Steering:
    """Where the edge sends the pool, whom it believes, and who announces it. All by gateway name."""

    routes: tuple[str, ...]
    allowed: tuple[str, ...]
    announced: tuple[str, ...]


def gateway_devices(world: World, edge: str) -> dict[str, str]:
    """The edge's tunnel interfaces by their alias: interface -> gateway."""
    links = json.loads(world.inside(edge, "ip", "-j", "link"))
    return {
        link["ifname"]: link["ifalias"].removeprefix(ALIAS)
        for link in links
        if str(link.get("ifalias", "")).startswith(ALIAS)
    }


def steering(world: World) -> Steering:
    """What all edges that are on do; where they differ, all that was found, and at which edge nobody."""
    found = {edge: steering_at(world, edge) for edge in world.edge_names if edge in world.pids()}

    def said(of: Callable[[Steering], tuple[str, ...]]) -> tuple[str, ...]:
        names = {edge: of(seen) for edge, seen in found.items()}
        if len(set(names.values())) == 1:
            return next(iter(names.values()))
        nobody = {f"nobody at {edge}" for edge, who in names.items() if not who}
        return tuple(sorted(nobody.union(*names.values())))

    return Steering(said(lambda s: s.routes), said(lambda s: s.allowed), said(lambda s: s.announced))


def steering_at(world: World, edge: str) -> Steering:
    """Read the edge's kernel and WireGuard; an interface without our alias shows as itself.

    Where the prefixes of the pool differ, all that was found of any is told, and which prefixes nobody has.
    """
    devices = gateway_devices(world, edge)
    dumps = {name: believed(world.inside(edge, "wg", "show", device, "dump")) for device, name in devices.items()}
    found = [steering_of(world, edge, prefix, devices, dumps) for prefix in topology.POOL_PREFIXES]
    return Steering(
        agreed([seen.routes for seen in found]),
        agreed([seen.allowed for seen in found]),
        agreed([seen.announced for seen in found]),
    )


def agreed(names: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What is said of each prefix of the pool, as one answer."""
    if len(set(names)) == 1:
        return names[0]
    nobody = {f"nobody for {prefix}" for prefix, said in zip(topology.POOL_PREFIXES, names, strict=True) if not said}
    return tuple(sorted(nobody.union(*names)))


def steering_of(
    world: World, edge: str, prefix: str, devices: Mapping[str, str], dumps: Mapping[str, list[list[str]]]
) -> Steering:
    """The same for one prefix, which may be in no table. `dumps`: allowed IPs of the peers of each gateway's tunnel."""

    def routed(table: str) -> tuple[str, ...]:
        family = "-6" if ":" in prefix else "-4"
        try:
            text = world.inside(edge, "ip", family, "-j", "route", "show", "table", table, "exact", prefix)
        except LabError as absent:
            if "table does not exist" in str(absent):
                return ()
            raise
        found = [str(route.get("dev", route.get("type"))) for route in json.loads(text or "[]")]
        return tuple(sorted(devices.get(device, device) for device in found))

    allowed = [gateway for gateway, peers in dumps.items() for ips in peers if prefix in ips]
    return Steering(routed("main"), tuple(sorted(allowed)), routed(str(topology.SIGNAL_TABLE)))


def believed(dump: str) -> list[list[str]]:
    """Allowed IPs of each real peer in `wg show DEVICE dump`; a parking peer has neither endpoint nor handshake."""
    peers = []
    for line in dump.splitlines()[1:]:
        _, _, endpoint, allowed, handshake, *_ = line.split("\t")
        if endpoint != "(none)" or handshake != "0":
            peers.append(allowed.split(","))
    return peers


def left_on(world: World, gateway: str, like: str) -> tuple[str, ...]:
    """What a gateway that lost the pool still has of it; `like` is a gateway whose rules are known to be right."""
    left = []
    for prefix in topology.POOL_PREFIXES:
        if f"{prefix} " in bird_route(world, gateway, prefix):
            left.append(f"{gateway}'s BIRD still has {prefix}")
    seen = steering(world)
    for what, names in (("steers to", seen.routes), ("believes", seen.allowed), ("hears", seen.announced)):
        if gateway in names:
            left.append(f"the edge {what} {gateway} for {topology.POOL}")
    extra = our_rules(world, gateway) - our_rules(world, like)
    left += [f"{gateway} has a rule that {like} has not: {rule}" for rule in sorted(extra)]
    return tuple(left)


def bird_route(world: World, machine: str, prefix: str) -> str:
    """What our BIRD of a machine answers about a prefix, empty when it has no such route (reply code 8001)."""
    try:
        return world.inside(machine, "birdc", "-s", topology.OUR_BIRD_SOCKET, "show", "route", prefix)
    except LabError as absent:
        if "Network not found" in str(absent):
            return ""
        raise


def our_rules(world: World, machine: str) -> set[str]:
    """Our policy rules of a machine, as iproute2 prints them."""
    lines = [line for family in ("-4", "-6") for line in world.inside(machine, "ip", family, "-d", "rule").splitlines()]
    return {" ".join(line.split()) for line in lines if line.split()[-1:] == ["77"] and "proto" in line}


def plant_foreign(world: World, machines: Iterable[str]) -> None:
    """Things that look like ours and are not: a rule in our range, a neighbouring route, a table with our name's root.

    The operator's BIRD on the edge has had a foreign static protocol from the start.
    """
    for machine in machines:
        prefix, table = FOREIGN_ROUTES[machine]
        world.inside(machine, "ip", "rule", "add", "priority", str(FOREIGN_PRIORITY), "from", "198.18.99.0/24")
        world.inside(machine, "ip", "route", "add", "unreachable", prefix, "table", table, "proto", "static")
        rules = f"table inet {FOREIGN_TABLE} {{\n chain c {{\n type filter hook input priority 5;\n accept\n }}\n}}\n"
        world.inside(machine, "nft", "-f", "-", stdin=rules)


def foreign(world: World, machines: Iterable[str]) -> dict[str, str]:
    """The planted things as they are now: name -> text as printed by their own tools, empty when gone."""
    found: dict[str, str] = {}
    for machine in machines:
        prefix, table = FOREIGN_ROUTES[machine]
        looks = {
            "rule": ("ip", "-d", "rule", "show", "priority", str(FOREIGN_PRIORITY)),
            "route": ("ip", "-d", "route", "show", "table", table, "exact", prefix),
            "nft table": ("nft", "list", "table", "inet", FOREIGN_TABLE),
        }
        if machine in topology.EDGES:
            ask = ("birdc", "-s", topology.OPERATOR_BIRD_SOCKET, "show", "route", "protocol", "foreign_static")
            looks["BIRD protocol"] = ask
        for what, argv in looks.items():
            try:
                found[f"{what} on {machine}"] = world.inside(machine, *argv).strip()
            except LabError as gone:
                if "No such file" not in str(gone) and "table does not exist" not in str(gone):
                    raise
                found[f"{what} on {machine}"] = ""
    return found
