"""docs/running.md on machines with systemd: what it promises of the installation, and of each unit, comes true."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.trust.installation import EDGE, GATEWAYS, ORCHESTRATORS, Installation, Probes
from tests.wiring.box import need

pytestmark = [pytest.mark.root, pytest.mark.chaos, pytest.mark.timeout(300)]

UNITS = {"orch-1": ["orchestrator"], EDGE: ["bird", "edge-agent"], "gw-a": ["bird", "node-agent"]}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The page typed once; each test leaves it healthy."""
    need("openssl", "adduser", "nft", "sysctl")
    made = Installation(tmp_path_factory.mktemp("installation"))
    try:
        made.install()
        yield made
    finally:
        made.close()


@pytest.fixture
def owner(installed: Installation) -> str:
    """The pool is well; who has it."""
    installed.wait(installed.settled, "a healthy pool with a ready standby", 60)
    return str(installed.pool()["owner"])


def other(gateway: str) -> str:
    return next(name for name in GATEWAYS if name != gateway)


@contextmanager
def no_packet_lost(installed: Installation) -> Iterator[None]:
    probes = Probes(installed)
    try:
        yield
    finally:
        lost, sent = probes.lost()
    assert sent > 100
    assert lost == 0, f"{lost} of {sent} lost"


def test_every_service_runs_under_its_unit(installed: Installation, owner: str) -> None:
    for name, units in UNITS.items():
        for unit in units:
            service = f"bgplb-{unit}"
            assert installed[name].property(service, "SubState") == "running"
            # The page says so of BIRD: it comes too early, and again, until the agent has written what it reads.
            assert unit == "bird" or installed[name].property(service, "NRestarts") == "0"
        text = "".join(installed[name].journal(f"bgplb-{unit}") for unit in units if unit != "bird")
        assert "Traceback" not in text
        assert '"level": "error"' not in text


def test_a_drain_loses_nothing(installed: Installation, owner: str) -> None:
    with no_packet_lost(installed):
        installed["orch-1"].run("bgplb", "gateway", "drain", owner, "--reason", "first test")
        installed.wait(lambda: installed.pool()["owner"] == other(owner), "the drain")
    installed["orch-1"].run("bgplb", "gateway", "undrain", owner, "--reason", "done")


def test_a_plug_that_is_pulled_moves_the_pool_and_its_return_moves_nothing(installed: Installation, owner: str) -> None:
    epoch = installed.pool()["epoch"]
    installed.unplug(owner)
    installed.wait(lambda: installed.pool()["owner"] == other(owner), "the move")
    assert installed.pool()["epoch"] > epoch
    assert "FailureDetected" in installed["orch-1"].run("bgplb", "fsm", "dump", "--history", "5")
    installed[owner].type(
        "ip link set eth0 up; ip route add default via $(ip -4 -o addr show eth0 | grep -o '10.0.[12]').1"
    )
    installed.wait(lambda: installed.settled(other(owner)), "the return")


def test_a_plug_that_is_pulled_while_nobody_decides(installed: Installation, owner: str) -> None:
    for name in ORCHESTRATORS:
        installed[name].run("systemctl", "stop", "bgplb-orchestrator")
    installed.unplug(owner)
    installed[EDGE].wait(lambda: installed.steered(other(owner)), "the edge's own move")
    for name in ORCHESTRATORS:
        installed[name].run("systemctl", "start", "bgplb-orchestrator")
    installed.wait(lambda: installed.pool().get("owner") == other(owner), "the adoption")
    assert "PlanExecuted" in installed["orch-1"].run("bgplb", "fsm", "dump", "--history", "20")
    installed[owner].type(
        "ip link set eth0 up; ip route add default via $(ip -4 -o addr show eth0 | grep -o '10.0.[12]').1"
    )
    installed.wait(lambda: installed.settled(other(owner)), "the return")


@pytest.mark.parametrize(
    "how", [("restart",), ("kill", "--kill-whom=main", "--signal=KILL")], ids=["restarted", "killed"]
)
def test_an_edge_agent_that_ends_leaves_everything_in_place(
    installed: Installation, owner: str, how: tuple[str, ...]
) -> None:
    edge = installed[EDGE]
    tunnels = edge.run("pgrep", "-x", "wireguard-go").split()
    before = edge.main_pid("bgplb-edge-agent")
    with no_packet_lost(installed):
        edge.run("systemctl", *how, "bgplb-edge-agent")
        edge.wait(lambda: edge.main_pid("bgplb-edge-agent") not in (0, before), "the next edge agent")
        installed.wait(lambda: installed.settled(owner), "everything as it was")
    assert edge.run("pgrep", "-x", "wireguard-go").split() == tunnels
    assert len(tunnels) == len(GATEWAYS)


def test_a_node_agent_that_is_stopped_hands_over_first(installed: Installation, owner: str) -> None:
    with no_packet_lost(installed):
        installed[owner].run("systemctl", "stop", "bgplb-node-agent")
        installed.wait(lambda: installed.pool()["owner"] == other(owner), "the move")
    assert installed[owner].property("bgplb-node-agent", "Result") == "success"
    installed[owner].run("systemctl", "start", "bgplb-node-agent")
    installed.wait(lambda: installed.settled(other(owner)), "the return")


def test_a_node_agent_that_is_killed_costs_nothing(installed: Installation, owner: str) -> None:
    node = installed[owner]
    before = node.main_pid("bgplb-node-agent")
    with no_packet_lost(installed):
        node.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "bgplb-node-agent")
        node.wait(lambda: node.main_pid("bgplb-node-agent") not in (0, before), "the next node agent")
        installed.wait(lambda: installed.settled(owner), "everything as it was")


def test_an_orchestrator_that_is_stopped_hands_over(installed: Installation, owner: str) -> None:
    first = installed.leader()
    assert first is not None
    with no_packet_lost(installed):
        installed[first].run("systemctl", "stop", "bgplb-orchestrator")
        installed.wait(
            lambda: (installed.status().get("leader") or {}).get("name") not in (None, first), "another leader", 5
        )
    assert installed[first].property("bgplb-orchestrator", "Result") == "success"
    installed[first].run("systemctl", "start", "bgplb-orchestrator")


def test_a_machine_that_is_taken_out_has_nothing_left(installed: Installation, owner: str) -> None:
    """The last test: the page's own words for the end."""
    node = installed[other(owner)]
    node.run("systemctl", "disable", "--now", "bgplb-node-agent", "bgplb-bird")
    node.run("bgplb", "node-agent", "cleanup")
    assert "bgplb" not in node.run("ip", "-d", "link") + node.run("nft", "list", "ruleset") + node.run("ip", "netns")
    assert "10077" not in node.run("ip", "rule")
    assert node.ask("pgrep", "-x", "wireguard-go").stdout == ""
