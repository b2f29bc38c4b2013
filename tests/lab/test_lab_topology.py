"""The lab's description: names the kernel takes, addresses that are used once, files that BIRD accepts."""

import shutil
import socket
import struct
import subprocess
import threading
from collections import Counter
from ipaddress import ip_interface
from pathlib import Path

import pytest
from bgplb_lab import configs, floor, topology
from bgplb_lab.topology import Machine, Programs
from bgplb_lab.world import port_name
from pydantic import BaseModel

from orchestrator.config.cli import CliConfig
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.config.files import parse
from orchestrator.config.folder import read_now
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.config.orchestrator import OrchestratorConfig

PROGRAMS = Programs("/opt/python", "/opt/bgplb", "/opt/scripts")
MACHINES = topology.machines(PROGRAMS, edges=2)
EVERY = list(MACHINES.values())
BRIDGES = topology.bridges(EVERY)


def test_interface_names_fit_the_kernel() -> None:
    names = [port_name(machine.name, port) for machine in EVERY for port in machine.ports]
    names += [port.name for machine in EVERY for port in machine.ports] + list(BRIDGES)
    assert [name for name in names if len(name) > 15] == []


def test_every_bridge_joins_machines() -> None:
    joined = Counter(port.bridge for machine in EVERY for port in machine.ports)
    assert set(joined) == set(BRIDGES) and min(joined.values()) >= 2


def test_a_lab_of_one_edge_is_a_part_of_the_other() -> None:
    alone = topology.machines(PROGRAMS)
    assert set(MACHINES) - set(alone) == {"edge-2"}
    for name, machine in alone.items():
        assert set(machine.ports) <= set(MACHINES[name].ports), name
        assert configs.files(name) == configs.files(name, edges=2) or name == "transit"


def test_no_address_is_given_twice_and_each_bridge_is_one_network() -> None:
    addresses = [(port.bridge, ip_interface(text)) for m in EVERY for port in m.ports for text in port.addresses]
    assert [ip for ip, times in Counter(address.ip for _, address in addresses).items() if times > 1] == []
    for bridge in BRIDGES:
        networks = {address.network for at, address in addresses if at == bridge}
        assert len({network.version for network in networks}) == len(networks), bridge


@pytest.mark.parametrize("machine", [machine for machine in EVERY if machine.name in topology.GATEWAYS])
def test_a_power_cut_takes_the_underlay_first(machine: Machine) -> None:
    assert machine.ports[0].bridge.startswith("nat-")


@pytest.mark.parametrize("auth", list(topology.Auth))
def test_the_daemons_accept_their_configs(auth: topology.Auth) -> None:
    models: dict[str, type[BaseModel]] = {
        "edge-agent.yaml": EdgeAgentConfig,
        "node-agent.yaml": NodeAgentConfig,
        "orchestrator.yaml": OrchestratorConfig,
        "cli.yaml": CliConfig,
        "root.yaml": CliConfig,
    }
    seen = set()
    for machine in MACHINES:
        for path, text in configs.files(machine, auth).items():
            if path.endswith(".yaml"):
                seen.add(Path(path).name)
                config: BaseModel = parse(text.encode(), models[Path(path).name], path)
                assert getattr(config, "name", None) in (machine, None)
    assert seen == set(models)


@pytest.mark.parametrize("edges", [1, 2])
def test_the_manifests_are_good_intent(edges: int, tmp_path: Path) -> None:
    for name, text in configs.manifests(edges=edges).items():
        (tmp_path / name).write_text(text)
    intent = read_now(tmp_path)
    assert list(intent.problems) == []
    assert [edge.name for edge in intent.edge_gateways[0].edges] == list(topology.EDGES[:edges])
    assert [pool.name for pool in intent.pools] == [topology.POOL]


@pytest.mark.parametrize(
    "text",
    [
        *(configs.transit_bird(topology.SITES[:n]) for n in (1, 2)),
        *(configs.edge_bird(site) for site in topology.SITES),
    ],
    ids=["transit", "transit of two", *topology.EDGES],
)
def test_bird_accepts_the_operators_config(text: str, tmp_path: Path) -> None:
    if shutil.which("bird") is None:
        pytest.skip("needs bird")
    config = tmp_path / "bird.conf"
    config.write_text(text)
    done = subprocess.run(["bird", "-p", "-c", str(config)], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 0, done.stderr


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)


def route_message(kind: int, prefix: str, table: int) -> bytes:
    address, bits = prefix.split("/")
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, int(bits), 0, 0, 252, 12, 0, 1, 0)
    body += attribute(15, struct.pack("=I", table)) + attribute(1, socket.inet_aton(address))
    body += attribute(4, struct.pack("=I", 9))
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_the_route_listener_reads_tables_above_255_and_skips_other_messages() -> None:
    data = route_message(25, topology.FLOOR_PREFIX, 10177) + route_message(20, "10.0.0.0/8", 254)
    data += route_message(24, "192.0.2.0/26", 254)
    assert list(floor.route_changes(data)) == [
        {"event": "del", "table": 10177, "prefix": topology.FLOOR_PREFIX, "device": 9},
        {"event": "new", "table": 254, "prefix": "192.0.2.0/26", "device": 9},
    ]


def test_the_route_listener_stamps_a_whole_burst_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing a thousand changes takes time that the move, whose end is measured, would miss."""
    monkeypatch.setattr(floor, "QUIET_S", 0.3)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.send(b"first")
        later = threading.Timer(0.1, theirs.send, [b"second"])
        later.start()
        (first_ns, first), (second_ns, second) = floor.burst(ours)
        later.join()
        assert (first, second) == (b"first", b"second")
        assert first_ns < second_ns
        monkeypatch.setattr(floor, "LONGEST_NS", 0)
        theirs.send(b"third")
        theirs.send(b"fourth")
        assert len(floor.burst(ours)) == 1, "what never ends is written all the same"


def test_a_torn_message_ends_the_reading() -> None:
    assert list(floor.route_changes(bytes(40))) == []
