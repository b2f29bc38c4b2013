"""Tunnels that travel over IPv6: the same failover, drain and reboot, with both families inside."""

import os
from collections.abc import Iterator

import pytest
from bgplb_lab import control, faults, observe
from bgplb_lab.counting import Counts
from bgplb_lab.probes import Prober, RouteWatch
from bgplb_lab.scenario import EDGE, cut_and_return, drain_back, settled_at_owner
from bgplb_lab.topology import Family
from bgplb_lab.world import World

from tests.lab.standing import standing
from tests.lab.under_fault import QUIET_PROBES

pytestmark = pytest.mark.chaos

BOOT_S = 20.0


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """A lab whose tunnels travel over IPv6."""
    world = World(f"out6{os.getpid()}", print)
    world.outside = Family.IPV6
    with standing(world):
        yield world


def endpoints(lab: World) -> list[str]:
    """Where the edge last heard its gateways from."""
    devices = observe.gateway_devices(lab, EDGE)
    dumps = [lab.inside(EDGE, "wg", "show", device, "endpoints") for device in devices]
    return [line.split("\t")[1] for dump in dumps for line in dump.splitlines() if "(none)" not in line]


def heard_over_ipv6(lab: World) -> bool:
    """Whether the edge has heard both gateways, over IPv6."""
    found = endpoints(lab)
    return len(found) == 2 and all(endpoint.startswith("[2001:db8:b") for endpoint in found)


def clean(counts: Counts) -> bool:
    """Whether probes were sent and all answered."""
    return counts.sent > 0 and counts.lost == 0


def test_a_power_cut_and_a_drain(lab: World) -> None:
    before = settled_at_owner(lab, "a test begins")
    assert heard_over_ipv6(lab), endpoints(lab)
    watch = RouteWatch(lab, EDGE)
    cut = cut_and_return(lab, watch, before, lambda: None)
    watch.stop()
    assert cut.floor_ms is not None
    # The probes' sender is as late as this machine makes it; what remains is compared with the floor of the same cut.
    assert cut.outage.outage_ms - cut.outage.gap_in_outage_ms <= 1.3 * cut.floor_ms
    assert clean(cut.recovery), cut.recovery
    drain = drain_back(lab, 4_000, QUIET_PROBES)
    assert clean(drain.counts), drain.counts


def test_a_rebooted_edge_finds_its_gateways(lab: World) -> None:
    settled_at_owner(lab, "a test begins")
    faults.strike(lab, "edge-reboot", EDGE)

    def answered() -> bool | None:
        prober = Prober(lab)
        prober.wait_until(QUIET_PROBES)
        return True if clean(prober.stop().counts) else None

    control.wait_for("both families to be answered again", answered, BOOT_S)
    assert heard_over_ipv6(lab), endpoints(lab)
