"""An agent's link with the store: one live name, reports as levels, and a store that comes and goes."""

from typing import Any

import pytest

from fsm.records import AgentRecord, EdgeReport
from orchestrator.agents.link import NameTaken
from orchestrator.store.generation import Memory, Meta, Recollection
from orchestrator.store.port import Change, Delete, Put, Refused, Snapshot
from orchestrator.store.records import RecordError, decode, encode
from tests.agents.fakes import KEYS
from tests.agents.link_world import AGENT, DESIRED, OBSERVED, Net


async def test_it_registers_beats_listens_and_reports_under_one_lease(net: Net) -> None:
    linked = net.start()
    linked.report(EdgeReport("i-1"))
    await net.clock.advance(1.0)
    net.server.commit([Put(DESIRED, b"{}")])
    await net.clock.advance(0.1)
    leases = {net.server.items[key].lease for key in (AGENT, OBSERVED, KEYS.heartbeat("edge", "edge-1"))}
    assert leases == {linked.session.lease_id}
    assert [change.key for change in linked.told] == [DESIRED]


async def test_a_second_installation_with_a_live_name_is_refused_and_the_first_goes_on(net: Net) -> None:
    first = net.start("i-1")
    await net.clock.advance(0.5)
    second = net.start("i-2")
    await net.clock.advance(0.5)
    with pytest.raises(NameTaken, match="edge edge-1: another installation"):
        await second.task
    assert second.session.lease_id == 0, "and it leaves no lease behind"
    await net.clock.advance(5.0)
    assert decode(net.server.items[AGENT].value, AgentRecord, AGENT).instance == "i-1"
    assert not first.task.done()


async def test_two_that_start_at_once_end_as_one(net: Net) -> None:
    both = [net.start("i-1"), net.start("i-2")]
    await net.clock.advance(1.0)
    ended = [linked for linked in both if linked.task.done()]
    assert len(ended) == 1
    with pytest.raises(NameTaken):
        await ended[0].task


async def test_the_same_installation_replaces_its_own_key_at_once(net: Net) -> None:
    first = net.start()
    first.report(EdgeReport("i-1", bird="up"))
    await net.clock.advance(0.5)
    await net.stop(first)
    again = net.start()
    again.report(EdgeReport("i-1", bird="silent"))
    await net.clock.advance(0.5)
    assert net.server.items[AGENT].lease == again.session.lease_id
    await net.clock.advance(10.0)  # the first one's lease ends meanwhile
    assert AGENT in net.server.items
    found = net.observed()
    assert found is not None
    assert found.bird == "silent"


async def test_a_name_is_free_when_its_lease_has_ended(net: Net) -> None:
    first = net.start("i-1")
    await net.clock.advance(0.5)
    await net.stop(first)
    await net.clock.advance(4.0)
    net.start("i-2")
    await net.clock.advance(0.5)
    assert decode(net.server.items[AGENT].value, AgentRecord, AGENT).instance == "i-2"


async def test_an_agent_whose_lease_was_lost_comes_back_with_all_it_had_reported(net: Net) -> None:
    linked = net.start()
    linked.report(EdgeReport("i-1", bird="up"))
    await net.clock.advance(0.5)
    net.server.end_lease(linked.session.lease_id)
    assert net.observed() is None
    await net.clock.advance(3.0)
    assert AGENT in net.server.items
    assert net.observed() is not None
    assert "lease lost" in linked.said


async def test_an_unchanged_report_is_not_written_again(net: Net) -> None:
    linked = net.start()
    linked.report(EdgeReport("i-1", bird="up"))
    await net.clock.advance(0.5)
    revision = net.server.items[OBSERVED].mod_revision
    linked.report(EdgeReport("i-1", bird="up"))
    await net.clock.advance(0.5)
    assert net.server.items[OBSERVED].mod_revision == revision


async def test_a_report_that_is_taken_back_goes(net: Net) -> None:
    linked = net.start()
    linked.report(EdgeReport("i-1"))
    await net.clock.advance(0.5)
    linked.report(None)
    await net.clock.advance(0.5)
    assert net.observed() is None


@pytest.mark.parametrize("fate", ["applied", "not applied"])
async def test_a_report_whose_answer_is_lost_arrives(net: Net, fate: str) -> None:
    linked = net.start()
    await net.clock.advance(0.5)
    linked.store.lose_answer = fate  # type: ignore[assignment]
    linked.report(EdgeReport("i-1", bird="up"))
    await net.clock.advance(1.0)
    assert net.observed() is not None


async def test_only_the_last_of_many_reports_matters_after_an_outage(net: Net) -> None:
    linked = net.start()
    await net.clock.advance(0.5)
    linked.store.reachable = False
    for bird in ("up", "silent", "up", "unknown"):
        linked.report(EdgeReport("i-1", bird=bird))
        await net.clock.advance(0.3)
    linked.store.reachable = True
    await net.clock.advance(2.0)
    found = net.observed()
    assert found is not None
    assert found.bird == "unknown"


