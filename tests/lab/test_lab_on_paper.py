"""A gateway that looks well and carries nothing, and one that is told to go while it carries everything."""

from typing import Any

import pytest
from bgplb_lab import control, observe
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.fault_services import stopped
from bgplb_lab.probes import Prober
from bgplb_lab.scenario import OWNER
from bgplb_lab.world import World

from tests.lab.under_fault import LONG_S, OTHER, QUIET_PROBES, moved, went

pytestmark = pytest.mark.chaos

TABLE = ("table", "inet", "drill")
HOOK = ("forward", "{ type filter hook forward priority 0; policy drop; }")


def test_a_gateway_that_forwards_nothing_is_left(whole_lab: World, healthy: dict[str, Any]) -> None:
    """Tunnel, BFD, BGP, store and heartbeat are fine: nothing but the probe through its forwarding path tells."""
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    whole_lab.inside(OWNER, "nft", "add", *TABLE)
    whole_lab.inside(OWNER, "nft", "add", "chain", *TABLE[1:], *HOOK)
    control.wait_for("the pool to leave", lambda: moved(whole_lab), LONG_S, 0.1)
    assert went(whole_lab, healthy) == UNPLANNED
    whole_lab.inside(OWNER, "nft", "delete", *TABLE)
    healed = prober.due_now()
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    run = prober.stop()
    assert run.counts.lost > 0, "it did carry nothing"
    assert run.cut(healed, len(run.sent_ns)).counts.lost == 0
    assert went(whole_lab, healthy) == UNPLANNED


def test_a_gateway_that_is_told_to_end_hands_over_and_loses_nothing(whole_lab: World, healthy: dict[str, Any]) -> None:
    prober = Prober(whole_lab)
    prober.wait_until(QUIET_PROBES)
    whole_lab.command(OWNER, {"cmd": "stop", "name": "node-agent"})
    control.wait_for("its agent to end", lambda: stopped(whole_lab, OWNER, "node-agent"), LONG_S, 0.05)
    assert observe.situation(whole_lab, OTHER, with_standby=False)[0] is not None, "it had handed over by then"
    whole_lab.command(OWNER, {"cmd": "start", "name": "node-agent"})
    observe.wait_settled(whole_lab, LONG_S, OTHER)
    prober.wait_until(prober.due_now() + QUIET_PROBES)
    assert prober.stop().counts.lost == 0
    assert went(whole_lab, healthy).count("ActiveHealthy") == 1
