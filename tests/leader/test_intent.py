"""From the folder to accepted specs: what is taken up, what stays, and what alone may delete."""

from dataclasses import replace

import pytest

from fsm.records import AgentBase, EdgeGatewaySpec, EdgePool, PoolSpec
from orchestrator.config.intent import Intent
from orchestrator.config.problems import Problem
from orchestrator.store.port import TxnResult
from orchestrator.store.records import decode
from tests.leader.model import KEYS, MAIL, WEB, Replica, World, group, other, pool, settled

BAD = Intent(problems=(Problem("pools.yaml", "EIPPool/web", "spec.addresses", "", "a list"),))

PREFIXES = (("192.0.2.0/27", "192.0.2.32/27"), ("192.0.2.64/27",))


def accepted(world: World) -> dict[str, bool]:
    """Pools of the spec, and whether each is being deleted."""
    prefix = KEYS.spec("EIPPool", "x")[:-1]
    keys = [key for key in world.server.items if key.startswith(prefix)]
    return {key.removeprefix(prefix): world.read(key, PoolSpec).deleted for key in keys}


def probe_ipv6(world: World) -> set[str]:
    """IPv6 addresses of the probes that an edge is told of."""
    base = world.read(KEYS.desired_base("edge", "edge-1"), AgentBase)
    return {tunnel.probe_ipv6 for tunnel in base.tunnels}


async def test_new_and_changed_objects_are_taken_up() -> None:
    world, leader = await settled()
    leader.offer(group(), replace(WEB, hold=True), MAIL)
    await world.round(leader, ticks=4)
    assert accepted(world) == {"web": False, "mail": False}
    assert world.state("web")[0] == "Held"
    assert world.state("mail")[0] == "ActiveHealthy"


async def test_what_does_not_change_is_not_written() -> None:
    world, leader = await settled()
    before = {key: kv.mod_revision for key, kv in world.server.items.items() if "/heartbeats/" not in key}
    leader.offer(group(), WEB)
    await world.round(leader, ticks=4)
    after = {key: kv.mod_revision for key, kv in world.server.items.items() if "/heartbeats/" not in key}
    assert after == before


async def test_ipv6_comes_with_the_first_pool_that_has_it_and_stays() -> None:
    world, leader = await settled()
    spec = KEYS.spec("EdgeGateway", group().name)
    assert not world.read(spec, EdgeGatewaySpec).ipv6
    assert probe_ipv6(world) == {""}
    leader.offer(group(), WEB, replace(MAIL, addresses=(*MAIL.addresses, "2001:db8:2::/64")))
    await world.round(leader, ticks=4)
    assert world.read(spec, EdgeGatewaySpec).ipv6
    assert probe_ipv6(world) == {"fd78::1", "fd78::2"}
    leader.offer(group(), WEB, MAIL)
    await world.round(leader, ticks=4)
    assert world.read(spec, EdgeGatewaySpec).ipv6
    assert probe_ipv6(world) == {"fd78::1", "fd78::2"}


async def test_one_bad_reading_keeps_the_last_good_one_and_is_reported() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    leader.loop.intent.offer(BAD)
    await world.round(leader, ticks=4)
    assert accepted(world) == {"web": False, "mail": False}
    assert leader.loop.problems() == ("pools.yaml: EIPPool/web: spec.addresses: a list",)
    leader.offer(group(), WEB, MAIL)
    assert leader.loop.problems() == ()


async def test_a_bad_reading_before_any_good_one_deletes_nothing() -> None:
    world, _ = await settled()
    heir = world.leader("orchestrator-2")
    heir.loop.intent.offer(BAD)
    await world.round(heir, ticks=4)
    assert accepted(world) == {"web": False}
    assert world.state()[0] == "ActiveHealthy"


async def test_what_this_leader_saw_go_is_deleted() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    leader.offer(group(), MAIL)
    await leader.turn()
    assert accepted(world) == {"web": True, "mail": False}


async def test_a_new_leader_whose_folder_lacks_something_deletes_nothing_and_says_so() -> None:
    world, _ = await settled(group(), WEB, MAIL)
    heir = world.leader("orchestrator-2")
    heir.offer(group(), MAIL)
    await world.round(heir, ticks=4)
    assert accepted(world) == {"web": False, "mail": False}
    assert "EIPPool/web" in " ".join(heir.loop.problems())
    assert "IntentMissing" in [c.type for c in world.machine("web").conditions]
    assert "IntentMissing" not in [c.type for c in world.machine("mail").conditions]


