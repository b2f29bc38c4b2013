"""The last number taken, as far as anybody knows: what comes next is above it."""

from fsm.records import EdgeReport
from orchestrator.leader.knowledge import Knowledge


def last_number(known: Knowledge) -> int:
    """The counter, unless an edge has accepted more, or a record holds more, a plan's number that was only reserved.

    Then a backup of the store was put back, or another hand was at the counter.
    """
    told = [agent.highest_epoch for agent in known.agents.values()]
    told += [report.highest_epoch for report in known.reports.values() if isinstance(report, EdgeReport)]
    return max(known.epoch_counter, known.highest_recorded, max(told, default=0))