async def test_a_store_that_is_away_at_the_start_is_waited_for_and_said_once(net: Net) -> None:
    store = net.server.client()
    store.reachable = False
    linked = net.start(store=store)
    await net.clock.advance(30.0)
    assert not linked.task.done()
    assert linked.said.count("the store does not answer") == 1
    store.reachable = True
    await net.clock.advance(1.0)
    assert AGENT in net.server.items
    assert linked.said[-1] == "registered"


async def test_a_store_that_goes_away_later_ends_nothing_and_is_said_once(net: Net) -> None:
    linked = net.start()
    linked.report(EdgeReport("i-1", bird="up"))
    await net.clock.advance(1.0)
    linked.store.reachable = False
    await net.clock.advance(60.0)
    assert not linked.task.done()
    assert linked.said.count("the store does not answer") == 1
    linked.store.reachable = True
    await net.clock.advance(5.0)
    assert "the store answers again" in linked.said
    assert AGENT in net.server.items
    assert net.observed() is not None


async def test_a_quiet_store_is_not_a_silent_one(net: Net) -> None:
    linked = net.start()
    await net.clock.advance(60.0)
    assert "the store does not answer" not in linked.said


async def test_a_registration_that_can_not_be_read_ends_the_agent_with_its_key_named(net: Net) -> None:
    net.server.commit([Put(AGENT, b'{"schema": 99}')])
    linked = net.start()
    await net.clock.advance(0.5)
    with pytest.raises(RecordError, match=AGENT):
        await linked.task


@pytest.mark.parametrize("at", ["start", "later"])
async def test_a_store_that_refuses_ends_nothing_and_is_said_once(net: Net, at: str) -> None:
    store = net.server.client()
    linked = net.start(store=store)
    if at == "later":
        await net.clock.advance(0.5)
    real = store.put, store.grant

    async def refuse(*_arguments: Any) -> Any:
        raise Refused("put: no space left; compact and defragment")

    store.put = store.grant = refuse  # type: ignore[method-assign, assignment]
    await net.clock.advance(30.0)
    assert not linked.task.done()
    assert linked.said.count("the store refuses") == 1
    store.put, store.grant = real  # type: ignore[method-assign]
    linked.report(EdgeReport("i-1", bird="silent"))
    await net.clock.advance(5.0)
    assert AGENT in net.server.items
    found = net.observed()
    assert found is not None
    assert found.bird == "silent"
    assert linked.said[-1] == "the store answers again"


def registered(net: Net) -> AgentRecord:
    return decode(net.server.items[AGENT].value, AgentRecord, AGENT)


def found(net: Net, generation: str, accepts: tuple[str, ...] = ()) -> None:
    net.server.commit([Put(KEYS.meta, encode(Meta(generation, accepts=accepts)))])


@pytest.mark.parametrize("cluster_id", [None, 0xC2], ids=["emptied", "another cluster"])
async def test_another_store_is_not_obeyed_and_told_so_until_it_is_accepted(net: Net, cluster_id: int | None) -> None:
    found(net, "one")
    linked = net.start()
    linked.report(EdgeReport("i-1"))
    await net.clock.advance(1.0)
    assert registered(net).generation == "one"
    net.server.wipe(cluster_id)
    await net.clock.advance(15.0)
    assert not linked.task.done()
    assert "store accept" in linked.link.refusal
    assert "store accept" in registered(net).refuses
    assert registered(net).generation == "one", "what it obeyed, for the one who accepts"
    assert net.observed() is None, "nothing else is said there"
    assert linked.said.count("the store is not obeyed") == 1
    net.server.commit([Put(DESIRED, b"{}")])
    await net.clock.advance(5.0)
    assert linked.told == [], "nor heard"
    found(net, "two", accepts=("one",))
    await net.clock.advance(5.0)
    assert (linked.link.refusal, registered(net).refuses, registered(net).generation) == ("", "", "two")
    assert [change.key for change in linked.told] == [DESIRED]
    assert net.observed() is not None


async def test_what_was_seen_is_remembered_over_a_restart(net: Net) -> None:
    found(net, "one")
    saved: list[Memory] = []

    async def save(memory: Memory) -> str:
        saved.append(memory)
        return ""

    first = net.start(recollection=Recollection(KEYS, DESIRED, save=save))
    await net.clock.advance(30.0)
    await net.stop(first)
    assert saved[-1].generation == "one"
    assert saved[-1].revision > 30, "the heartbeats are in it"
    assert len(saved) < 6, "and it was written a few times only"
    net.server.wipe()
    found(net, "one")
    second = net.start(recollection=Recollection(KEYS, DESIRED, saved[-1], save))
    await net.clock.advance(3.0)
    assert "went back" in second.link.refusal
    assert "went back" in registered(net).refuses


async def test_a_store_without_a_generation_gets_one_later(net: Net) -> None:
    linked = net.start()
    await net.clock.advance(1.0)
    assert linked.link.refusal == ""
    found(net, "one")
    await net.clock.advance(15.0)
    net.server.wipe()
    found(net, "other")
    await net.clock.advance(15.0)
    assert "generation one" in linked.link.refusal


