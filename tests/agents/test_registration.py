"""What an agent has in the store while its lease lives: put back where another hand took it, and nobody else's."""

import pytest

from fsm.records import AgentRecord, EdgeReport
from orchestrator.agents.link import NameTaken
from orchestrator.store.port import Delete, Put, Refused, Snapshot
from orchestrator.store.records import decode, encode
from tests.agents.fakes import KEYS
from tests.agents.link_world import AGENT, OBSERVED, Net
from tests.contract.store.fake import FakeStore


@pytest.mark.parametrize("key", [AGENT, OBSERVED, KEYS.heartbeat("edge", "edge-1")])
async def test_a_key_that_another_hand_deleted_while_the_lease_lives_is_put_back(net: Net, key: str) -> None:
    linked = net.start()
    linked.report(EdgeReport("i-1"))
    await net.clock.advance(1.0)
    lease = linked.session.lease_id
    net.server.commit([Delete(key)])
    await net.clock.advance(11.0)
    assert net.server.items[key].lease == linked.session.lease_id == lease
    assert net.observed() == EdgeReport("i-1")


async def test_a_report_that_another_hand_changed_is_put_right(net: Net) -> None:
    linked = net.start()
    linked.report(EdgeReport("i-1", bird="up"))
    await net.clock.advance(1.0)
    net.server.commit([Put(OBSERVED, encode(EdgeReport("i-1", bird="silent")), linked.session.lease_id)])
    await net.clock.advance(11.0)
    assert net.observed() == EdgeReport("i-1", bird="up")


async def test_where_reports_may_not_be_read_the_agent_goes_on_without(net: Net) -> None:
    class Confined(FakeStore):
        async def list(self, prefix: str) -> Snapshot:
            if prefix == KEYS.observed_prefix("edge", "edge-1"):
                raise Refused("permission denied")
            return await super().list(prefix)

    linked = net.start(store=Confined(net.server))
    await net.clock.advance(25.0)
    linked.report(EdgeReport("i-1"))
    await net.clock.advance(1.0)
    assert net.observed() == EdgeReport("i-1")
    assert [said for said in linked.said if "bootstrap-auth" in said] == [
        "reports can't be looked for; 'bgplb etcd bootstrap-auth' allows it"
    ]


async def test_of_two_copies_of_one_installation_one_ends_and_says_why(net: Net) -> None:
    """A machine was cloned, state directory and all. The one that starts can't tell the other from its former life."""
    first = net.start("i-1")
    first.report(EdgeReport("i-1", bird="up"))
    await net.clock.advance(1.0)
    second = net.start("i-1")
    await net.clock.advance(12.0)
    with pytest.raises(ExceptionGroup) as ended:
        await first.task
    assert ended.group_contains(NameTaken, match="this very installation")
    assert not second.task.done()
    assert net.server.items[AGENT].lease == second.session.lease_id


async def test_a_registration_that_hangs_on_nothing_keeps_nobody_out(net: Net) -> None:
    """Written by hand, or left by a lease that ended and took no key along: it names somebody who is dead."""
    net.server.commit([Put(AGENT, encode(AgentRecord("edge-1", "edge", "i-dead", "1", "key")))])
    linked = net.start("i-1")
    await net.clock.advance(1.0)
    assert not linked.task.done()
    assert decode(net.server.items[AGENT].value, AgentRecord, AGENT).instance == "i-1"
    assert net.server.items[AGENT].lease == linked.session.lease_id
