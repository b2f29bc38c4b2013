"""Addresses that are lent: the kernel takes them away by itself, and leaves alone what does not hang on them."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from dataplane.model import Address
from dataplane.netlink import Netlink
from orchestrator.agents.permit import MARGIN_S
from tests.contract.kernel.conftest import ip, need, wire

LENT = Address("tunnel0", "10.77.0.1/31")
LASTING = Address("tunnel0", "10.77.0.254/32")


@dataclass
class Machine:
    """A namespace with an interface, an address that stays on it, and a table of answers."""

    namespace: str
    netlink: Netlink

    def addresses(self) -> dict[str, int]:
        """Seconds that each address is still valid."""
        found = json.loads(ip("-n", self.namespace, "-4", "-j", "address", "show", "dev", "tunnel0"))
        infos = [info for link in found for info in link.get("addr_info", [])]
        return {f"{info['local']}/{info['prefixlen']}": info["valid_life_time"] for info in infos}

    def answers(self) -> str:
        return ip("-n", self.namespace, "route", "show", "table", "10077")


@pytest.fixture
async def machine(namespace: str) -> AsyncIterator[Machine]:
    need("ip")
    wire(namespace, "tunnel0", "far0")
    ip("-n", namespace, "address", "add", LASTING.cidr, "dev", "tunnel0")
    ip("-n", namespace, "route", "add", "default", "dev", "tunnel0", "table", "10077")
    made = Machine(namespace, Netlink(namespace))
    yield made
    await made.netlink.close()


async def gone(machine: Machine, within_s: float) -> float:
    """The seconds until the address is gone."""
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(within_s):
        while LENT.cidr in machine.addresses():
            await asyncio.sleep(0.02)
    return asyncio.get_running_loop().time() - began


@pytest.mark.root
async def test_the_kernel_takes_a_lent_address_away_and_nothing_else(machine: Machine) -> None:
    await machine.netlink.lend(LENT, 2)
    assert 1 <= machine.addresses()[LENT.cidr] <= 2
    assert await gone(machine, 10.0) >= 1.0
    assert list(machine.addresses()) == [LASTING.cidr]
    assert "default dev tunnel0" in machine.answers(), "with its last address the interface would have lost this"


@pytest.mark.root
async def test_the_kernel_is_late_by_less_than_the_margin(machine: Machine) -> None:
    """It looks for addresses that are over once a second at most, and each new one anywhere has it look."""
    began = asyncio.get_running_loop().time()
    await machine.netlink.lend(LENT, 2)
    await asyncio.sleep(1.85)
    ip("-n", machine.namespace, "address", "add", "10.78.0.1/32", "dev", "far0")
    await gone(machine, 10.0)
    late_s = asyncio.get_running_loop().time() - began - 2
    assert late_s < MARGIN_S


@pytest.mark.root
async def test_lent_again_it_stays_and_can_become_its_own_for_good(machine: Machine) -> None:
    for _ in range(4):
        await machine.netlink.lend(LENT, 2)
        await asyncio.sleep(0.8)
        assert LENT.cidr in machine.addresses(), "3.2 s by now, in pieces of 2 s"
    await machine.netlink.lend(LENT, None)
    assert machine.addresses()[LENT.cidr] == 2**32 - 1, "for good"


@pytest.mark.root
async def test_an_interface_that_is_not_there_is_no_error(machine: Machine) -> None:
    await machine.netlink.lend(Address("tunnel9", "10.77.0.3/31"), 2)
