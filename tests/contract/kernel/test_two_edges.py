"""A gateway of two edges on a real kernel, as its agent makes it: each answer leaves by the edge that was asked."""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dataplane.kernel import LinuxKernel, converge
from dataplane.model import KernelState
from dataplane.namespace import entered
from dataplane.probe_namespace import ProbeNamespace
from orchestrator.agents import node_state as project
from orchestrator.agents.node_state import MARK_RULE, SOURCE_RULE, NodeState
from orchestrator.config.node_agent import NodeAgentConfig
from tests.agents.fakes import EDGES, base
from tests.agents.node_world import node_pool
from tests.contract.kernel.conftest import inside, ip, need

POOL, SERVICE, CLIENT, PORT = "192.0.2.0/26", "192.0.2.10", "198.51.100.10", 7
TABLES = [254, 10077, 10078]


@dataclass
class Gateway:
    """The gateway's namespace with a wire to each edge's, named as tunnels are; the client is behind both edges."""

    namespace: str
    edges: list[str]
    kernel: LinuxKernel
    config: NodeAgentConfig

    def wanted(self, silent: tuple[str, ...] = ()) -> KernelState:
        """What the agent would make but for the tunnels, which are plain wires here."""
        told = base("node", "gw-a", (POOL,), edges=EDGES)
        state = NodeState(told, {"web": node_pool(True, 1, (POOL,))})
        whole = project.kernel_state(self.config, state, ProbeNamespace(), False, silent)
        rules = project.nft_table(self.config, told, ProbeNamespace())
        return replace(whole, links=frozenset(), addresses=frozenset(), nft=rules)

    async def make(self, wanted: KernelState) -> None:
        await converge(self.kernel, wanted, TABLES)

    @contextmanager
    def asked(self) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
        """The service on the gateway, and the client as it looks through each edge: the same address and port."""
        with entered(self.namespace):
            service = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            service.bind((SERVICE, PORT))
        clients = []
        for edge in self.edges:
            with entered(edge):
                client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                client.bind((CLIENT, 4000))
                clients.append(client)
        for each in (service, *clients):
            each.settimeout(0.3)
        try:
            yield service, clients
        finally:
            for each in (service, *clients):
                each.close()


def answered_at(service: socket.socket, clients: list[socket.socket], asking: int) -> list[int]:
    """Edges at which the answer to a question through edge number `asking` arrives."""
    clients[asking].sendto(b"?", (SERVICE, PORT))
    data, client = service.recvfrom(64)
    service.sendto(data, client)
    found = []
    for number, each in enumerate(clients):
        try:
            each.recv(64)
            found.append(number)
        except TimeoutError:
            pass
    return found


@pytest.fixture
async def gateway(make_namespace: Callable[[], str], tmp_path: Path) -> AsyncIterator[Gateway]:
    need("nft", "ip")
    namespace, edges = make_namespace(), [make_namespace(), make_namespace()]
    for number, edge in enumerate(edges):
        device = f"bgplb-e{number}"
        ip("-n", namespace, "link", "add", device, "type", "veth", "peer", "name", "g0", "netns", edge)
        ip("-n", namespace, "addr", "add", f"10.77.0.{2 * number + 1}/31", "dev", device)
        ip("-n", edge, "addr", "add", f"10.77.0.{2 * number}/31", "dev", "g0")
        ip("-n", edge, "addr", "add", f"{CLIENT}/32", "dev", "lo")
        for where, name in ((namespace, device), (edge, "g0")):
            ip("-n", where, "link", "set", name, "up")
            inside(where, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", f"net.ipv4.conf.{name}.rp_filter=0")
        ip("-n", edge, "route", "add", POOL, "via", f"10.77.0.{2 * number + 1}")
    ip("-n", namespace, "addr", "add", f"{SERVICE}/32", "dev", "lo")
    # Its way out to the world, without which the loose filter of the tunnels would drop every question.
    ip("-n", namespace, "link", "add", "under0", "type", "bridge")
    ip("-n", namespace, "link", "set", "under0", "up")
    ip("-n", namespace, "route", "add", "default", "dev", "under0")
    config = NodeAgentConfig.model_validate(
        {"name": "gw-a", "etcd": {"endpoints": ["http://127.0.0.1:1"]}, "lan": {"address": "10.10.0.11"}}
    )
    kernel = LinuxKernel.of(namespace)
    try:
        yield Gateway(namespace, edges, kernel, config)
    finally:
        await kernel.close()


async def test_an_answer_leaves_by_the_edge_that_was_asked_also_when_a_connection_changes_edges(
    gateway: Gateway,
) -> None:
    await gateway.make(gateway.wanted())
    with gateway.asked() as (service, clients):
        assert [answered_at(service, clients, asking) for asking in (0, 1, 1, 0)] == [[0], [1], [1], [0]]


async def test_by_source_first_all_would_leave_by_the_first_edge(gateway: Gateway) -> None:
    """Why the rule by mark comes first."""
    wanted = gateway.wanted()
    turned = {MARK_RULE: SOURCE_RULE, SOURCE_RULE: MARK_RULE}
    rules = frozenset(replace(rule, priority=turned[rule.priority]) for rule in wanted.rules)
    await gateway.make(replace(wanted, rules=rules))
    with gateway.asked() as (service, clients):
        assert answered_at(service, clients, 1) == [0]


async def test_what_no_edge_asked_for_leaves_by_the_first_edge_that_is_heard(gateway: Gateway) -> None:
    for silent, edge in ((), 0), (("edge-1",), 1), (("edge-1", "edge-2"), 0):
        await gateway.make(gateway.wanted(silent))
        route = inside(gateway.namespace, "ip", "route", "get", CLIENT, "from", SERVICE).stdout
        assert f"dev bgplb-e{edge}" in route, (silent, route)
