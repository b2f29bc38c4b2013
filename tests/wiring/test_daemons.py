"""The real commands as real processes: what ends them, with which code and in how many words, and what does not."""

import json
import signal
import subprocess
from dataclasses import replace

import pytest

from dataplane.keys import parking_key
from fsm.fence import Accepted, FenceState
from fsm.records import AgentBase, EdgePool, NodePool
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.node_state import NodeState
from orchestrator.agents.statefile import save
from tests.agents.fakes import WEB, base
from tests.wiring.box import BGPLB, REPOSITORY, Box, Daemon, need

pytestmark = [pytest.mark.root]

PROMPTLY_S = 8.0
"""Two of the store's time limits, and a machine that is busy."""


def refused(daemon: Daemon, code: int, *words: str) -> None:
    """It ended by itself with this code and one line that says why."""
    assert daemon.end() == code, daemon.log.read_text()
    ended = daemon.events("ended")
    assert len(ended) == 1, daemon.log.read_text()
    for word in words:
        assert word in ended[0]["error"]


def remembered(box: Box, role: str) -> None:
    """A state directory as an agent leaves it that was told of its tunnels and of one pool."""
    state_dir = box.folder / f"state-{role}"
    if role == "edge-agent":
        fence = FenceState({"web": Accepted(EdgePool(WEB, "gw-a", 3), 7)}, {WEB[0]: 3})
        save(state_dir / "edge.json", EdgeState(parking_key(), with_keys(base("edge", "edge-1", WEB)), fence))
    else:
        pools = {"web": NodePool(WEB, True, 3)}
        save(state_dir / "node.json", NodeState(with_keys(base("node", "gw-a", WEB)), pools))


def with_keys(told: AgentBase) -> AgentBase:
    """The base with keys that WireGuard takes."""
    return replace(told, tunnels=tuple(replace(t, public_key=parking_key()) for t in told.tunnels))


@pytest.mark.parametrize("role", ["orchestrator", "edge-agent", "node-agent"])
def test_without_etcd_it_says_so_once_waits_and_ends_promptly(box: Box, role: str) -> None:
    daemon = box.bgplb(role, box.config(role))
    box.wait(lambda: daemon.events("the store does not answer"), "the sentence")
    code, took_s = daemon.terminate()
    assert code == 0, daemon.log.read_text()
    assert took_s < PROMPTLY_S
    assert len(daemon.events("the store does not answer")) == 1


@pytest.mark.parametrize("role", ["orchestrator", "edge-agent", "node-agent"])
def test_a_second_process_on_the_same_state_directory(box: Box, role: str) -> None:
    config = box.config(role)
    box.bgplb(role, config)
    refused(box.bgplb(role, config), 6, "instance", "another process")


@pytest.mark.parametrize("role", ["edge-agent", "node-agent"])
def test_a_key_file_that_others_may_read(box: Box, role: str) -> None:
    key = box.folder / "wireguard.key"
    key.write_text("A" * 43 + "=\n")
    key.chmod(0o644)
    config = box.config(role, wireguard={"private_key_file": str(key)})
    refused(box.bgplb(role, config), 3, str(key), "0644", "chmod 600")


@pytest.mark.parametrize("role", ["edge-agent", "node-agent"])
def test_a_state_file_that_is_damaged(box: Box, role: str) -> None:
    state_dir = box.folder / f"state-{role}"
    state_dir.mkdir()
    (state_dir / f"{role.split('-')[0]}.json").write_text("{half")
    refused(box.bgplb(role, box.config(role)), 3, str(state_dir), "move the file away")


