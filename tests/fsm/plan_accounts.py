"""Whether the history tells of every plan that an edge carried out."""

from collections import Counter

from fsm.events import PoolEvent
from tests.fsm.world import POOL, ModelWorld


def untold_plans(world: ModelWorld) -> list[str]:
    """Plans that edges remember to have carried out, and of which the history does not tell exactly once.

    It tells of one by an entry under its number, by one that says it was superseded, or by telling of the next one of
    its chain.
    """
    stood = {entry.epoch for entry in world.history}
    superseded = Counter(int(e.evidence["plan"]) for e in world.history if e.event == PoolEvent.PLAN_SUPERSEDED)
    found = [f"plan {number} is told {times} times" for number, times in superseded.items() if times > 1]
    found += [f"plan {number} is in force and superseded" for number in superseded if number in stood]
    carried_out = [
        plan
        for edge in world.edges.values()
        if (taken := edge.fence.pools.get(POOL)) is not None
        for plan in taken.carried_out
    ]
    gone_on_from = {plan.base for plan in carried_out}
    return found + [
        f"plan {plan.epoch} is not told of"
        for plan in carried_out
        if plan.epoch not in stood and plan.epoch not in superseded and plan.epoch not in gone_on_from
    ]
