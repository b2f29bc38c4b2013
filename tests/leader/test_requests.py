"""Operators' requests: every verb, every refusal with its text, each answered exactly once."""

from dataclasses import replace

import pytest

from fsm.records import AgentRecord, Request
from orchestrator.leader.docket import REQUEST_KEPT_S
from tests.leader.model import KEYS, MAIL, WEB, Replica, World, group, other, settled


async def asked(world: World, leader: Replica, verb: str, subject: str, target: str | None = None) -> Request:
    name = world.ask(verb, subject, target, reason="test", by="ann")
    await world.round(leader, ticks=2)
    return world.answer(name)


async def test_drain_says_from_where_to_where_and_records_the_reason() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    answer = await asked(world, leader, "drain", "web")
    assert (answer.accepted, answer.answer) == (True, f"pool web moves from {owner} to {other(owner)}")
    assert world.state() == ("ActiveHealthy", other(owner))
    assert "drain by ann: test" in [entry.cause for entry in world.history()]


async def test_move_to_a_named_gateway() -> None:
    world, leader = await settled()
    target = other(world.machine().owner)
    assert (await asked(world, leader, "move", "web", target)).accepted
    assert world.state() == ("ActiveHealthy", target)


async def test_hold_stops_automation_and_release_lets_it_catch_up() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    answer = await asked(world, leader, "hold", "web")
    assert (answer.accepted, answer.answer) == (True, "pool web is held now")
    assert world.state() == ("Held", owner)
    world.power_cut(owner or "")
    await world.round(leader, ticks=8)
    assert world.state() == ("Held", owner)
    assert (await asked(world, leader, "release", "web")).answer == "pool web is released"
    assert world.state() == ("ActiveHealthy", other(owner))


async def test_hold_in_mid_move_applies_at_its_end() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    world.power_cut(owner or "")
    world.obey()
    await leader.turn()
    assert world.state()[0] == "FailureDetected"
    name = world.ask("hold", "web")
    await leader.turn()
    assert world.answer(name).answer == "pool web is held at the end of the move that is under way"
    assert "HoldPending" in [c.type for c in world.machine().conditions]
    await world.round(leader, ticks=2)
    assert world.state() == ("Held", other(owner))


async def test_a_hold_outlives_its_leader() -> None:
    world, leader = await settled()
    await asked(world, leader, "hold", "web")
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB)
    await world.round(heir, ticks=4)
    assert world.state()[0] == "Held"


@pytest.mark.parametrize("verb", ["drain", "move", "hold", "release"])
async def test_an_unknown_pool_is_refused_with_those_there_are(verb: str) -> None:
    world, leader = await settled(group(), WEB, MAIL)
    answer = await asked(world, leader, verb, "nope")
    assert (answer.accepted, answer.answer) == (False, "no pool nope; there are: mail, web")


@pytest.mark.parametrize("verb", ["gateway-drain", "gateway-undrain"])
async def test_an_unknown_gateway_is_refused_with_those_there_are(verb: str) -> None:
    world, leader = await settled()
    answer = await asked(world, leader, verb, "nope")
    assert (answer.accepted, answer.answer) == (False, "no gateway nope; there are: gw-a, gw-b")


async def test_moves_that_make_no_sense() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    here = await asked(world, leader, "move", "web", owner)
    assert (here.accepted, here.answer) == (False, f"pool web is on {owner} already")
    nowhere = await asked(world, leader, "move", "web", "nope")
    assert (nowhere.accepted, nowhere.answer) == (False, "no gateway nope; there are: gw-a, gw-b")
    world.power_cut(other(owner))
    await world.round(leader, ticks=8)
    dead = await asked(world, leader, "move", "web", other(owner))
    assert not dead.accepted
    assert dead.answer.startswith(f"{other(owner)} is not ready: heartbeat stale")
    nobody = await asked(world, leader, "drain", "web")
    assert (nobody.accepted, nobody.answer) == (
        False,
        "no other gateway is ready to take pool web; see 'bgplb status'",
    )
    assert world.state() == ("ActiveHealthy", owner)


async def test_a_pool_that_is_not_at_rest_is_not_moved() -> None:
    world, leader = await settled()
    await asked(world, leader, "hold", "web")
    held = await asked(world, leader, "drain", "web")
    assert (held.accepted, held.answer) == (False, "pool web is Held: release it first")
    await asked(world, leader, "release", "web")
    world.power_cut("gw-a")
    world.power_cut("gw-b")
    await world.round(leader, ticks=2)
    stranded = await asked(world, leader, "drain", "web")
    assert stranded.answer == "pool web is Stranded: it moves by itself once a gateway is ready"


async def test_hold_and_release_twice() -> None:
    world, leader = await settled()
    early = await asked(world, leader, "release", "web")
    assert (early.accepted, early.answer) == (False, "pool web is not held")
    await asked(world, leader, "hold", "web")
    again = await asked(world, leader, "hold", "web")
    assert (again.accepted, again.answer) == (False, "pool web is held already: hold by ann: test")


