"""A service by IPVS on the gateway, behind a pool's address: its answers find the tunnel by the source rule."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dataplane.kernel import converge
from dataplane.model import KernelState
from dataplane.namespace import entered
from dataplane.sysctl import IPVS_REROUTE
from tests.contract.kernel.conftest import inside, ip
from tests.contract.kernel.tunnel_path import FROM_TO, TunnelPath, tunnel_path, warm

SERVICE = {4: "192.0.2.10", 6: "2001:db8:2::10"}
PORT = 7
QUESTIONS = 10
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}


@dataclass
class Asking:
    """A client behind the edge that hears only what comes through the tunnel, and a pod that echoes."""

    client: socket.socket
    pod: socket.socket
    service: str

    async def answered(self) -> int:
        """How many of QUESTIONS datagrams to the service are answered; every one has to reach the pod."""
        heard, reached = set(), 0
        for number in range(QUESTIONS):
            self.client.sendto(bytes([number]), (self.service, PORT))
            for _ in range(50):
                await asyncio.sleep(0.01)
                reached += self._echo()
                if reached > number:
                    break
        assert reached == QUESTIONS, "IPVS has to bring the questions to the pod, or nothing is shown"
        for _ in range(50):
            await asyncio.sleep(0.01)
            heard |= self._hear()
        return len(heard)

    def _echo(self) -> int:
        try:
            data, source = self.pod.recvfrom(64)
        except BlockingIOError:
            return 0
        self.pod.sendto(data, source)
        return 1

    def _hear(self) -> set[bytes]:
        try:
            data, source = self.client.recvfrom(64)
        except BlockingIOError:
            return set()
        assert source[:2] == (self.service, PORT)
        return {data}


def ipvsadm(namespace: str, *arguments: str) -> None:
    done = inside(namespace, "ipvsadm", *arguments)
    if "Can't initialize ipvs" in done.stderr:
        pytest.skip("needs a kernel with IPVS (CONFIG_IP_VS)")
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def asking(path: TunnelPath, version: int) -> AsyncIterator[Asking]:
    """The service: its address on the gateway, IPVS with masquerading in front of a pod that answers by its gateway."""
    if shutil.which("ipvsadm") is None:
        pytest.skip("needs ipvsadm")
    service, pod = SERVICE[version], path.responder.inside_address(version)
    brackets = "[{}]:7" if version == 6 else "{}:7"
    ipvsadm(path.gateway, "-A", "-u", brackets.format(service), "-s", "rr")
    ipvsadm(path.gateway, "-a", "-u", brackets.format(service), "-r", brackets.format(pod), "-m")
    if version == 6:
        # IPVS sees an answer only once the pod's own address was routed somewhere, as the default route of IPv4 does.
        ip("-n", path.gateway, "-6", "route", "add", "default", "dev", "u0")
    ip("-n", path.gateway, "addr", "add", f"{service}/{32 if version == 4 else 128}", "dev", "lo")
    with entered(path.responder.name):
        server = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
        server.bind((pod, PORT))
    with entered(path.edge):
        client = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, path.edge_device.encode())
        client.bind((FROM_TO[version][0], 0))
    with server, client:
        for sock in (server, client):
            sock.setblocking(False)
        yield Asking(client, server, service)


@pytest.fixture
async def path(make_namespace: Callable[[], str], tmp_path: Path) -> AsyncIterator[TunnelPath]:
    async with tunnel_path(make_namespace, tmp_path) as made:
        yield made


def without_source_rule(wanted: KernelState) -> KernelState:
    return replace(wanted, rules=frozenset(rule for rule in wanted.rules if rule.source is None))


@pytest.mark.root
@pytest.mark.parametrize("version", [4, 6])
async def test_answers_of_ipvs_leave_by_the_source_rule_and_only_when_rerouted(path: TunnelPath, version: int) -> None:
    kernel, tables = path.gateway_kernel, [254, 10077]
    async with asking(path, version) as questions:
        await warm(path, version)
        kernel.sysctls.write(IPVS_REROUTE, "0")
        assert await questions.answered() == 0
        kernel.sysctls.write(IPVS_REROUTE, "1")
        assert await questions.answered() == QUESTIONS
        await converge(kernel, without_source_rule(path.gateway_state()), tables)
        assert await questions.answered() == 0
        await converge(kernel, path.gateway_state(), tables)
        assert await questions.answered() == QUESTIONS


@pytest.mark.root
@pytest.mark.parametrize("version", [4, 6])
async def test_answers_of_tracked_ipvs_connections_leave_by_the_tunnel_too(path: TunnelPath, version: int) -> None:
    """As kube-proxy sets IPVS up: requests are tracked, and so marked, and must not turn back into the tunnel."""
    async with asking(path, version) as questions:
        await warm(path, version)
        path.gateway_kernel.sysctls.write("net.ipv4.vs.conntrack", "1")
        path.gateway_kernel.sysctls.write(IPVS_REROUTE, "1")
        assert await questions.answered() == QUESTIONS
