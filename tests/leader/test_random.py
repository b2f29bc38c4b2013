"""Random orders, deaths and lost answers over the real loop: numbers and histories stay sound, and all ends well."""

import random
from typing import Any

import pytest

from fsm.invariants import epochs_have_one_owner, epochs_rise
from tests.leader.model import MAIL, WEB, Replica, World, group

GATEWAYS = ("gw-a", "gw-b", "gw-c")
POOLS = ("web", "mail")
EDGES = ("edge-1", "edge-2")


class Chaos:
    """One random history, from its seed alone."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(GATEWAYS, EDGES)
        for edge in self.world.edges.values():
            edge.autonomous = self.random.random() < 0.5
        self.edges = EDGES[: self.random.choice((1, 1, 2))]
        self.leaders = 0
        self.leader = self.elect()
        self.trace: list[str] = []

    def elect(self) -> Replica:
        """Somebody else leads; the old one still thinks that it does."""
        self.leaders += 1
        leader = self.world.leader(f"orchestrator-{self.leaders}")
        self.tell(leader)
        return leader

    def tell(self, leader: Replica) -> None:
        leader.offer(group(*GATEWAYS, edges=self.edges), WEB, MAIL)

    def join_or_part(self) -> None:
        """The second edge comes into the manifest, or is taken out of it."""
        self.edges = EDGES if len(self.edges) == 1 else EDGES[:1]
        self.tell(self.leader)

    def link(self, edge: str, gateway: str) -> None:
        """Between these two alone, as long as there are two edges."""
        if len(self.edges) > 1:
            self.world.edges[edge].cut_off ^= {gateway}

    def power_on(self, gateway: str) -> None:
        if not self.world.gateways[gateway].powered:
            self.world.power_on(gateway)

    async def step(self) -> None:
        gateway, pool, edge = (self.random.choice(of) for of in (GATEWAYS, POOLS, EDGES))
        deeds: dict[str, Any] = {
            "cut": lambda: self.world.power_cut(gateway),
            "on": lambda: self.power_on(gateway),
            "path": lambda: setattr(self.world.gateways[gateway], "path", self.random.random() < 0.7),
            "obedient": lambda: setattr(self.world.gateways[gateway], "obedient", self.random.random() < 0.8),
            "move": lambda: self.world.ask("move", pool, gateway),
            "drain": lambda: self.world.ask("drain", pool),
            "hold": lambda: self.world.ask(self.random.choice(["hold", "release"]), pool),
            "gateway": lambda: self.world.ask(self.random.choice(["gateway-drain", "gateway-undrain"]), gateway),
            "edge": lambda: setattr(self.world.edges[edge], "reachable", self.random.random() < 0.7),
            "edges": self.join_or_part,
            "link": lambda: self.link(edge, gateway),
            "applied": lambda: setattr(self.leader.store, "lose_answer", "applied"),
            "lost": lambda: setattr(self.leader.store, "lose_answer", "not applied"),
        }
        name = self.random.choice([*deeds, "elect", "deposed", "obey", "obey", "turn", "turn", "time", "time"])
        self.trace.append(f"{name} {gateway} {pool} {edge}")
        if name in deeds:
            deeds[name]()
        elif name == "elect":
            self.leader = self.elect()
        elif name == "deposed":
            old, self.leader = self.leader, self.elect()
            before = dict(self.world.server.items)
            await old.turn()
            assert dict(self.world.server.items) == before, f"S5: a deposed leader wrote: {self.trace}"
        elif name == "obey":
            self.world.obey()
        elif name == "turn":
            await self.leader.turn()
        else:
            self.world.clock.seconds += self.random.choice([0.1, 0.5, 1.5, 5.0])
        self.check()

    def check(self) -> None:
        world, where = self.world, f"after {self.trace}"
        histories = {name: world.history(name) for name in POOLS}
        assert not epochs_have_one_owner(histories), where
        for name, entries in histories.items():
            assert not epochs_rise(name, entries), where
            assert [e.seq for e in entries] == list(range(1, len(entries) + 1)), where
        assert world.epochs_given() == sorted(set(world.epochs_given())), where
        for edge in world.edges.values():
            assert edge.refusals == [], where
            for name, accepted in edge.fence.pools.items():
                assert edge.points_at[name] == accepted.command.owner, where

    async def calm(self) -> None:
        """Faults stop."""
        world = self.world
        self.leader.store.lose_answer = "no"
        for gateway in GATEWAYS:
            self.power_on(gateway)
            world.gateways[gateway].path = world.gateways[gateway].obedient = True
            world.ask("gateway-undrain", gateway)
        for edge in world.edges.values():
            edge.reachable, edge.cut_off = True, set()
        for pool in POOLS:
            world.ask("release", pool)
        await world.round(self.leader, ticks=120, step_s=0.5)


@pytest.mark.parametrize("seed", range(40))
async def test_a_random_history_ends_well(seed: int) -> None:
    chaos = Chaos(seed)
    await chaos.world.round(chaos.leader, ticks=4)
    for _ in range(60):
        await chaos.step()
    await chaos.calm()
    chaos.check()
    world = chaos.world
    for pool in POOLS:
        state, owner = world.state(pool)
        assert state == "ActiveHealthy", (seed, pool, chaos.trace, world.machine(pool))
        assert {world.edges[edge].points_at[pool] for edge in chaos.edges} == {owner}, (seed, chaos.trace)
        assert {g.name for g in world.gateways.values() if pool in g.announcing} == {owner}, (seed, chaos.trace)
    requests = [world.answer(key.rpartition("/")[2]) for key in world.present("requests")]
    assert all(request.answer for request in requests), "every request was answered"
