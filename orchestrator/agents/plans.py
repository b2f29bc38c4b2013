"""What an edge may do by itself: the next plan of a pool, and whether its moment has come. Pure."""

from collections.abc import Mapping
from dataclasses import replace

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
    """Pools whose next plan the kernel shows as carried out already, and perhaps more of the chain after it.

    `routed`: the device that each prefix's route points at; `devices`: the interface of each gateway's tunnel.
    """
    found: list[str] = []
    for pool, accepted in pools.items():
        command = accepted.command
        through = {routed.get(prefix) for prefix in command.prefixes}
        ahead = {devices.get(target) for target in _targets(command)} - {None, devices.get(command.owner or "")}
        if len(through) == 1 and through <= ahead:
            found.append(pool)
    return found


def _targets(command: EdgePool) -> list[str]:
    """Whom the plans of the chain point at, one after the other; numbers only rise, or there would be no end."""
    targets: list[str] = []
    while (plan := next_plan(command)) is not None:
        targets.append(plan.target)
        rest = tuple(later for later in command.plan if later.epoch > plan.epoch)
        command = replace(command, epoch=plan.epoch, plan=rest)
    return targets
