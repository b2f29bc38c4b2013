"""What must happen when the edge, the orchestrators or the store lose a part: traffic hardly ever notices."""

import time
from typing import Any

import pytest
from bgplb_lab import absence, control, faults, observe, roles, topology
from bgplb_lab.absence import Absence, Without
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.errors import RefusedByState, Unreachable
from bgplb_lab.probes import Prober, RouteWatch
from bgplb_lab.scenario import EDGE, OWNER, cut_and_return
from bgplb_lab.world import World

from tests.lab.under_fault import LONG_S, OTHER, QUIET_PROBES, condition, suffer, within

pytestmark = pytest.mark.chaos

BOOT_S = 5.0
"""Within which pools are back after an edge has booted."""


def another_leads(lab: World, first: str) -> bool | None:
    """True once an orchestrator other than `first` leads, None before."""
    try:
        return True if roles.leader(lab) != first else None
    except (Unreachable, RefusedByState):  # between two leaders there is none
        return None


@pytest.mark.parametrize("name", ["edge-agent-kill", "agent-freeze"])
def test_an_edge_without_its_agent_goes_on(whole_lab: World, healthy: dict[str, Any], name: str) -> None:
    """The kernel carries packets; the agent comes back from its disk, or wakes, and finds everything as it is."""
    seen = suffer(whole_lab, healthy, name, EDGE, until=lambda: condition(whole_lab, "EdgeUnreachable"))
    assert (seen.lost, seen.states) == (0, ())


@pytest.mark.parametrize("name", ["edge-bird-kill", "bird-freeze"])
def test_an_edge_without_its_bird_knows_that_it_knows_nothing(
    whole_lab: World, healthy: dict[str, Any], name: str
) -> None:
    """Every session is gone at once because their common end is: the witness is unknown, and nothing moves."""
    seen = suffer(whole_lab, healthy, name, EDGE, until=lambda: condition(whole_lab, "NoStandby"))
    assert (seen.lost, seen.states) == (0, ())


@pytest.mark.parametrize("name", ["orchestrator-term", "orchestrator-freeze"])
def test_a_leader_that_goes_or_sleeps_is_followed_and_costs_nothing(
    whole_lab: World, healthy: dict[str, Any], name: str
) -> None:
    """A leader that wakes up deposed changes nothing: its writes are guarded by a key that is gone."""
    first = roles.leader(whole_lab)
    seen = suffer(whole_lab, healthy, name, first, until=lambda: another_leads(whole_lab, first))
    assert (seen.lost, seen.states) == (0, ())
    assert seen.machine["epoch"] == healthy["epoch"]
    assert another_leads(whole_lab, first)


def test_a_leader_that_is_asked_to_end_hands_over_sooner_than_a_dead_one_is_missed(
    whole_lab: World, healthy: dict[str, Any]
) -> None:
    took_s = {}
    for name in ("orchestrator-kill", "orchestrator-term"):
        first = roles.leader(whole_lab)
        began = time.monotonic()
        faults.strike(whole_lab, name, first)

        def other(first: str = first) -> bool | None:
            return another_leads(whole_lab, first)

        control.wait_for("another leader", other, LONG_S, 0.005)
        took_s[name] = time.monotonic() - began
        faults.heal(whole_lab, name, first)
        observe.wait_settled(whole_lab, LONG_S, OWNER)
    print(f"another leads after {took_s}")
    assert took_s["orchestrator-term"] < took_s["orchestrator-kill"]


@pytest.mark.parametrize("name", ["etcd-kill", "etcd-freeze"])
def test_one_lost_member_of_the_store_is_not_noticed(whole_lab: World, healthy: dict[str, Any], name: str) -> None:
    """The worst one, which leads. Frozen, its connections stay open and silent: a hung watch that nobody closes."""
    seen = suffer(whole_lab, healthy, name, roles.etcd_leader(whole_lab), last_s=6.0)
    assert (seen.lost, seen.states) == (0, ())


def test_a_power_cut_while_the_leader_of_the_store_sleeps_is_left_to_the_plan(
    whole_lab: World, healthy: dict[str, Any]
) -> None:
    """A lease outlives its holder, and writes hang: what the edge sees itself must not wait for either."""
    watch = RouteWatch(whole_lab, EDGE)
    before = observe.wait_armed(whole_lab, LONG_S, OWNER)
    member = roles.etcd_leader(whole_lab)
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(whole_lab, "etcd-freeze", member)
    t0_ns = faults.strike(whole_lab, "power-cut", OWNER)
    prober.wait_until(prober.due_now() + 2 * QUIET_PROBES)
    assert observe.steering(whole_lab).routes == (OTHER,)
    counts = prober.stop().counts
    fell_ns = watch.first_after(t0_ns, "del", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX)
    assert fell_ns is not None
    faults.heal(whole_lab, "etcd-freeze", member)
    after = observe.wait_settled(whole_lab, LONG_S, OTHER, with_standby=False)
    assert observe.states_since(after, observe.last_seq(before)) == UNPLANNED
    faults.heal(whole_lab, "power-cut", OWNER)
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    watch.stop()
    within(counts, (fell_ns - t0_ns) / 1e6, 1.3)


@pytest.mark.parametrize("part", list(Without))
def test_a_power_cut_without_a_part_of_the_brain_costs_no_more(
    whole_lab: World, healthy: dict[str, Any], part: Without
) -> None:
    """The edge has only its plan. Whoever leads afterwards adopts what was done, once."""
    before = observe.wait_armed(whole_lab, LONG_S, OWNER)
    watch = RouteWatch(whole_lab, EDGE)
    cut = cut_and_return(whole_lab, watch, before, lambda: None, Absence(part))
    watch.stop()
    assert cut.executed == 1
    assert observe.states_since(cut.after, observe.last_seq(before)) == UNPLANNED
    assert observe.states_since(cut.returned, observe.last_seq(cut.after)) == ()
    assert absence.executed(cut.returned, observe.last_seq(cut.after)) == 0
    assert cut.recovery.lost == 0
    within(cut.outage, cut.floor_ms, 1.3)


def back_after_s(lab: World, without_etcd: bool) -> float:
    """Reboot the edge under probes; answers the seconds from then to the last probe that was lost."""
    prober = Prober(lab)
    prober.wait_until(QUIET_PROBES)
    if without_etcd:
        faults.strike(lab, "etcd-stop", "all")
    t0_ns = faults.strike(lab, "edge-reboot", EDGE)
    prober.wait_until(prober.due_now() + int(2 * BOOT_S * 1000))
    run = prober.stop()
    if without_etcd:
        faults.heal(lab, "etcd-stop", "all")
    assert any(at is not None and at > t0_ns + 1e9 for at in run.arrived_ns), "no probe was answered any more"
    lost_ns = [sent for sent, at in zip(run.sent_ns, run.arrived_ns, strict=True) if at is None]
    return (lost_ns[-1] - t0_ns) / 1e9


@pytest.mark.parametrize("without_etcd", [False, True], ids=["with the store", "without the store"])
def test_a_rebooted_edge_has_its_pools_back(whole_lab: World, healthy: dict[str, Any], without_etcd: bool) -> None:
    """Every tunnel is lost at once and every gateway is behind a NAT: the edge can't call, it must be called."""
    took_s = back_after_s(whole_lab, without_etcd)
    print(f"the last probe is lost {took_s:.1f} s after the power went")
    assert took_s <= BOOT_S
    observe.wait_settled(whole_lab, LONG_S, OWNER)
