"""`onStoreLoss: withdraw`: a gateway that loses the store gives its sessions up in time, whatever its agent does.

Its packets pass all the while; so the leader moves its pools gently, and nothing is lost.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bgplb_lab import control, faults, topology
from bgplb_lab.errors import MissingPrerequisite
from bgplb_lab.probes import RouteWatch
from bgplb_lab.scenario import EDGE, OWNER, READY_TIMEOUT_S, settled_at_owner
from bgplb_lab.world import World

from tests.lab.under_fault import DETECTION_MS, OTHER, moved, suffer, went

pytestmark = pytest.mark.chaos

TTL_MS = 8000
"""Long enough for an agent to be started anew on a busy machine while what it lent before is still there."""
DEVICE = "bgplb-e0"


def rewrite(path: Path, **sections: dict[str, Any]) -> None:
    """Put sections into a YAML file, as an operator would, in one step."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document = {**document, **sections}
    draft = path.with_name(".draft")
    draft.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    draft.replace(path)


def lent_s(lab: World, gateway: str) -> int | None:
    """Seconds that the gateway's end of the tunnel is still valid; None while it has none, or has it for good."""
    links = json.loads(lab.inside(gateway, "ip", "-4", "-j", "address", "show", "dev", DEVICE))
    infos = [info for link in links for info in link.get("addr_info", []) if info["prefixlen"] == 31]
    return next((i["valid_life_time"] for i in infos if i["valid_life_time"] <= TTL_MS / 1000), None)


@pytest.fixture(scope="module")
def withdrawing_lab(whole_lab: World) -> World:
    """The lab with `onStoreLoss: withdraw` and leases that are long enough for it."""
    settled_at_owner(whole_lab, "a test begins")
    for gateway in topology.GATEWAYS:
        lease = {"ttl_ms": TTL_MS}
        rewrite(whole_lab.path_in(gateway, "/etc/bgplb/node-agent.yaml"), lease=lease)
        whole_lab.command(gateway, {"cmd": "kill", "name": "node-agent", "hold": False})
    manifest = whole_lab.disk_folder / "manifests" / "edge-gateway.yaml"
    spec = yaml.safe_load(manifest.read_text(encoding="utf-8"))["spec"]
    rewrite(manifest, spec={**spec, "failover": {**spec.get("failover", {}), "onStoreLoss": "withdraw"}})
    for gateway in topology.GATEWAYS:
        what = f"{gateway} to hold its end of the tunnel on loan"
        control.wait_for(what, lambda gateway=gateway: lent_s(whole_lab, gateway), READY_TIMEOUT_S)  # type: ignore[misc]
    return whole_lab


@pytest.fixture
def healthy(withdrawing_lab: World) -> Iterator[dict[str, Any]]:
    yield settled_at_owner(withdrawing_lab, "a test begins")
    faults.heal_all(withdrawing_lab, print)


@pytest.mark.parametrize(
    ("name", "value"),
    [("partition", "etcd"), ("agent-freeze", None), ("agent-kill", None)],
    ids=["cut off from the store", "its agent frozen", "its agent dead"],
)
def test_it_stops_announcing_before_its_lease_can_end_and_nothing_is_lost(
    withdrawing_lab: World, healthy: dict[str, Any], name: str, value: str | None
) -> None:
    seen = suffer(withdrawing_lab, healthy, name, OWNER, value, until=lambda: moved(withdrawing_lab), ends_at=OTHER)
    assert seen.floor_ms is not None and seen.floor_ms < TTL_MS, "what it announces is gone at the edge"
    assert (seen.states[0], seen.states[-1]) == ("Draining", "ActiveHealthy")
    assert seen.lost == 0
    assert lent_s(withdrawing_lab, OWNER) is not None, "lent again"


def unmoved(lab: World, before: dict[str, Any], watch: RouteWatch, since_ns: int) -> None:
    """Assert that since then its session was there all the while, and nothing moved."""
    time.sleep(TTL_MS / 1000 + 1)  # by then all that was lent before has gone
    assert lent_s(lab, OWNER) is not None, "lent again"
    assert watch.first_after(since_ns, "del", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX) is None
    assert went(lab, before) == ()


def test_an_agent_that_is_started_anew_in_time_costs_no_session(
    withdrawing_lab: World, healthy: dict[str, Any]
) -> None:
    """It has no lease at first, and leaves alone what its former life lent."""
    watch = RouteWatch(withdrawing_lab, EDGE)
    began_ns = time.monotonic_ns()
    withdrawing_lab.command(OWNER, {"cmd": "kill", "name": "node-agent", "hold": False})
    unmoved(withdrawing_lab, healthy, watch, began_ns)
    watch.stop()


@pytest.mark.parametrize("way", ["+1h", "-1h"])
def test_a_clock_that_jumps_costs_no_session(withdrawing_lab: World, healthy: dict[str, Any], way: str) -> None:
    """A lease is counted by a clock that never jumps, and so are the kernel's addresses."""
    watch = RouteWatch(withdrawing_lab, EDGE)
    began_ns = time.monotonic_ns()
    try:
        faults.strike(withdrawing_lab, "clock-jump", OWNER, way)
    except MissingPrerequisite as missing:
        pytest.skip(f"needs {missing}")
    unmoved(withdrawing_lab, healthy, watch, began_ns)
    watch.stop()


def test_without_etcd_at_all_packets_pass_on(withdrawing_lab: World, healthy: dict[str, Any]) -> None:
    """All gateways give their sessions up. The edge, which sees that their probes pass, leaves its routes alone."""
    seen = suffer(withdrawing_lab, healthy, "etcd-stop", "all", last_s=TTL_MS / 1000 + 4, ends_at=None)
    assert seen.floor_ms is not None and seen.floor_ms < TTL_MS + DETECTION_MS
    assert seen.during.lost == 0
    control.wait_for(f"{OWNER} to have it on loan again", lambda: lent_s(withdrawing_lab, OWNER), READY_TIMEOUT_S)
    settled_at_owner(withdrawing_lab, "a test ends")
