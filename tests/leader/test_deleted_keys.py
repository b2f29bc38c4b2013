"""A key that another hand deleted while everybody lives: it is written anew, and no number is given twice."""

import pytest

from orchestrator.store.port import Delete
from tests.leader.model import KEYS, MAIL, WEB, group, other, settled

DELETED = {
    "counter": KEYS.epoch_counter,
    "record": KEYS.machine("pool", "web"),
    "spec of the pool": KEYS.spec("EIPPool", "web"),
    "spec of the group": KEYS.spec("EdgeGateway", "group"),
    "identity": KEYS.spec("Identity", "node.gw-a"),
    "base of the edge": KEYS.desired_base("edge", "edge-1"),
    "base of a gateway": KEYS.desired_base("node", "gw-a"),
    "order to the edge": KEYS.desired("edge", "edge-1", "pool", "web"),
    "order to a gateway": KEYS.desired("node", "gw-a", "pool", "web"),
}


@pytest.mark.parametrize("new_leader", [False, True], ids=["same leader", "new leader"])
@pytest.mark.parametrize("key", DELETED.values(), ids=DELETED.keys())
async def test_nothing_moves_and_everything_goes_on(key: str, new_leader: bool) -> None:
    world, leader = await settled(group(), WEB, MAIL)
    before = world.state("web"), world.state("mail")
    owner = before[0][1]
    assert owner is not None
    reserved = {plan.epoch for name in ("web", "mail") for plan in world.machine(name).plan}
    world.server.commit([Delete(key)])
    if new_leader:
        leader = world.leader("orchestrator-2")
        leader.offer(group(), WEB, MAIL)
    await world.round(leader, ticks=8)
    assert (world.state("web"), world.state("mail")) == before
    request = world.ask("move", "mail", other(before[1][1]), reason="a number is taken")
    await world.round(leader, ticks=8)
    assert world.answer(request).accepted
    assert world.state("mail") == ("ActiveHealthy", other(before[1][1]))
    assert world.machine("mail").epoch not in reserved
    assert key in world.present()
    world.power_cut(owner)
    await world.round(leader, ticks=8)
    assert {world.state("web")[1], world.state("mail")[1]} == {other(owner)}
    assert {world.edges["edge-1"].points_at[name] for name in ("web", "mail")} == {other(owner)}
    assert world.edges["edge-1"].refusals == []
    given = world.epochs_given()
    assert given == sorted(set(given))
