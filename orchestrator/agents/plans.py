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


def due_plan(command: EdgePool, witnesses: Mapping[str, GatewayWitness]) -> Plan | None:
    """The next plan, if this edge itself sees that the owner is dead and that the target carries packets.

    Unknown is never dead: a silent BIRD, or all sessions gone at once, moves nothing.
    """
    plan, owner = next_plan(command), witnesses.get(command.owner or "")
    target = witnesses.get(plan.target) if plan else None
    if owner is None or target is None or not is_dead(owner):
        return None
    return plan if target.session == Session.UP and target.probe == Probe.PASSING else None


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
