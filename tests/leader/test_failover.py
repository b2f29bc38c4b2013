"""The real loop on a fake store, agents of paper: a pool's whole life, and each point at which a leader may die."""

from dataclasses import replace

import pytest

from fsm.invariants import epochs_have_one_owner, epochs_rise
from fsm.records import AgentBase
from orchestrator.store.records import encode
from tests.contract.store.fake import FakeStore
from tests.leader.model import KEYS, MAIL, WEB, World, group, other, settled


def states(world: World, name: str = "web") -> list[str]:
    return [entry.to_state for entry in world.history(name)]


async def test_first_owner_is_found_and_told_to_everybody() -> None:
    world, _ = await settled()
    state, owner = world.state()
    assert state == "ActiveHealthy"
    assert owner is not None
    assert world.edges["edge-1"].points_at == {"web": owner}
    assert world.gateways[owner].announcing == {"web"}
    assert world.gateways[other(owner)].announcing == set()
    assert world.machine().standby == other(owner)


async def test_failover_return_drain_and_second_failure() -> None:
    world, leader = await settled()
    first = world.machine().owner
    assert first is not None
    second = other(first)
    before = len(world.history())
    world.power_cut(first)
    await world.round(leader, ticks=2)
    assert world.state() == ("ActiveHealthy", second)
    assert states(world)[before:] == [
        "FailureDetected",
        "Withdrawn",
        "PeerUpdated",
        "StandbyAdvertising",
        "ActiveHealthy",
    ]
    world.power_on(first)
    await world.round(leader, ticks=16)
    assert world.state() == ("ActiveHealthy", second), "sticky: no failback"
    assert world.machine().standby == first
    request = world.ask("drain", "web", reason="maintenance")
    await world.round(leader, ticks=2)
    assert world.answer(request).accepted
    assert world.state() == ("ActiveHealthy", first)
    world.power_cut(first)
    await world.round(leader, ticks=2)
    assert world.state() == ("ActiveHealthy", second)
    assert world.epochs_given() == sorted(set(world.epochs_given())), "the counter only rises"
    entries = world.history()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert not epochs_rise("web", entries)
    assert not epochs_have_one_owner({"web": entries})


async def test_two_pools_fail_over_in_one_transaction() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    for name in ("web", "mail"):
        world.ask("move", name, "gw-a")
    await world.round(leader, ticks=2)
    assert {world.machine(n).owner for n in ("web", "mail")} == {"gw-a"}
    world.power_cut("gw-a")
    world.obey()
    before = world.server.revision
    await leader.turn()
    moved = [world.server.items[KEYS.machine("pool", n)].mod_revision for n in ("web", "mail")]
    assert moved == [before + 1, before + 1], "one transaction for both"
    epochs = {world.machine(n).epoch for n in ("web", "mail")}
    assert len(epochs) == 2, "but a number each"
    await world.round(leader, ticks=2)
    assert world.state("web") == world.state("mail") == ("ActiveHealthy", "gw-b")


async def test_nobody_left_keeps_the_old_mapping_until_a_candidate_comes() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    assert owner is not None
    for name in ("gw-a", "gw-b"):
        world.power_cut(name)
    await world.round(leader, ticks=4)
    assert world.state() == ("Stranded", owner)
    assert world.edges["edge-1"].points_at["web"] == owner, "nothing is withdrawn without a target"
    assert "NoStandby" in [c.type for c in world.machine().conditions]
    world.power_on(other(owner))
    await world.round(leader, ticks=16)
    assert world.state() == ("ActiveHealthy", other(owner))


async def test_an_edge_that_is_away_suspends_the_move_and_gets_the_newest_command_on_its_return() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    assert owner is not None
    edge = world.edges["edge-1"]
    edge.reachable = False
    await world.round(leader, ticks=8)
    assert "EdgeUnreachable" in [c.type for c in world.machine().conditions]
    request = world.ask("move", "web", other(owner))
    await world.round(leader, ticks=60)
    assert not world.answer(request).accepted, "nobody can say whether the target is ready"
    edge.reachable = True
    await world.round(leader, ticks=8)
    assert world.state() == ("ActiveHealthy", owner)
    assert "EdgeUnreachable" not in [c.type for c in world.machine().conditions]


