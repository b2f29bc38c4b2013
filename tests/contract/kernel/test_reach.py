"""LAN reach and raw echo against the real kernel, in both families."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dataplane.icmp import EchoSocket
from dataplane.reach import Reach
from orchestrator.clock import BootClock
from tests.contract.kernel.conftest import eventually, ip

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


@asynccontextmanager
async def asking(reach: Reach) -> AsyncIterator[list[frozenset[str]]]:
    """It runs meanwhile; what it told, one after the other."""
    told: list[frozenset[str]] = []
    reach.on_change = lambda: told.append(reach.reached())
    reach.start()
    try:
        yield told
    finally:
        reach.close()


async def test_who_answers_is_reached_and_who_stops_is_not(lan: tuple[str, str]) -> None:
    here, there = lan
    reach = Reach(BootClock(), device="lan0", namespace=here)
    reach.watch([NEAR, OTHER, ABSENT], 20)
    async with asking(reach) as told:
        await eventually(lambda: reach.reached() == {NEAR, OTHER}, "both families")
        ip("-n", there, "addr", "del", "fd10::2/64", "dev", "lan0")
        await eventually(lambda: reach.reached() == {NEAR}, "one of them")
        ip("-n", there, "link", "set", "lan0", "down")
        await eventually(lambda: reach.reached() == frozenset(), "nobody any more")
        await asyncio.sleep(0.1)
        assert told[-2:] == [{NEAR}, frozenset()], "told once, and only what changed"
        ip("-n", there, "link", "set", "lan0", "up")
        await eventually(lambda: reach.reached() == {NEAR}, "it is back")
        reach.watch([ABSENT], 20)
        assert reach.reached() == frozenset()


def silence(namespace: str) -> None:
    """From now on nothing that comes in by lan0 is heard, and no carrier drops."""
    text = "table netdev t {\n chain c {\n type filter hook ingress device lan0 priority 0;\n drop\n }\n}\n"
    subprocess.run(["ip", "netns", "exec", namespace, "nft", "-f", "-"], input=text, text=True, check=True)


async def test_a_lan_that_falls_silent_is_told_after_three_rounds(lan: tuple[str, str]) -> None:
    """Packets that vanish while every carrier is up: one that was lost, or two, say nothing."""
    here, there = lan
    clock = BootClock()
    reach = Reach(clock, device="lan0", namespace=here)
    reach.watch([NEAR, ABSENT], 200)
    async with asking(reach) as told:
        await eventually(lambda: told == [{NEAR}], "it is there")
        began_s = clock.now()
        silence(there)
        await eventually(lambda: told[-1] == frozenset(), "it is gone")
        assert clock.now() - began_s > 2 * 0.2


async def test_one_that_falls_silent_is_told_while_others_answer(lan: tuple[str, str]) -> None:
    """Every round is answered by somebody then, before its answer is due."""
    here, there = lan
    reach = Reach(BootClock(), device="lan0", namespace=here)
    reach.watch([NEAR, OTHER], 20)
    async with asking(reach) as told:
        await eventually(lambda: told and told[-1] == {NEAR, OTHER}, "both are there")
        ip("-n", there, "addr", "del", "fd10::2/64", "dev", "lan0")
        await eventually(lambda: told[-1] == {NEAR}, "one of them is gone")


async def test_before_anybody_could_answer_it_says_nothing(lan: tuple[str, str]) -> None:
    for addresses in ([NEAR], [ABSENT]):
        reach = Reach(BootClock(), device="lan0", namespace=lan[0])
        reach.watch(addresses, 20)
        assert not reach.judged()
        async with asking(reach) as told:
            await eventually(reach.judged, "a judgement")
            await eventually(lambda: bool(told), "a word about it")
            assert told == [{NEAR} & set(addresses)]


async def test_standing_still_itself_it_blames_nobody(lan: tuple[str, str]) -> None:
    reach = Reach(BootClock(), device="lan0", namespace=lan[0])
    reach.watch([NEAR], 20)
    async with asking(reach) as told:
        await eventually(lambda: reach.reached() == {NEAR}, "it is there")
        for _ in range(5):
            time.sleep(0.3)  # noqa: ASYNC251 - the whole process stands still
            assert reach.reached() == {NEAR}
            await asyncio.sleep(0.03)
        assert told == [{NEAR}]


async def test_many_take_turns(lan: tuple[str, str]) -> None:
    here, there = lan
    every = [f"10.10.0.{last}" for last in range(20, 40)]
    for address in every:
        ip("-n", there, "addr", "add", f"{address}/24", "dev", "lan0")
    reach = Reach(BootClock(), device="lan0", namespace=here)
    reach.watch(every, 20)
    async with asking(reach):
        await eventually(lambda: reach.reached() == set(every), "all of them")


async def test_an_interface_that_comes_later_is_used(make_namespace: Callable[[], str]) -> None:
    here, there = make_namespace(), make_namespace()
    reach = Reach(BootClock(), device="lan0", namespace=here)
    reach.watch([NEAR], 20)
    async with asking(reach):
        await asyncio.sleep(0.1)
        for _ in range(2):
            ip("-n", here, "link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", there)
            for namespace, last in ((here, 1), (there, 2)):
                ip("-n", namespace, "addr", "add", f"10.10.0.{last}/24", "dev", "lan0")
                ip("-n", namespace, "link", "set", "lan0", "up")
            await eventually(lambda: bool(reach.reached()), "an answer through the new interface")
            ip("-n", here, "link", "del", "lan0")
            await eventually(lambda: not reach.reached(), "silence")


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
