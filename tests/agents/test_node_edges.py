"""A gateway with two edges: a tunnel, a table, a mark and a session for each, and answers that keep to their edge."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents import edge_state, revive
from orchestrator.agents import node as node_module
from orchestrator.agents.node_state import with_room
from orchestrator.config.edge_agent import EdgeAgentConfig
from tests.agents.fakes import EDGES, base, eventually
from tests.agents.node_world import NodeWorld, node_pool

WEB = ("192.0.2.0/26",)
BOTH = base("node", "gw-a", WEB, edges=EDGES)
DEVICES = {"bgplb-e0": "key-edge", "bgplb-e1": "key-edge-2"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeWorld:
    monkeypatch.setattr(node_module, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(node_module, "REVIVE_EVERY_S", 0.02)
    monkeypatch.setattr(revive, "SILENT_S", 0.1)
    return NodeWorld(tmp_path)


@asynccontextmanager
async def heard_on(world: NodeWorld, devices: Collection[str]) -> AsyncIterator[None]:
    """For the time of the block something comes in on these devices, whatever becomes of the others."""

    async def speak() -> None:
        while True:
            for device in devices:
                world.wireguard.hear(device, DEVICES[device])
            await asyncio.sleep(0.01)

    speaking = asyncio.create_task(speak())
    try:
        yield
    finally:
        speaking.cancel()
        with suppress(asyncio.CancelledError):
            await speaking


@asynccontextmanager
async def two_edges(world: NodeWorld) -> AsyncIterator[None]:
    async with world.running():
        world.tell(("web", node_pool(True, 1)), base=BOTH)
        await eventually(lambda: (r := world.seen()) is not None and r.ready, f"ready; lacking {world.failed()}")
        yield


def rules(world: NodeWorld) -> set[tuple[int, str | None, int | None, int]]:
    return {(rule.priority, rule.source, rule.fwmark, rule.table) for rule in world.kernel.state.rules}


async def test_each_edge_has_a_tunnel_a_table_a_mark_and_a_session(world: NodeWorld) -> None:
    async with two_edges(world):
        state = world.kernel.state
        addresses = {(a.device, a.cidr) for a in state.addresses if a.device in DEVICES}
        assert addresses == {("bgplb-e0", "10.77.0.1/31"), ("bgplb-e1", "10.77.0.3/31")}
        tables = {(r.prefix, r.table, r.device) for r in state.routes}
        assert tables == {("0.0.0.0/0", 10077, "bgplb-e0"), ("0.0.0.0/0", 10078, "bgplb-e1")}
        for device, key in DEVICES.items():
            assert world.wireguard.allowed(device, key) == {"0.0.0.0/0"}
        neighbors = [line.split() for line in world.applier.text.splitlines() if "neighbor" in line]
        assert [(words[1], words[-1]) for words in neighbors] == [("10.77.0.0", "64512;"), ("10.77.0.2", "64514;")]


@pytest.mark.parametrize(
    ("edge", "own", "gateway"),
    [
        ("edge-1", {"10.77.1.0/31", "fd77:0:0:1::/127", "10.77.255.0/32", "fd77:0:0:ff::1/128"}, "10.77.1.1/32"),
        ("edge-2", {"10.77.1.2/31", "fd77:0:0:1::2/127", "10.77.255.1/32", "fd77:0:0:ff::2/128"}, "10.77.1.3/32"),
    ],
)
def test_each_edge_has_the_other_end_and_a_source_of_probes_of_its_own(edge: str, own: set[str], gateway: str) -> None:
    told = base("edge", edge, (*WEB, "2001:db8:2::/64"), edges=EDGES)
    config = EdgeAgentConfig.model_validate({"name": edge, "etcd": {"endpoints": ["http://127.0.0.1:1"]}})
    state = edge_state.kernel_state(config, edge_state.EdgeState("parking", told), {})
    assert {address.cidr for address in state.addresses if address.device == "bgplb-g1"} == own
    assert gateway in edge_state.own_prefixes(told.tunnels[1])
    assert [tunnel.port for tunnel in told.tunnels] == [51820, 51821], "the same at each edge: it is another machine"


async def test_an_answer_follows_its_connections_mark_before_its_source(world: NodeWorld) -> None:
    """The first rule that matches wins: one by source would send everything of the pool to the first edge."""
    async with two_edges(world):
        assert rules(world) == {
            (10077, None, 0x0100_0000, 10077),
            (10077, None, 0x0200_0000, 10078),
            (10078, WEB[0], None, 10077),
        }
        assert marks(world.kernel.ruleset) == {"bgplb-e0": 0x0100_0000, "bgplb-e1": 0x0200_0000}


def marks(ruleset: str | None) -> dict[str, int]:
    """What connections through each tunnel are marked with."""
    found: dict[str, int] = {}
    for item in json.loads(ruleset or "")["nftables"]:
        expressions: list[dict[str, Any]] = item.get("rule", {}).get("expr", [])
        for expression in expressions:
            mangle = expression.get("mangle", {})
            if mangle.get("key") == {"ct": {"key": "mark"}}:
                found[expressions[0]["match"]["right"]] = mangle["value"]["|"][1]
    return found


async def test_answers_without_a_connection_take_the_first_edge_that_is_heard(world: NodeWorld) -> None:
    async with two_edges(world):
        async with heard_on(world, ["bgplb-e1"]):
            await eventually(lambda: (10078, WEB[0], None, 10078) in rules(world), "it left the silent edge")
            assert (10078, WEB[0], None, 10077) not in rules(world)
            assert (10077, None, 0x0100_0000, 10077) in rules(world), "what came from the silent edge keeps to it"
            assert (report := world.seen()) is not None and report.ready, (
                "one edge's silence is not the gateway's fault"
            )
            assert world.announced() == {"web"}
        async with heard_on(world, DEVICES):
            await eventually(lambda: (10078, WEB[0], None, 10077) in rules(world), "back at the first")


async def test_with_no_edge_heard_the_first_has_them(world: NodeWorld) -> None:
    async with two_edges(world):
        await eventually(lambda: ("edges heard", {"silent": ["edge-1", "edge-2"], "of": 2}) in world.said, "all silent")
        await asyncio.sleep(0.1)
        assert (10078, WEB[0], None, 10077) in rules(world)


async def test_the_router_id_stays_when_an_edge_goes_or_is_not_known_yet(world: NodeWorld) -> None:
    async with two_edges(world):
        first = world.applier.text
        world.tell(base=base("node", "gw-a", WEB, edges=EDGES[1:]))
        await eventually(lambda: world.applier.text != first, "told BIRD")
        both, one = (
            [line for line in t.splitlines() if line.startswith("router id")] for t in (first, world.applier.text)
        )
        assert both == one == ["router id 10.77.0.1;"]
        await eventually(lambda: not [r for r in rules(world) if r[2] == 0x0100_0000], "the first edge's rule is gone")
        assert (10078, WEB[0], None, 10078) in rules(world)


async def test_more_edges_than_marks_make_it_unready_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent lives, the edges that fit are served."""
    monkeypatch.setattr(node_module, "CHECK_EVERY_S", 0.05)
    narrow = NodeWorld(tmp_path, marks={"mask": 0xF000_0000})
    told = base("node", "gw-a", WEB, edges=EDGES)
    crowded = replace(told, tunnels=(told.tunnels[0], replace(told.tunnels[1], edge_index=15)))
    async with narrow.running():
        narrow.tell(("web", node_pool(True, 1)), base=crowded)
        await eventually(lambda: "marks" in narrow.failed(), "noticed")
        assert "edge-2" in narrow.failed()["marks"] and "0xf0000000" in narrow.failed()["marks"]
        assert {r.device for r in narrow.kernel.state.routes} == {"bgplb-e0"}
    assert with_room(NodeWorld(tmp_path).config, crowded) == (crowded, ""), "a wider mask has room"