async def test_gateway_drain_empties_it_and_undrain_lets_it_carry_again() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    drained = world.ask("gateway-drain", "gw-a", reason="kernel update")
    await world.round(leader, ticks=4)
    assert world.answer(drained).accepted
    assert {world.machine(n).owner for n in ("web", "mail")} == {"gw-b"}
    world.power_cut("gw-b")
    await world.round(leader, ticks=4)
    assert world.state("web")[0] == "Stranded", "a drained gateway takes nothing, also in need"
    world.ask("gateway-undrain", "gw-a")
    await world.round(leader, ticks=4)
    assert {world.state(n) for n in ("web", "mail")} == {("ActiveHealthy", "gw-a")}


async def test_a_gateway_that_shuts_down_hands_its_pools_over() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    assert owner is not None
    world.gateways[owner].leaving = True
    await world.round(leader, ticks=4)
    assert world.state() == ("ActiveHealthy", other(owner))
    assert "Draining" in states(world)


async def test_a_deleted_pool_leaves_no_key() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    leader.offer(group(), MAIL)
    await world.round(leader, ticks=4)
    assert [key for key in world.present() if "web" in key] == []
    assert world.edges["edge-1"].points_at["web"] is None
    assert world.state("mail")[0] == "ActiveHealthy"
    leader.offer(group())
    await world.round(leader, ticks=4)
    leader.offer()
    await world.round(leader, ticks=4)
    left = {key.split("/")[3] for key in world.present()} - {"agents", "heartbeats", "leader"}
    assert left == {"counter", "spec", "observed"}, world.present()
    agents = [("edge", "edge-1"), ("node", "gw-a"), ("node", "gw-b")]
    for agent in agents:
        log = (change for _, changes in world.server.log for change in changes)
        told = [change.value for change in log if change.key == KEYS.desired_base(*agent)]
        assert told[-2:] == [encode(AgentBase()), None], "told that it is let go: a key that is gone says nothing"
    assert [gateway.tunnels for gateway in world.gateways.values()] == [0, 0]
    assert world.present("spec") == [KEYS.spec("Identity", f"{role}.{name}") for role, name in agents]


async def test_a_pool_that_comes_back_after_its_deletion_starts_anew_above_its_old_numbers() -> None:
    world, leader = await settled()
    epoch = world.machine().epoch
    leader.offer(group())
    await world.round(leader, ticks=4)
    leader.offer(group(), WEB)
    await world.round(leader, ticks=4)
    assert world.state()[0] == "ActiveHealthy"
    assert world.machine().epoch > epoch
    assert world.edges["edge-1"].refusals == []


async def test_a_pool_that_comes_back_while_it_is_deleted() -> None:
    world, leader = await settled()
    leader.offer(group())
    await leader.turn()
    await leader.turn()
    assert world.state()[0] == "Terminating"
    leader.offer(group(), WEB)
    await world.round(leader, ticks=8)
    assert world.state()[0] == "ActiveHealthy"
    assert world.edges["edge-1"].refusals == []


class Crash(Exception):
    """The process of a leader is gone."""


def crashing(store: FakeStore, at: int, applied: bool) -> None:
    """Let a store's replica die at transaction number `at` from here on: after it was applied, or before."""
    real, count = store.txn, 0

    async def txn(guards: object, ops: object) -> object:
        nonlocal count
        count += 1
        if count < at:
            return await real(guards, ops)  # type: ignore[arg-type]
        if count == at and applied:
            await real(guards, ops)  # type: ignore[arg-type]
        raise Crash

    store.txn = txn  # type: ignore[method-assign, assignment]


