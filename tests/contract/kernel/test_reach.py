"""LAN reach and raw echo against the real kernel, in both families."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from dataplane.icmp import EchoSocket
from dataplane.reach import Reach
from tests.contract.kernel.conftest import BoottimeClock, eventually, ip

NEAR, OTHER, ABSENT = "10.10.0.2", "fd10::2", "10.10.0.9"


@pytest.fixture
async def lan(make_namespace: Callable[[], str]) -> AsyncIterator[tuple[str, str]]:
    """Two machines on one wire: ours and the one that answers."""
    here, there = make_namespace(), make_namespace()
    ip("-n", here, "link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", there)
    for namespace, last in ((here, 1), (there, 2)):
        ip("-n", namespace, "addr", "add", f"10.10.0.{last}/24", "dev", "lan0")
        ip("-n", namespace, "addr", "add", f"fd10::{last}/64", "dev", "lan0", "nodad")
        ip("-n", namespace, "link", "set", "lan0", "up")
    yield here, there


async def test_who_answers_is_reached_and_who_stops_is_not(lan: tuple[str, str]) -> None:
    here, there = lan
    clock = BoottimeClock()
    reach = Reach(clock, interval_ms=20, device="lan0", namespace=here)
    reach.watch([NEAR, OTHER, ABSENT])
    task = asyncio.create_task(reach.run())
    try:
        await eventually(lambda: reach.reachable(1.0) == {NEAR, OTHER}, "both families")
        ip("-n", there, "link", "set", "lan0", "down")
        await eventually(lambda: reach.reachable(0.3) == frozenset(), "nobody any more")
        assert set(reach.last_answered()) == {NEAR, OTHER}
        reach.watch([ABSENT])
        assert reach.last_answered() == {}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_interface_that_comes_later_is_used(make_namespace: Callable[[], str]) -> None:
    here, there = make_namespace(), make_namespace()
    reach = Reach(BoottimeClock(), interval_ms=20, device="lan0", namespace=here)
    reach.watch([NEAR])
    task = asyncio.create_task(reach.run())
    try:
        await asyncio.sleep(0.1)
        for _ in range(2):
            ip("-n", here, "link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", there)
            for namespace, last in ((here, 1), (there, 2)):
                ip("-n", namespace, "addr", "add", f"10.10.0.{last}/24", "dev", "lan0")
                ip("-n", namespace, "link", "set", "lan0", "up")
            await eventually(lambda: bool(reach.reachable(0.2)), "an answer through the new interface")
            ip("-n", here, "link", "del", "lan0")
            await eventually(lambda: not reach.reachable(0.2), "silence")
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("address", [NEAR, OTHER])
async def test_answers_to_others_are_not_taken(lan: tuple[str, str], address: str) -> None:
    mine, yours = (EchoSocket(None, address, "lan0", lan[0]) for _ in range(2))
    got: dict[str, list[int]] = {"mine": [], "yours": []}
    try:
        yours.send(address, 7)
        mine.send(address, 8, packet_bytes=1400)
        mine.renew_identifier()
        mine.send(address, 1 << 40)

        def both() -> bool:
            mine.receive(lambda number, _: got["mine"].append(number))
            yours.receive(lambda number, _: got["yours"].append(number))
            return len(got["mine"]) == 2 and len(got["yours"]) == 1

        await eventually(both, "three answers")
        assert got == {"mine": [8, 1 << 40], "yours": [7]}
        assert mine.send(address, 9, packet_bytes=1501) != 0
    finally:
        mine.close()
        yours.close()
