"""The units of deploy/systemd, hardening and all, started by a real systemd: an edge with everything, and a gateway."""

import re
import subprocess
from collections.abc import Iterator

import pytest
import yaml
from bgplb_lab import configs

from tests.trust.systemd_machine import SystemdMachine
from tests.wiring.box import REPOSITORY, need

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

UNITS = REPOSITORY / "deploy" / "systemd"
ETCD = {"endpoints": ["http://10.99.0.1:2379"]}
ETCD_UNIT = """\
[Service]
Type=notify
User=etcd
StateDirectory=etcd
ExecStart=/usr/bin/etcd --data-dir=/var/lib/etcd --listen-client-urls=http://10.99.0.1:2379 \
--advertise-client-urls=http://10.99.0.1:2379
"""
POOL = {
    "apiVersion": "networking.example.net/v1alpha1",
    "kind": "EIPPool",
    "metadata": {"name": "web"},
    "spec": {"aggregate": "192.0.2.0/24", "addresses": ["192.0.2.0/26"], "gatewayRef": "edge-gateway"},
}


def drop_in() -> str:
    """What the orchestrator's unit says of a machine that has another role too."""
    text = (UNITS / "bgplb-orchestrator.service").read_text()
    return "\n".join(re.findall(r"^#   (.+)$", text, re.MULTILINE)) + "\n"


def wire(edge: SystemdMachine, gateway: SystemdMachine) -> None:
    pair = ("peer", "name", "eth0", "netns", str(gateway.pid))
    enter = ("nsenter", f"--target={edge.pid}", "--net")
    subprocess.run([*enter, "ip", "link", "add", "eth0", "type", "veth", *pair], check=True)
    for number, machine in enumerate((edge, gateway), 1):
        machine.run("ip", "address", "add", f"10.99.0.{number}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        machine.run("ip", "link", "set", "lo", "up")
        machine.run("ip", "route", "add", "default", "via", f"10.99.0.{3 - number}")


def enable(machine: SystemdMachine, *names: str) -> None:
    for name in names:
        machine.run("cp", f"/opt/bgplb/deploy/systemd/bgplb-{name}.service", "/etc/systemd/system/")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", *(f"bgplb-{name}" for name in names))


@pytest.fixture(scope="module")
def edge_and_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SystemdMachine, SystemdMachine]]:
    """Both with their units started, an etcd and an orchestrator on the edge."""
    need("adduser")
    folder = tmp_path_factory.mktemp("units")
    machines: list[SystemdMachine] = []
    try:
        machines += [SystemdMachine(folder, "edge-1")]
        machines += [SystemdMachine(folder, "gw-a")]
        edge, gateway = machines
        wire(edge, gateway)
        edge.write("/etc/systemd/system/test-etcd.service", ETCD_UNIT)
        edge.run("systemctl", "daemon-reload")
        edge.run("systemctl", "start", "test-etcd")
        group = {**configs.EDGE_GATEWAY, "spec": {**configs.EDGE_GATEWAY["spec"], "gateways": ["gw-a"]}}
        group["spec"]["edges"] = [{"name": "edge-1", "endpoint": "10.99.0.1", "asn": 64512}]
        edge.write("/etc/bgplb/manifests/all.yaml", yaml.safe_dump_all([group, POOL]))
        own = {"run_dir": "/run/bgplb-orchestrator", "state_dir": "/var/lib/bgplb-orchestrator"}
        decide = {"name": "orch-1", "etcd": ETCD, "manifests": "/etc/bgplb/manifests", "http": {"listen": None}, **own}
        edge.write("/etc/bgplb/orchestrator.yaml", yaml.safe_dump(decide))
        edge.write("/etc/systemd/system/bgplb-orchestrator.service.d/folders.conf", drop_in())
        edge.run("adduser", "--system", "--group", "bgplb")
        edge.write("/etc/bgplb/edge-agent.yaml", yaml.safe_dump({"name": "edge-1", "etcd": ETCD}))
        edge.write("/etc/bgplb/cli.yaml", yaml.safe_dump({"etcd": ETCD}))
        lan = {"address": "10.99.0.2", "targets": ["10.99.0.1"]}
        gateway.write(
            "/etc/bgplb/node-agent.yaml",
            yaml.safe_dump({"name": "gw-a", "etcd": ETCD, "lan": lan, "shutdown": "leave"}),
        )
        enable(edge, "orchestrator", "edge-agent", "bird")
        enable(gateway, "node-agent", "bird")
        yield edge, gateway
    finally:
        for machine in machines:
            machine.close()