async def test_a_manifests_hold_is_the_manifests_to_end() -> None:
    world, leader = await settled(group(), replace(WEB, hold=True))
    assert world.state()[0] == "Held"
    release = await asked(world, leader, "release", "web")
    assert (release.accepted, release.answer) == (False, "pool web is held by its manifest: set hold to false there")
    hold = await asked(world, leader, "hold", "web")
    assert (hold.accepted, hold.answer) == (False, "pool web is held already: by its manifest")
    leader.offer(group(), WEB)
    await world.round(leader, ticks=4)
    assert world.state()[0] == "ActiveHealthy"


async def test_a_pool_that_is_being_deleted_takes_no_orders() -> None:
    world, leader = await settled()
    world.edges["edge-1"].reachable = False
    leader.offer(group())
    await world.round(leader, ticks=2)
    assert world.state()[0] == "Terminating"
    for verb in ("hold", "release", "drain", "move"):
        answer = await asked(world, leader, verb, "web")
        assert (answer.accepted, answer.answer) == (False, "pool web is being deleted"), verb


async def test_gateway_drain_twice_and_undrain_of_one_that_is_not() -> None:
    world, leader = await settled()
    early = await asked(world, leader, "gateway-undrain", "gw-a")
    assert (early.accepted, early.answer) == (False, "gateway gw-a is not drained")
    owner = world.machine().owner or ""
    first = await asked(world, leader, "gateway-drain", owner)
    assert (first.accepted, first.answer) == (True, f"gateway {owner} is drained; it carries web")
    again = await asked(world, leader, "gateway-drain", owner)
    assert (again.accepted, again.answer) == (False, f"gateway {owner} is drained already")


@pytest.mark.parametrize("verb", ["dance", "gateway-dance"])
async def test_an_unknown_verb_changes_nothing(verb: str) -> None:
    world, leader = await settled()
    await asked(world, leader, "gateway-drain", "gw-a")
    answer = await asked(world, leader, verb, "web" if verb == "dance" else "gw-a")
    assert (answer.accepted, answer.answer) == (False, f"unknown request '{verb}'")
    assert world.present("spec/GatewayDrain") == [KEYS.spec("GatewayDrain", "gw-a")]


async def test_two_requests_for_one_pool_are_taken_one_after_the_other() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    names = [world.ask("move", "web", gateway) for gateway in (other(owner), other(owner))]
    await world.round(leader, ticks=2)
    answers = [world.answer(name) for name in names]
    assert [a.accepted for a in answers] == [True, False]
    assert "wait for it to settle" in answers[1].answer or "already" in answers[1].answer


async def test_requests_for_several_pools_are_taken_in_one_turn() -> None:
    world, leader = await settled(group(), WEB, MAIL)
    names = [world.ask("hold", pool) for pool in ("web", "mail")]
    before = world.server.revision
    await leader.turn()
    assert [world.answer(n).accepted for n in names] == [True, True]
    assert world.server.revision == before + 1


async def test_numbers_reserved_by_a_request_are_not_given_again_in_the_same_turn() -> None:
    """A pool that is released takes numbers for its plan, which are above its own."""
    world, leader = await settled(group(), WEB, MAIL)
    world.ask("move", "web", other(world.machine().owner))
    world.obey()
    await leader.turn()
    await asked(world, leader, "hold", "web")
    assert (world.state()[0], world.machine().plan) == ("Held", ())
    world.ask("release", "web")
    anew = AgentRecord("edge-1", "edge", "i-edge-1", "1", "key-edge-1", incarnation="new@1")
    world.put(KEYS.agent("edge", "edge-1"), anew)
    await leader.turn()
    web, mail = world.machine("web"), world.machine("mail")
    numbers = [web.epoch, mail.epoch, *(plan.epoch for plan in (*web.plan, *mail.plan))]
    assert len(web.plan) == len(mail.plan) == 1
    assert len(set(numbers)) == len(numbers), numbers
    assert int(world.server.items[KEYS.epoch_counter].value) == max(numbers)


async def test_an_answer_stands_and_is_not_given_again_by_the_next_leader() -> None:
    world, leader = await settled()
    name = world.ask("drain", "web")
    await leader.turn()
    revision = world.server.items[KEYS.request(name)].mod_revision
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB)
    await world.round(heir, ticks=4)
    assert world.server.items[KEYS.request(name)].mod_revision == revision
    assert [e.to_state for e in world.history()].count("Draining") == 2, "one move: prepared, then switched"


async def test_a_request_is_taken_up_by_the_next_leader_when_the_first_died_over_it() -> None:
    world, leader = await settled()
    owner = world.machine().owner
    name = world.ask("drain", "web")
    leader.store.lose_answer = "not applied"
    await leader.turn()
    assert world.answer(name).answer == ""
    heir = world.leader("orchestrator-2")
    heir.offer(group(), WEB)
    await world.round(heir, ticks=4)
    assert world.answer(name).accepted
    assert world.state() == ("ActiveHealthy", other(owner))


async def test_an_answered_request_goes_after_an_hour() -> None:
    world, leader = await settled()
    await asked(world, leader, "hold", "web")
    assert len(world.present("requests")) == 1
    await world.round(leader, ticks=3, step_s=REQUEST_KEPT_S / 2 + 1)
    assert world.present("requests") == []
    assert leader.loop._docket._answered_s == {}, "nor does the leader remember it"
