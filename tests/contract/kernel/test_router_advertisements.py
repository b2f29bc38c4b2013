"""A machine that learnt its default route from a router goes on to have it when it begins to forward IPv6."""

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane.namespace import entered
from dataplane.sysctl import IPV6_FORWARDING, Sysctls, SysctlStore
from tests.contract.kernel.conftest import eventually, inside, ip, need

ACCEPT_RA = "net.ipv6.conf.eth0.accept_ra"
ADVERTISEMENT = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
"""RFC 4861 section 4.2: a default router for 1,800 s; the kernel fills in the checksum."""
ALL_NODES = "ff02::1"


class Neighbours:
    """A machine, and a router on the same link."""

    def __init__(self, machine: str, router: str) -> None:
        self.machine, self.router = machine, router
        ip("-n", machine, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", router)
        for namespace in (machine, router):
            inside(namespace, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0")
            inside(namespace, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=1")
            ip("-n", namespace, "link", "set", "eth0", "up")

    def default_route(self) -> str:
        """The machine's IPv6 default route, empty without one."""
        return ip("-n", self.machine, "-6", "route", "show", "default").strip()

    def advertise(self) -> bool:
        """One advertisement; whether the machine has a default route by now."""
        with entered(self.router):
            sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
            index = socket.if_nametoindex("eth0")
        with sock:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
            try:
                sock.sendto(ADVERTISEMENT, (ALL_NODES, 0, 0, index))
            except OSError:
                return False  # the router's own address is not there yet
        return bool(self.default_route())


@pytest.fixture
def neighbours(make_namespace: Callable[[], str]) -> Iterator[Neighbours]:
    need("ip")
    yield Neighbours(make_namespace(), make_namespace())


async def test_forwarding_keeps_the_route_that_a_router_gave(neighbours: Neighbours, tmp_path: Path) -> None:
    await eventually(neighbours.advertise, "a default route from the router")
    learnt = neighbours.default_route()
    sysctls = Sysctls(neighbours.machine, SysctlStore(tmp_path / "sysctls.json"))
    assert sysctls.write(IPV6_FORWARDING, "1")
    assert sysctls.read([ACCEPT_RA, IPV6_FORWARDING]) == {ACCEPT_RA: "2", IPV6_FORWARDING: "1"}
    assert neighbours.default_route().split(" expires")[0] == learnt.split(" expires")[0]
    sysctls.restore()
    assert sysctls.read([ACCEPT_RA, IPV6_FORWARDING]) == {ACCEPT_RA: "1", IPV6_FORWARDING: "0"}


async def test_without_that_care_the_kernel_drops_it(neighbours: Neighbours) -> None:
    """What the test above would not see if the kernel did otherwise."""
    await eventually(neighbours.advertise, "a default route from the router")
    inside(neighbours.machine, "sysctl", "-qw", f"{IPV6_FORWARDING}=1")
    assert neighbours.default_route() == ""