def healthy(edge: SystemdMachine) -> bool:
    return "ActiveHealthy" in edge.ask("bgplb", "status").stdout


def test_under_their_units_the_daemons_bring_a_pool_up(edge_and_gateway: tuple[SystemdMachine, SystemdMachine]) -> None:
    """Registration, the tunnel, the session through it, the probe and the route: all that the hardening may forbid."""
    edge, gateway = edge_and_gateway
    edge.wait(lambda: healthy(edge), "a healthy pool", 60)
    for machine, units in ((edge, ("orchestrator", "edge-agent", "bird")), (gateway, ("node-agent", "bird"))):
        for unit in units:
            assert machine.property(f"bgplb-{unit}", "SubState") == "running"
            assert '"level": "error"' not in machine.journal(f"bgplb-{unit}")
    assert "bgplb-probe" in gateway.run("ip", "netns")
    owner = edge.run("stat", "-c", "%U", "/var/lib/bgplb", "/run/bgplb", "/run/bgplb-orchestrator").split()
    assert owner == ["root", "root", "bgplb"]


def test_all_killed_are_started_again_and_take_nothing_with_them(
    edge_and_gateway: tuple[SystemdMachine, SystemdMachine],
) -> None:
    edge, gateway = edge_and_gateway
    edge.wait(lambda: healthy(edge), "a healthy pool", 60)
    services = [(edge, "orchestrator"), (edge, "edge-agent"), (edge, "bird"), (gateway, "node-agent")]
    before = [machine.main_pid(f"bgplb-{unit}") for machine, unit in services]
    tunnels = [machine.run("pgrep", "-x", "wireguard-go") for machine in (edge, gateway)]
    for machine, unit in services:
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", f"bgplb-{unit}")
    for (machine, unit), pid in zip(services, before, strict=True):
        machine.wait(lambda m=machine, u=unit, p=pid: m.main_pid(f"bgplb-{u}") not in (0, p), f"the next {unit}")  # type: ignore[misc]
    assert "192.0.2.0/26" in edge.run("ip", "route"), "what was made stays"
    edge.wait(lambda: healthy(edge) and registered_since(edge, before[1]), "the pool after that", 60)
    assert [machine.run("pgrep", "-x", "wireguard-go") for machine in (edge, gateway)] == tunnels


def registered_since(edge: SystemdMachine, pid: int) -> bool:
    """Whether an edge agent after the one with this process id has registered."""
    now = edge.main_pid("bgplb-edge-agent")
    said = edge.run("journalctl", "-u", "bgplb-edge-agent", "-o", "cat", "--no-pager", f"_PID={now}")
    return now != pid and '"registered"' in said


def test_told_to_end_all_end_well(edge_and_gateway: tuple[SystemdMachine, SystemdMachine]) -> None:
    """The last test. What an edge has made stays when its agent goes."""
    edge, gateway = edge_and_gateway
    for machine, unit in ((edge, "edge-agent"), (gateway, "node-agent"), (edge, "orchestrator"), (edge, "bird")):
        machine.run("systemctl", "stop", f"bgplb-{unit}")
        assert machine.property(f"bgplb-{unit}", "Result") == "success", unit
    assert edge.run("pgrep", "-x", "wireguard-go")
    assert "192.0.2.0/26" in edge.run("ip", "route")