async def run_until_crash(world: World, at: int, applied: bool, how: str) -> bool:
    """The first leader fails the pool over and dies on the way; whether it got that far."""
    dying = world.leader("orchestrator-1")
    dying.offer(group(), WEB)
    await world.round(dying)
    crashing(dying.store, at, applied)
    try:
        if how == "failover":
            world.power_cut(world.machine().owner or "")
        elif how == "drain":
            world.ask("drain", "web")
        else:
            dying.offer(group())
        await world.round(dying, ticks=3)
    except Crash:
        return True
    return False


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not-applied"])
@pytest.mark.parametrize("how", ["failover", "drain", "delete"])
async def test_a_new_leader_finishes_what_a_dead_one_began_at_every_point(how: str, applied: bool) -> None:
    at, crashed = 1, True
    while crashed:
        world, first = await settled()
        owner = world.machine().owner
        first.leading = False
        crashed = await run_until_crash(world, at, applied, how)
        heir = world.leader("orchestrator-2")
        heir.offer(group(), *(() if how == "delete" else (WEB,)))
        await world.round(heir, ticks=12)
        if how == "delete" and not world.present("machines"):
            assert [key for key in world.present() if "web" in key] == []
        elif how == "delete":
            # It died before the order was on record: a folder orders nothing.
            assert at == 1 and not applied
            assert world.state() == ("ActiveHealthy", owner)
        else:
            assert world.state() == ("ActiveHealthy", other(owner)), (how, at, applied, states(world))
            entries = world.history()
            assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
            assert not epochs_have_one_owner({"web": entries})
        assert world.epochs_given() == sorted(set(world.epochs_given()))
        assert world.edges["edge-1"].refusals == []
        at += 1
    assert at > 3, "it was never killed on the way"


async def test_history_is_a_ring_of_200() -> None:
    world, leader = await settled()
    for _ in range(30):
        for gateway in ("gw-a", "gw-b"):
            world.ask("move", "web", gateway)
            await world.round(leader, ticks=2, step_s=400.0)
            for g in world.gateways.values():
                g.good_since_s = 0.0
            await world.round(leader)
    entries = world.history()
    assert world.machine().seq > 220
    assert [entry.seq for entry in entries] == list(range(world.machine().seq - 199, world.machine().seq + 1))


async def test_slots_stay_when_gateways_come_and_go() -> None:
    world = World(("gw-a", "gw-b", "gw-c"))
    _, leader = await settled(group("gw-a", "gw-b", "gw-c"), WEB, world=world)
    slots = dict(leader.known.groups()["group"].slots)
    leader.offer(group("gw-c", "gw-b"), WEB)
    await world.round(leader, ticks=4)
    after = leader.known.groups()["group"].slots
    assert {name: after[name] for name in ("gw-b", "gw-c")} == {name: slots[name] for name in ("gw-b", "gw-c")}
    leader.offer(group("gw-c", "gw-b"), replace(WEB, hold=True))
    await world.round(leader, ticks=2)
    assert leader.known.groups()["group"].slots == after


async def test_a_tunnel_outlives_its_agents_lease() -> None:
    world, leader = await settled()
    before = world.server.items[KEYS.desired_base("edge", "edge-1")]
    world.power_cut("gw-b")
    world.expire("node", "gw-b")
    await world.round(leader, ticks=4)
    assert world.server.items[KEYS.desired_base("edge", "edge-1")] == before
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB)
    await world.round(heir, ticks=2)
    assert world.server.items[KEYS.desired_base("edge", "edge-1")] == before


async def test_a_store_that_is_silent_makes_nobody_old() -> None:
    world, leader = await settled()
    before = world.server.revision
    leader.silent_since_s = world.clock.now()
    for _ in range(20):
        world.clock.seconds += 0.5
        leader.loop.wake()
        await leader.loop.turn()
    assert world.server.revision == before, "no condition, no move: nothing is known"


async def test_agents_that_are_silent_while_the_store_speaks_are_old() -> None:
    world, leader = await settled()
    for _ in range(6):
        world.clock.seconds += 0.5
        await leader.turn()
    assert {"EdgeUnreachable", "NoStandby"} <= {c.type for c in world.machine().conditions}
    assert world.machine().state == "ActiveHealthy"


async def test_preempt_counts_from_when_the_first_choice_was_ready_again() -> None:
    world, leader = await settled(group(preempt=True, preempt_delay_s=30.0), WEB)
    first = world.machine().owner
    assert first is not None
    world.power_cut(first)
    await world.round(leader, ticks=4)
    assert world.machine().owner == other(first)
    world.clock.seconds += 60.0
    world.power_on(first)
    await world.round(leader, ticks=16)
    assert world.machine().owner == other(first), "it was ready for long, but not since then"
    world.clock.seconds += 30.0
    await world.round(leader, ticks=4)
    assert world.machine().owner == first and world.machine().last_move["cause"] == "preempt"
