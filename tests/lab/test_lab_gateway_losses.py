"""What must happen when the active gateway loses a part: one move or none, and how many packets that may cost.

The first tests are those that a leader damps after several moves; so they come before the pool has moved much.
"""

import time
from typing import Any

import pytest
from bgplb_lab import control, faults, observe, topology
from bgplb_lab.checks import PLANNED, UNPLANNED
from bgplb_lab.probes import Prober, RouteWatch
from bgplb_lab.scenario import EDGE, MOVE_TIMEOUT_S, OWNER, move_pool, settled_at_owner, wait_for_move
from bgplb_lab.world import World

from tests.lab.under_fault import (
    DETECTION_MS,
    LONG_S,
    OTHER,
    QUIET_PROBES,
    Seen,
    condition,
    moved,
    suffer,
    went,
    within,
)

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def lan_cut(whole_lab: World) -> Seen:
    """The cluster LAN of the active is cut, once for the tests that judge it."""
    before = settled_at_owner(whole_lab, "a test begins")
    return suffer(whole_lab, before, "cluster-link-cut", OWNER, until=lambda: moved(whole_lab), ends_at=OTHER)


def test_a_lost_cluster_lan_costs_one_move(lan_cut: Seen) -> None:
    """Healthy on paper: tunnel, BFD, store and heartbeat are fine, and no packet reaches a pod."""
    assert lan_cut.states == UNPLANNED
    assert lan_cut.owner == OTHER
    assert lan_cut.during.outage_ms > 0
    assert lan_cut.since_heal.lost == 0


def test_a_lost_cluster_lan_costs_no_more_than_twice_the_floor(lan_cut: Seen) -> None:
    within(lan_cut.during, DETECTION_MS, 2.0)


def test_a_frozen_bird_on_the_active_costs_one_planned_move_and_no_packet(
    whole_lab: World, healthy: dict[str, Any]
) -> None:
    """A session that ends while packets pass: make before break; and the thawed BIRD takes nothing back."""
    seen = suffer(whole_lab, healthy, "bird-freeze", OWNER, until=lambda: moved(whole_lab), ends_at=OTHER)
    assert seen.lost == 0
    assert (seen.states[0], seen.states[-1]) == ("Draining", "ActiveHealthy")
    assert seen.states.count("ActiveHealthy") == 1
    assert seen.floor_ms is not None
    assert observe.left_on(whole_lab, OWNER, OTHER) == ()


def test_a_frozen_agent_on_the_active_costs_nothing(whole_lab: World, healthy: dict[str, Any]) -> None:
    """Control is lost and traffic is fine: that is a condition and no reason to move."""
    seen = suffer(whole_lab, healthy, "agent-freeze", OWNER, until=lambda: condition(whole_lab, "Suspect"))
    assert (seen.lost, seen.states) == (0, ())


def test_an_active_that_loses_the_store_serves_on(whole_lab: World, healthy: dict[str, Any]) -> None:
    """The store unreachable from one gateway only, with `onStoreLoss: hold`: nobody can take over without the fence."""
    seen = suffer(whole_lab, healthy, "partition", OWNER, "etcd", until=lambda: condition(whole_lab, "Suspect"))
    assert (seen.lost, seen.states) == (0, ())


def test_a_dead_tunnel_process_costs_no_more_than_twice_a_detection(whole_lab: World, healthy: dict[str, Any]) -> None:
    """The agent makes it anew at once. Whether the session falls before, and whether packets pass by then, is a matter
    of milliseconds: that decides whether the pool moves, and how. What it costs does not depend on it.
    """
    seen = suffer(whole_lab, healthy, "wireguard-down", OWNER, last_s=3.0, ends_at=None)
    assert seen.states in ((), UNPLANNED, PLANNED)
    within(seen.during, max(seen.floor_ms or 0.0, DETECTION_MS), 2.0)
    assert seen.since_heal.lost == 0


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_tunnel_that_carries_one_way_only_is_dead(whole_lab: World, healthy: dict[str, Any], way: str) -> None:
    """Half-open: one side still hears the other. The carrier is up everywhere and no socket is closed."""
    seen = suffer(whole_lab, healthy, "one-way-cut", OWNER, way, until=lambda: moved(whole_lab), ends_at=OTHER)
    assert seen.states == UNPLANNED
    within(seen.during, seen.floor_ms, 1.3)
    assert seen.since_heal.lost == 0


def test_a_little_loss_moves_nothing(whole_lab: World, healthy: dict[str, Any]) -> None:
    """Lossy is not dead: a path that drops one packet in fifty keeps its pools."""
    seen = suffer(whole_lab, healthy, "loss", OWNER, "2", last_s=3.0)
    assert seen.states == ()
    assert 0 < seen.during.lost < 0.1 * seen.during.sent
    assert seen.since_heal.lost <= 5  # those that were under way


def test_a_nat_that_takes_other_ports_costs_less_than_a_detection(whole_lab: World, healthy: dict[str, Any]) -> None:
    """The endpoint changes under a living tunnel: the edge learns the new one from the next packet."""
    seen = suffer(whole_lab, healthy, "nat-remap", "nat-a")
    assert seen.states == ()
    within(seen.during, DETECTION_MS, 1.0)
    assert seen.since_heal.lost == 0


def test_an_agent_that_slept_through_a_move_lets_go_when_it_wakes(whole_lab: World, healthy: dict[str, Any]) -> None:
    """Two holders: the sleeper still announces; the edge's fence decides, and the sleeper obeys as soon as it can."""
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    faults.strike(whole_lab, "agent-freeze", OWNER)
    move_pool(whole_lab, OTHER, "the old owner's agent is asleep")
    seen = observe.steering(whole_lab)
    assert seen.routes == (OTHER,)
    faults.heal(whole_lab, "agent-freeze", OWNER)

    def clean() -> bool | None:
        return True if observe.left_on(whole_lab, OWNER, OTHER) == () else None

    control.wait_for(f"{OWNER} to have nothing left of the pool", clean, MOVE_TIMEOUT_S)
    observe.wait_settled(whole_lab, MOVE_TIMEOUT_S, OTHER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    assert prober.stop().counts.lost == 0
    assert went(whole_lab, healthy).count("ActiveHealthy") == 1


def test_an_old_owner_that_returns_without_the_store_stays_silent(whole_lab: World, healthy: dict[str, Any]) -> None:
    """It boots with its disk and its former life in mind, and nobody to ask: it may be a standby, never an owner."""
    watch = RouteWatch(whole_lab, EDGE)
    faults.strike(whole_lab, "power-cut", OWNER)
    wait_for_move(whole_lab, OWNER)
    states = went(whole_lab, healthy)
    faults.strike(whole_lab, "etcd-stop", "all")
    prober = Prober(whole_lab)
    on_ns = time.monotonic_ns()
    faults.heal(whole_lab, "power-cut", OWNER)

    def session() -> int | None:
        return watch.first_after(on_ns, "new", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX)

    control.wait_for(f"{OWNER}'s session, from its disk alone", session, LONG_S, 0.2)
    prober.wait_until(prober.due_now() + 4 * QUIET_PROBES)
    seen = observe.steering(whole_lab)
    assert (seen.routes, seen.allowed, seen.announced) == ((OTHER,), (OTHER,), (OTHER,))
    faults.heal(whole_lab, "etcd-stop", "all")
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    assert prober.stop().counts.lost == 0
    assert went(whole_lab, healthy) == states
    watch.stop()
