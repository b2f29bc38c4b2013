"""A whole lab on a kernel that has WireGuard: every agent takes it by itself, and the pool fails over. For the VM only.

Under emulation all is late by a factor that nobody knows: BFD and leases get time, and times are told but not judged.
"""

import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from bgplb_lab import control, faults, observe, probes, topology
from bgplb_lab.checks import PLANNED, UNPLANNED
from bgplb_lab.credentials import Issuer
from bgplb_lab.fault_services import processes_in
from bgplb_lab.probes import Prober, RouteWatch
from bgplb_lab.scenario import EDGE, other_than
from bgplb_lab.world import World

from tests.vm.inside import RESULTS

PATIENCE_S = 240.0
PROBE_EVERY_US = 20_000
LEASE = {"ttl_ms": 30_000, "renew_every_ms": 5_000, "heartbeat_every_ms": 1_000, "stale_after_ms": 15_000}
AGENTS = (EDGE, *topology.GATEWAYS)


class SlowWorld(World):
    """The lab with the profile `wan` (BFD 3 x 300 ms) and long leases."""

    def write_manifests(self) -> None:
        super().write_manifests()
        path = self.disk_folder / "manifests" / "edge-gateway.yaml"
        group = yaml.safe_load(path.read_text())
        group["spec"]["failover"] = {"profile": "wan"}
        path.write_text(yaml.safe_dump(group))

    def make_disk(self, name: str, issuer: Issuer) -> None:
        super().make_disk(name, issuer)
        for path in (self.disk_folder / name / "etc/bgplb").glob("*.yaml"):
            if path.stem in ("edge-agent", "node-agent", "orchestrator"):
                path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "lease": LEASE}))


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    world = SlowWorld(f"v{os.getpid()}", print)
    try:
        world.up()
        yield world
    finally:
        if world.exists():
            keep_logs(world)
            world.down()


def keep_logs(world: World) -> None:
    """Put what the services wrote where it outlives the virtual machine."""
    for name in world.machines:
        if world.log_folder(name).exists():
            shutil.copytree(world.log_folder(name), RESULTS / "logs" / name, dirs_exist_ok=True)


@pytest.fixture
def before(lab: World) -> dict[str, Any]:
    """The pool settled somewhere, with a ready standby."""
    return observe.wait_settled(lab, PATIENCE_S)


def tunnels(lab: World, machine: str) -> list[dict[str, Any]]:
    """Our tunnel interfaces that the kernel's own WireGuard made."""
    links = json.loads(lab.inside(machine, "ip", "-d", "-j", "link", "show", "type", "wireguard") or "[]")
    return [link for link in links if str(link.get("ifalias", "")).startswith("bgplb:")]


def moved(lab: World, before: dict[str, Any], target: str, *ways: tuple[str, ...]) -> None:
    """The pool went from its owner to the target by one move, in one of these ways, and the edge believes it alone."""
    after = observe.wait_settled(lab, PATIENCE_S, target, with_standby=False)
    assert observe.states_since(after, observe.last_seq(before)) in ways
    assert after["epoch"] > before["epoch"]
    assert observe.steering(lab).routes == (target,)
    # After a planned move the former owner's packets are let through a little longer.
    control.wait_for(f"the edge to believe {target} alone", lambda: believed(lab) == (target,) or None, PATIENCE_S)


def believed(lab: World) -> tuple[str, ...]:
    """The gateways whose packets from the pool's addresses the edge takes."""
    return observe.steering(lab).allowed


def test_every_agent_takes_the_kernels_wireguard(lab: World, before: dict[str, Any]) -> None:
    for machine in AGENTS:
        assert len(tunnels(lab, machine)) == (2 if machine == EDGE else 1)
        assert processes_in(lab.pid(machine), "wireguard-go") == []


def test_a_power_cut_moves_the_pool_once_and_its_return_moves_nothing(
    lab: World, before: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probes, "INTERVAL_US", PROBE_EVERY_US)
    owner, target = before["owner"], other_than(before["owner"])
    probed = f"{probe_address(lab, owner)}/32"
    prober, watch = Prober(lab), RouteWatch(lab, EDGE)
    prober.wait_until(100)
    cut_ns = faults.strike(lab, "power-cut", owner)
    moved(lab, before, target, UNPLANNED)
    prober.wait_until(prober.due_now() + 100)
    run = prober.stop()
    assert run.arrived_ns[-50] is not None, "the service answers through the new owner"
    session_ns = watch.first_after(cut_ns, "del", topology.SIGNAL_TABLE, probed)
    steered_ns = watch.first_after(cut_ns, "new", 254, topology.POOL_PREFIX)
    assert session_ns is not None and steered_ns is not None
    floor_ms, steered_ms = (session_ns - cut_ns) / 1e6, (steered_ns - cut_ns) / 1e6
    with capsys.disabled():
        print(f"\nsession down after {floor_ms:.0f} ms; steered x {steered_ms / floor_ms:.3f}, ", end="")
        print(f"outage x {run.counts.outage_ms / floor_ms:.3f} of that, in this machine's time")
    after = observe.pool(lab)
    faults.heal(lab, "power-cut", owner)
    returned = observe.wait_settled(lab, PATIENCE_S, target)
    assert observe.states_since(returned, observe.last_seq(after)) == ()
    assert observe.left_on(lab, owner, target) == ()


def probe_address(lab: World, gateway: str) -> str:
    """The address that the edge's probes of this gateway go to: a host route into its tunnel."""
    device = next(link["ifname"] for link in tunnels(lab, EDGE) if link["ifalias"] == f"bgplb:{gateway}")
    routes = json.loads(lab.inside(EDGE, "ip", "-4", "-j", "route", "show", "dev", device, "proto", "77"))
    return next(str(route["dst"]) for route in routes if "/" not in route["dst"])


def test_a_tunnel_that_is_taken_away_moves_the_pool_and_is_made_again(lab: World, before: dict[str, Any]) -> None:
    owner, target = before["owner"], other_than(before["owner"])
    index = tunnels(lab, owner)[0]["ifindex"]
    faults.strike(lab, "wireguard-down", owner)
    # The agent makes it again in a fraction of a second. Whether a probe in between counts as failing is a matter of
    # its interval: a session that fell while probes pass is a flap, and the way out of it is a planned move.
    moved(lab, before, target, UNPLANNED, PLANNED)
    observe.wait_settled(lab, PATIENCE_S, target)
    (again,) = tunnels(lab, owner)
    assert again["ifindex"] != index
    assert observe.left_on(lab, owner, target) == ()