async def test_what_a_follower_saw_go_is_not_its_to_delete_when_it_leads() -> None:
    """Its folder may have lost the file by itself: only what goes while it leads is an order."""
    world, leader = await settled(group(), WEB, MAIL)
    follower = Replica(world, "orchestrator-2")
    follower.offer(group(), WEB, MAIL)
    await world.round(leader, follower)
    follower.offer(group(), MAIL)
    leader.leading = False
    world.elect(follower)
    await world.round(follower, ticks=4)
    assert accepted(world) == {"web": False, "mail": False}
    assert "IntentMissing" in [c.type for c in world.machine("web").conditions]


async def test_what_went_before_a_leader_lost_its_post_is_not_deleted_when_it_returns() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    leader.offer(group(), MAIL)
    leader.leading = False
    leader.loop._step_down()
    world.elect(leader)
    await world.round(leader, ticks=4)
    assert accepted(world) == {"web": False, "mail": False}


async def test_stepping_down_forgets_no_problem_of_the_folder() -> None:
    _, leader = await settled()
    leader.loop.intent.offer(BAD)
    leader.loop._step_down()
    assert "spec.addresses" in " ".join(leader.loop.problems())


async def test_prune_deletes_what_the_folder_lacks() -> None:
    world, _ = await settled(group(), WEB, MAIL)
    heir = world.leader("orchestrator-2")
    heir.offer(group(), MAIL)
    await world.round(heir)
    name = world.ask("prune", "intent", reason="web was returned")
    await world.round(heir, ticks=4)
    assert (world.answer(name).accepted, world.answer(name).answer) == (True, "deletes EIPPool/web")
    assert accepted(world) == {"mail": False}
    again = world.ask("prune", "intent")
    await world.round(heir, ticks=2)
    assert world.answer(again).answer == "deletes nothing"


async def test_an_answered_prune_is_done_also_when_its_leader_dies_at_once() -> None:
    world, _ = await settled(group(), WEB, MAIL)
    heir = world.leader("orchestrator-2")
    heir.offer(group(), MAIL)
    await world.round(heir)
    name = world.ask("prune", "intent")
    while not world.answer(name).answer:
        await heir.turn()
    third = world.leader("orchestrator-3")
    third.offer(group(), MAIL)
    await world.round(third, ticks=4)
    assert accepted(world) == {"mail": False}


@pytest.mark.parametrize("fate", ["applied", "not applied"])
async def test_a_prune_whose_answer_is_lost_still_says_what_it_deletes(fate: str) -> None:
    world, _ = await settled(group(), WEB, MAIL)
    heir = world.leader("orchestrator-2")
    heir.offer(group(), MAIL)
    await world.round(heir)
    name = world.ask("prune", "intent")
    heir.store.lose_answer = fate  # type: ignore[assignment]
    await world.round(heir, ticks=4)
    assert world.answer(name).answer == "deletes EIPPool/web"
    assert accepted(world) == {"mail": False}


@pytest.mark.parametrize("reading", [None, BAD], ids=["not read", "bad"])
async def test_prune_without_a_good_reading_of_the_folder_is_refused(reading: Intent | None) -> None:
    world, leader = await settled()
    heir = world.leader("orchestrator-2") if reading is None else leader
    if reading is not None:
        heir.loop.intent.offer(reading)
    name = world.ask("prune", "intent")
    await world.round(heir, ticks=4)
    assert not world.answer(name).accepted
    assert "folder" in world.answer(name).answer
    assert accepted(world) == {"web": False}


async def test_prune_of_very_much_takes_several_transactions() -> None:
    pools = [pool(f"pool-{n}", f"192.0.2.{n if n < 64 else n + 64}/32") for n in range(140)]
    world, _ = await settled(group(), *pools)
    heir = world.leader("orchestrator-2")
    heir.offer(group(), MAIL)
    name = world.ask("prune", "intent")
    await world.round(heir, ticks=4)
    assert world.answer(name).accepted
    assert accepted(world) == {"mail": False}


async def test_an_object_that_comes_back_in_the_turn_in_which_it_would_go_for_good() -> None:
    world, leader = await settled()
    leader.offer(group("gw-a", "gw-b"), WEB, PoolSpec("lost", "198.51.100.0/24", ("198.51.100.0/28",), "elsewhere"))
    await leader.turn()
    leader.offer(group(), WEB)
    await leader.turn()
    assert accepted(world)["lost"] is True
    leader.offer(group(), WEB, PoolSpec("lost", "198.51.100.0/24", ("198.51.100.0/28",), "elsewhere"))
    await world.round(leader, ticks=2)
    assert accepted(world) == {"web": False, "lost": False}


