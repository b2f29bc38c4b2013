"""Two edges: one failover of a pool that both serve, with every packet counted through each."""

from typing import Any

from bgplb_lab import observe
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.probes import RouteWatches
from bgplb_lab.scenario import cut_and_return
from bgplb_lab.topology import Family
from bgplb_lab.world import World

from tests.lab.under_fault import DETECTION_MS, OTHER, within

EDGES = 2
FAMILY = Family.IPV4
"""One family through two edges is as much work for the processors as two through one."""


def test_a_power_cut_is_one_move_at_both_edges(whole_lab: World, healthy: dict[str, Any]) -> None:
    assert healthy["plan"] == [], "no edge may act on what it alone sees"
    watch = RouteWatches(whole_lab)
    cut = cut_and_return(whole_lab, watch, healthy, lambda: None)
    watch.stop()
    assert observe.states_since(cut.after, observe.last_seq(healthy)) == UNPLANNED
    assert cut.executed == 0
    assert cut.steering.routes == cut.steering.allowed == (OTHER,)
    assert {name: edge["owner"] for name, edge in cut.after["edges"].items()} == {"edge-1": OTHER, "edge-2": OTHER}
    assert cut.floor_ms is not None, "no floor was seen"
    # Both witnesses of both edges have to speak: a probe needs up to three intervals, also where BFD was quicker.
    within(cut.outage, max(cut.floor_ms, DETECTION_MS), 1.3)
    assert cut.outage.outage_ms >= 0.5 * cut.floor_ms
    assert set(cut.outage.families) == {"4", "4 by edge-2"}
    for path, counts in cut.outage.families.items():
        assert counts.lost > 0, f"nothing was lost over IPv{path}: it does not lead through the gateway that died"
    assert observe.states_since(cut.returned, observe.last_seq(cut.after)) == ()
    assert cut.recovery.lost == 0
