"""What an edge may do by itself: the next plan of a pool, and whether its moment has come. Pure."""

from collections.abc import Mapping

from fsm.fence import Accepted
from fsm.records import EdgePool, GatewayWitness, Plan
from fsm.types import Heartbeat, Judgement, Probe, Session
from fsm.witness import judge


def next_plan(command: EdgePool) -> Plan | None:
    """The plan that stands on the command's own epoch; None without one, and for a pool that is being deleted."""
    if command.deleted or command.owner is None:
        return None
    return next((plan for plan in command.plan if plan.base == command.epoch), None)


def is_dead(gateway: GatewayWitness) -> bool:
    """What this edge itself sees of a gateway is that it is dead: unknown is not."""
    return judge(gateway.session, Heartbeat.FRESH, gateway.probe, gateway.missed) is Judgement.DEAD


def due_plans(pools: Mapping[str, Accepted], witnesses: Mapping[str, GatewayWitness]) -> list[str]:
    """Pools whose next plan's moment has come: this edge itself sees the owner dead, and the target carry packets.

    Unknown is never dead: a silent BIRD, or all sessions gone at once, moves nothing.
    """
    dead = {name for name, seen in witnesses.items() if is_dead(seen)}
    if not dead:
        return []
    fit = {name for name, seen in witnesses.items() if seen.session == Session.UP and seen.probe == Probe.PASSING}
    return [
        pool
        for pool, accepted in pools.items()
        if accepted.command.owner in dead and (plan := next_plan(accepted.command)) is not None and plan.target in fit
    ]


def carried_out(
    pools: Mapping[str, Accepted], routed: Mapping[str, str | None], devices: Mapping[str, str]
) -> list[str]:
    """Pools whose next plan the kernel shows as carried out already.

    `routed`: the device that each prefix's route points at; `devices`: the interface of each gateway's tunnel.
    """
    found: list[str] = []
    for pool, accepted in pools.items():
        plan = next_plan(accepted.command)
        device = devices.get(plan.target) if plan else None
        if device is not None and all(routed.get(prefix) == device for prefix in accepted.command.prefixes):
            found.append(pool)
    return found