@pytest.mark.parametrize("name", ["aaa", "zzz"])
async def test_a_pool_that_is_renamed_keeps_its_prefix_for_itself(name: str) -> None:
    """Whichever of the two an edge hears of first: the new one waits until the old one is gone."""
    world, leader = await settled()
    leader.offer(group(), replace(WEB, name=name))
    await world.round(leader, ticks=4)
    assert accepted(world) == {name: False}
    assert world.edges["edge-1"].refusals == []
    assert world.state(name)[0] == "ActiveHealthy"
    assert world.edges["edge-1"].points_at[name] is not None


@pytest.mark.parametrize("names", [("aaa", "zzz"), ("zzz", "aaa")])
async def test_a_prefix_that_changes_pools(names: tuple[str, str]) -> None:
    one, two = (replace(WEB, name=n, addresses=a) for n, a in zip(names, PREFIXES, strict=True))
    world, leader = await settled(group(), one, two)
    both = (*one.addresses, *two.addresses)
    leader.offer(group(), replace(one, addresses=both[:1]), replace(two, addresses=both[1:]))
    await world.round(leader, ticks=4)
    assert world.edges["edge-1"].refusals == []
    assert {world.state(n)[0] for n in names} == {"ActiveHealthy"}
    owner = world.machine(names[0]).owner or ""
    world.power_cut(owner)
    await world.round(leader, ticks=4)
    assert world.state(names[0]) == ("ActiveHealthy", other(owner))


@pytest.mark.parametrize("names", [("aaa", "zzz"), ("zzz", "aaa")])
async def test_a_living_pool_gets_the_prefix_of_a_deleted_one_when_that_is_gone(names: tuple[str, str]) -> None:
    """At no time is an edge told of one prefix twice: taking it away might have the higher number."""
    one, two = (replace(WEB, name=n, addresses=a) for n, a in zip(names, PREFIXES, strict=True))
    world, leader = await settled(group(), one, two)
    before = world.server.revision
    leader.offer(group(), replace(two, addresses=(*one.addresses, *two.addresses)))
    await leader.turn()
    assert f"EIPPool/{names[1]}: spec.addresses: as before until {names[0]} is gone" in leader.loop.problems()
    await world.round(leader, ticks=4)
    assert accepted(world) == {names[1]: False}
    assert world.machine(names[1]).addresses == (*one.addresses, *two.addresses)
    assert leader.loop.problems() == ()
    told: dict[str, tuple[str, ...]] = {}
    for revision, changes in world.server.log:
        for change in changes:
            if change.key.startswith(KEYS.desired("edge", "edge-1", "pool", "x")[:-1]):
                told[change.key] = decode(change.value, EdgePool, change.key).prefixes if change.value else ()
        prefixes = [prefix for some in told.values() for prefix in some]
        assert revision <= before or len(prefixes) == len(set(prefixes)), told


async def test_who_waits_for_a_prefix_is_looked_at_as_soon_as_it_is_free() -> None:
    """Not only when everything is looked at again, some seconds later."""
    world, leader = await settled()
    leader.offer(group(), replace(WEB, name="zzz"))
    leader.loop.wake()
    for _ in range(6):
        for _ in range(4):  # until nothing is left to do before the agents have answered
            leader.sync()
            await leader.loop.turn()
        world.obey()
    assert accepted(world) == {"zzz": False}
    assert world.machine("zzz").owner is not None


async def test_another_gateway_reference_is_not_taken_up_while_the_pool_lives() -> None:
    """The edges of the old group would be told of nothing any more, and go on as they were."""
    world, leader = await settled()
    there = replace(group("gw-c", edges=("edge-2",)), name="there")
    leader.offer(group(), there, replace(WEB, gateway_ref="there"))
    await world.round(leader, ticks=4)
    assert world.read(KEYS.spec("EIPPool", "web"), PoolSpec).gateway_ref == "group"
    assert world.state()[0] == "ActiveHealthy"
    assert any("gatewayRef" in problem and "EIPPool/web" in problem for problem in leader.loop.problems())


async def test_deletion_survives_a_store_that_fails_meanwhile() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    real = leader.store.txn

    async def txn(guards: object, ops: object) -> TxnResult:
        leader.store.reachable = True
        leader.store.txn = real  # type: ignore[method-assign]
        return TxnResult(False, world.server.revision)

    leader.store.txn = txn  # type: ignore[method-assign]
    leader.offer(group(), MAIL)
    await world.round(leader, ticks=4)
    assert accepted(world) == {"mail": False}