async def test_an_edge_without_a_past_obeys_no_order_that_was_given_before_it_came(net: Net) -> None:
    pool, later = KEYS.desired("edge", "edge-1", "pool", "web"), KEYS.desired("edge", "edge-1", "pool", "mail")
    net.server.commit([Put(DESIRED, b"{}"), Put(pool, b"old")])
    linked = net.start(recollection=Recollection(KEYS, DESIRED.removesuffix("base"), blank=lambda: True))
    await net.clock.advance(1.0)
    assert [change.key for change in linked.told] == [DESIRED], "its tunnels do no harm"
    born = registered(net).incarnation
    net.server.commit([Put(pool, b"new"), Put(later, b"new")])
    await net.clock.advance(1.0)
    assert [(change.key, change.value) for change in linked.told[1:]] == [(pool, b"new"), (later, b"new")]
    assert born.startswith("i-1@")
    assert born != "i-1@0"


async def test_after_standing_still_it_reads_what_is_wanted_before_it_obeys(net: Net) -> None:
    """A frozen process finds old orders in its buffers: played by a clock that jumps while nobody runs."""
    pool = KEYS.desired("edge", "edge-1", "pool", "web")
    net.server.commit([Put(pool, b"first"), Put(DESIRED, b"{}")])
    linked = net.start()
    await net.clock.advance(1.0)
    linked.told.clear()
    linked.store.late = True
    for order in (b"second", b"third"):
        net.server.commit([Put(pool, order)])
    net.server.commit([Delete(DESIRED)])
    net.clock._now += 30.0  # no timer fires: the process does not run
    linked.store.late = False
    await net.clock.advance(2.0)
    assert [(change.key, change.value) for change in linked.told] == [(DESIRED, None), (pool, b"third")]
    assert linked.said.count("stood still; what is wanted is read anew") == 1
    net.server.commit([Put(pool, b"fourth")])
    await net.clock.advance(1.0)
    assert linked.told[-1].value == b"fourth", "and then it goes on as ever"


async def test_while_nobody_answers_after_a_gap_nothing_is_obeyed(net: Net) -> None:
    pool = KEYS.desired("edge", "edge-1", "pool", "web")
    linked = net.start()
    await net.clock.advance(1.0)
    gate = linked.link.gate
    net.clock._now += 30.0
    linked.store.reachable = False
    gate.on_changes((Change(pool, b"old", 1, 5, 0),))
    await net.clock.advance(10.0)
    assert linked.told == []
    net.server.commit([Put(pool, b"new")])
    linked.store.reachable = True
    await net.clock.advance(3.0)
    assert {change.value for change in linked.told} == {b"new"}


async def test_an_order_that_comes_while_it_reads_anew_is_not_lost(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read is as of a moment before it; the watch brings the order first, and brings it once."""
    pool = KEYS.desired("edge", "edge-1", "pool", "web")
    net.server.commit([Put(pool, b"first")])
    linked = net.start()
    await net.clock.advance(1.0)
    linked.told.clear()
    read, gate = linked.store.list, linked.link.gate

    async def slow(prefix: str) -> Snapshot:
        found = await read(prefix)
        if gate._doubt.is_set() and net.server.items[pool].value == b"first":
            net.server.commit([Put(pool, b"second")])
            await net.clock.sleep(0.2)
        return found

    monkeypatch.setattr(linked.store, "list", slow)
    net.clock._now += 30.0
    gate.on_changes(())
    await net.clock.advance(3.0)
    assert [change.value for change in linked.told] == [b"first", b"second"]


async def test_a_store_that_is_found_to_be_another_over_a_lost_answer_is_not_obeyed(net: Net) -> None:
    """After a write without an answer an agent registers anew, and looks at what the store is."""
    found(net, "one")
    linked = net.start()
    await net.clock.advance(1.0)
    found(net, "another")
    linked.store.lose_answer = "applied"
    linked.report(EdgeReport("i-1"))
    await net.clock.advance(3.0)
    assert "generation another" in linked.link.refusal
    net.server.commit([Put(DESIRED, b"{}")])
    await net.clock.advance(3.0)
    assert linked.told == []


async def test_a_store_that_goes_on_while_it_is_looked_at_did_not_go_back(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look is as of a moment; a heartbeat may be confirmed after that and before the look's answer is there."""
    found(net, "one")
    linked = net.start()
    await net.clock.advance(1.0)
    read = linked.store.list

    async def slow(prefix: str) -> Snapshot:
        snapshot = await read(prefix)
        await net.clock.sleep(1.0)
        return snapshot

    monkeypatch.setattr(linked.store, "list", slow)
    linked.store.lose_answer = "applied"
    linked.report(EdgeReport("i-1"))
    await net.clock.advance(3.0)
    memory = linked.link._recollection.memory
    assert (linked.link.refusal, memory.went_back) == ("", False)
    assert "the store is not obeyed" not in linked.said
    assert memory.revision >= net.server.revision - 4, "what was seen meanwhile is not forgotten"
