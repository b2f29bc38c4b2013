"""Machines named by what they are at this moment: who owns the pool, who stands by, who leads."""

import json

from bgplb_lab import observe, topology
from bgplb_lab.errors import RefusedByState, Unreachable
from bgplb_lab.etcdctl import etcdctl
from bgplb_lab.world import World

ROLES = ("active", "standby", "leader", "etcd-leader")


def resolve(world: World, name: str) -> str:
    """The machine that has the role now; any other name is answered as it is. Raises RefusedByState when none has."""
    if name == "active":
        return named(name, observe.pool(world)["owner"])
    if name == "standby":
        return named(name, observe.pool(world)["standby"])
    if name == "leader":
        return leader(world)
    return etcd_leader(world) if name == "etcd-leader" else name


def named(role: str, machine: object) -> str:
    """The machine, or RefusedByState when the role is nobody's."""
    if not machine:
        raise RefusedByState(f"no machine is the {role} now: `bgplb status` tells why")
    return str(machine)


def leader(world: World) -> str:
    """The leading orchestrator, as a replica sees it."""
    found = observe.replica(world, {"cmd": "status"})["leader"]
    return named("leader", found and found["name"])


def etcd_leader(world: World) -> str:
    """The etcd member that leads, as most members see it; asked from inside the management network."""
    text = etcdctl(world, "endpoint", "status", "-w", "json")
    names = {endpoint: name for name, endpoint in topology.endpoints(world.auth).items()}
    for member in json.loads(text):
        status = member["Status"]
        if status["header"]["member_id"] == status["leader"]:
            return names[member["Endpoint"]]
    raise Unreachable("no etcd member leads: wait for the election, or heal what keeps them apart")