@pytest.mark.parametrize("command", [("edge-agent",), ("node-agent",), ("edge-agent", "cleanup")])
def test_an_agent_that_is_not_root(command: tuple[str, ...]) -> None:
    need("unshare")
    # In a user namespace: whoever we are outside, inside we are somebody else, and our Python may be anywhere.
    other = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*other, "true"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("needs user namespaces")
    done = subprocess.run(
        [*other, *BGPLB, *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 8, done.stderr
    assert "needs root" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_certificate_that_is_not_there(box: Box) -> None:
    etcd = {"endpoints": ["https://127.0.0.1:2379"], "ca": "/nowhere/ca.pem"}
    refused(
        box.start(*BGPLB, "orchestrator", "--config", str(box.config("orchestrator", etcd=etcd))), 3, "/nowhere/ca.pem"
    )


def test_an_http_port_that_is_taken(box: Box) -> None:
    box.bgplb("orchestrator", box.config("orchestrator", http={"listen": "127.0.0.1:9177"}))
    other = box.config(
        "orchestrator", http={"listen": "127.0.0.1:9177"}, state_dir=str(box.folder / "b"), run_dir="/run/other"
    )
    refused(box.start(*BGPLB, "orchestrator", "--config", str(other)), 6, "127.0.0.1:9177")


@pytest.mark.parametrize("role", ["edge-agent", "node-agent"])
def test_a_second_agent_on_one_network(box: Box, role: str) -> None:
    need("wireguard-go")
    remembered(box, "edge-agent")
    first = box.bgplb("edge-agent", box.config("edge-agent"))
    box.wait(lambda: {"bgplb-g0", "bgplb-g1"} <= set(box.links()), "the first one's tunnels")
    config = box.config(role, name="other", state_dir=str(box.folder / "b"), run_dir="/run/b")
    refused(box.bgplb(role, config), 6, "another agent", "stop that one")
    assert box.run(*BGPLB, role, "--config", str(config), "cleanup", check=False).returncode == 6
    assert first.process.poll() is None
    assert {"bgplb-g0", "bgplb-g1"} <= set(box.links()), "what is another's is no leftover"
    first.terminate()
    box.bgplb(role, config).terminate()


def test_a_second_agent_with_a_live_name(box: Box, other: Box) -> None:
    need("wireguard-go")
    box.wire(other, "10.99.0.1/24", "10.99.0.2/24")
    box.etcd("10.99.0.1")
    remembered(box, "edge-agent")
    first = box.bgplb("edge-agent", box.config("edge-agent"))
    box.wait(lambda: "bgplb-g0" in box.links(), "the first one's tunnels")
    key = "/bgplb/v1/agents/edge/edge-agent"
    box.wait(lambda: key in box.stored(), "the registration")
    before = json.loads(box.stored()[key])["instance"]
    etcd = {"endpoints": ["http://10.99.0.1:2379"]}
    config = box.config("edge-agent", etcd=etcd, state_dir=str(box.folder / "b"), run_dir="/run/b")
    refused(other.bgplb("edge-agent", config), 6, "edge edge-agent: another installation", before)
    assert first.process.poll() is None
    assert json.loads(box.stored()[key])["instance"] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_leader_hands_over_when_it_is_told_to_end(box: Box, number: int) -> None:
    box.etcd()
    daemon = box.bgplb("orchestrator", box.config("orchestrator", manifests=str(box.folder)))
    box.wait(lambda: "/bgplb/v1/leader" in box.stored(), "leadership")
    box.wait(lambda: daemon.events("leadership began"), "its first turn")
    code, took_s = daemon.terminate(number=number)
    assert (code, took_s < PROMPTLY_S) == (0, True), daemon.log.read_text()
    left = [key for key in box.stored() if "/leader" in key or "/agents/" in key or "/heartbeats/" in key]
    assert left == []


def test_an_edge_agent_works_from_disk_and_leaves_everything_in_place(box: Box) -> None:
    need("wireguard-go")
    remembered(box, "edge-agent")
    daemon = box.bgplb("edge-agent", box.config("edge-agent"))
    box.wait(
        lambda: WEB[0] in box.run("ip", "route", "show", "proto", "77").stdout, "the route: " + daemon.log.read_text()
    )
    code, took_s = daemon.terminate()
    assert (code, took_s < PROMPTLY_S) == (0, True), daemon.log.read_text()
    assert "dev bgplb-g0" in box.run("ip", "route", "show", WEB[0]).stdout
    assert {"bgplb-g0", "bgplb-g1"} <= set(box.links())


def test_wireguards_port_is_taken(box: Box) -> None:
    need("wireguard-go")
    remembered(box, "edge-agent")
    hold = "import socket, time; s = socket.socket(2, 2); s.bind(('', 51821)); time.sleep(600)"
    box.start("python3", "-c", hold, name="holder")
    daemon = box.bgplb("edge-agent", box.config("edge-agent"))
    box.wait(lambda: [line for line in daemon.events("problem") if "51821" in line["what"]], "the problem")
    box.wait(lambda: WEB[0] in box.run("ip", "route", "show", "proto", "77").stdout, "gw-a is served all the same")
    assert daemon.process.poll() is None
    assert len([line for line in daemon.events("problem") if "51821" in line["what"]]) == 1


def test_an_interface_of_our_name_that_is_not_ours(box: Box) -> None:
    need("wireguard-go")
    remembered(box, "edge-agent")
    box.run("ip", "link", "add", "bgplb-g1", "type", "veth", "peer", "name", "other")
    daemon = box.bgplb("edge-agent", box.config("edge-agent"))
    box.wait(lambda: [line for line in daemon.events("problem") if "not ours" in line["what"]], "the problem")
    box.wait(lambda: WEB[0] in box.run("ip", "route", "show", "proto", "77").stdout, "gw-a is served all the same")
    assert "bgplb-g1" in box.links()


def test_a_node_agent_without_bird_ends_promptly_and_at_once_when_told_twice(box: Box) -> None:
    need("wireguard-go")
    remembered(box, "node-agent")
    box.run("ip", "link", "add", "lan0", "type", "veth", "peer", "name", "lan1")
    box.run("ip", "address", "add", "10.10.0.11/24", "dev", "lan0")
    daemon = box.bgplb("node-agent", box.config("node-agent"))
    box.wait(lambda: "bgplb-e0" in box.links(), "the tunnel: " + daemon.log.read_text())
    box.wait(lambda: [line for line in daemon.events("problem") if line["where"] == "bird"], "BIRD is missed")
    daemon.process.send_signal(signal.SIGTERM)
    code, took_s = daemon.terminate()
    assert (code, took_s < PROMPTLY_S) == (0, True), daemon.log.read_text()
    assert "bgplb-e0" in box.links()


@pytest.mark.parametrize("role", ["orchestrator", "edge-agent", "node-agent"])
def test_it_outlives_etcd_and_ends_promptly_without_it(box: Box, role: str) -> None:
    etcd = box.etcd()
    fields = {"manifests": str(box.folder)} if role == "orchestrator" else {}
    daemon = box.bgplb(role, box.config(role, **fields))
    box.wait(lambda: any("/agents/" in key for key in box.stored()), "the registration")
    if role == "orchestrator":
        box.wait(lambda: daemon.events("leadership began"), "its first turn")
    etcd.process.kill()
    etcd.process.wait(10)
    said = "leadership ended" if role == "orchestrator" else "the store does not answer"
    box.wait(lambda: daemon.events(said), f"{said}: {daemon.log.read_text()}", 20)
    assert daemon.process.poll() is None
    code, took_s = daemon.terminate()
    assert (code, took_s < PROMPTLY_S) == (0, True), daemon.log.read_text()
    assert len(daemon.events(said)) == 1
