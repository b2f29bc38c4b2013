"""Random worlds: whatever breaks in whatever order, S1 and S2 hold; once faults stop, every pool comes to rest (L1)."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fsm.desired import edge_pool
from fsm.pool import DEADLINES_MS
from fsm.records import PoolRecord
from fsm.types import PoolState
from orchestrator.store.records import decode, encode
from tests.fsm.world import SETTLE_S, ModelWorld

S = PoolState
GATEWAYS = ("gw-a", "gw-b", "gw-c")
gateways = st.sampled_from(GATEWAYS)
edges = st.sampled_from(("edge-1", "edge-2"))
OWNED = (S.ACTIVE_HEALTHY, S.FAILURE_DETECTED, S.WITHDRAWN, S.PEER_UPDATED, S.STANDBY_ADVERTISING, S.DRAINING)
LIVENESS_S = sum(limit or 0 for state, limit in DEADLINES_MS.items() if state != S.TERMINATING) / 1000 + SETTLE_S


class RandomWorld(RuleBasedStateMachine):
    """Faults, orders, and turns of leader and agents, one at a time."""

    world: ModelWorld
    numbers: set[int]

    @initialize(count=st.integers(1, 2), at_once=st.booleans())
    def begin(self, count: int, at_once: bool) -> None:
        self.world = ModelWorld(GATEWAYS, ("edge-1", "edge-2")[:count])
        for edge in self.world.edges.values():
            edge.at_once = at_once
        self.world.run(1)
        self.numbers = {self.world.machine.epoch}

    # ---- faults ----------------------------------------------------------------------------------------------------

    @rule(name=gateways)
    def power_cut(self, name: str) -> None:
        self.world.power_cut(name)

    @rule(name=gateways)
    def power_on(self, name: str) -> None:
        if not self.world.gateways[name].powered:
            self.world.power_on(name)

    @rule(name=gateways, dies=st.booleans())
    def bird(self, name: str, dies: bool) -> None:
        if dies:
            self.world.bird_kill(name)
        else:
            self.world.bird_start(name)

    @rule(name=gateways, cut=st.booleans())
    def path(self, name: str, cut: bool) -> None:
        if cut:
            self.world.path_cut(name)
        else:
            self.world.path_heal(name)

    @rule(name=gateways)
    def agent(self, name: str) -> None:
        gateway = self.world.gateways[name]
        if not gateway.powered:
            return
        if gateway.agent:
            self.world.agent_kill(name)
        else:
            self.world.agent_start(name)

    @rule(name=gateways)
    def obedience(self, name: str) -> None:
        self.world.gateways[name].obedient = not self.world.gateways[name].obedient

    @rule(name=edges)
    def edge(self, name: str) -> None:
        edge = self.world.edges.get(name)
        if edge is None:
            return
        if edge.reachable:
            self.world.edge_lost(name)
        else:
            self.world.edge_back(name)

    @rule(name=edges)
    def kernel_of_an_edge(self, name: str) -> None:
        edge = self.world.edges.get(name)
        if edge is not None:
            edge.stuck = not edge.stuck

    # ---- orders ----------------------------------------------------------------------------------------------------

    @rule(name=gateways)
    def drain(self, name: str) -> None:
        if name in self.world.drains:
            self.world.undrain(name)
        else:
            self.world.drain(name)

    @rule()
    def hold(self) -> None:
        if self.world.machine.hold_request:
            self.world.release()
        else:
            self.world.hold()

    @rule()
    def leader_change(self) -> None:
        self.world.record = decode(encode(self.world.machine), PoolRecord)
        self.world.leader += "'"

    # ---- turns -----------------------------------------------------------------------------------------------------

    @rule()
    def look(self) -> None:
        before = self.world.machine.epoch
        taken = {entry.epoch for entry in self.world.think().entries} - {before}
        assert not taken & self.numbers, f"handed out twice: {taken & self.numbers}"
        self.numbers |= taken
        assert self.world.counter >= max(self.numbers)

    @rule(name=st.sampled_from((*GATEWAYS, "edge-1", "edge-2")))
    def one_agent(self, name: str) -> None:
        self.world.obey(name)

    @rule()
    def all_agents(self) -> None:
        self.world.obey()

    @rule(seconds=st.sampled_from((0.05, 0.3, 1.1, 3.1, 12.0)))
    def time(self, seconds: float) -> None:
        self.world.tick(seconds)

    # ---- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def safe(self) -> None:
        assert self.world.violations() == []

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def nothing_is_withdrawn_without_a_target(self) -> None:
        record = self.world.machine
        if record.state in OWNED:
            assert edge_pool(record, self.world.spec).owner is not None, record
            assert (record.target is not None) == (record.state in (S.FAILURE_DETECTED, S.WITHDRAWN, S.DRAINING))
        if record.state in (S.HELD, S.STRANDED):
            assert record.target is None

    def teardown(self) -> None:
        """L1: faults stop, and the pool is at rest within the sum of the deadlines."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.drains.clear()
        if world.machine.hold_request:
            world.release()
        for edge in world.edges.values():
            edge.stuck = False
            if not edge.reachable:
                world.edge_back(edge.name)
        for name, gateway in world.gateways.items():
            if not gateway.powered:
                world.power_on(name)
                continue
            gateway.obedient, gateway.agent, gateway.lost_s = True, True, None
            world.bird_start(name)
            world.path_heal(name)
        world.run(LIVENESS_S, step_s=0.5)
        assert world.violations() == []
        assert world.state == S.ACTIVE_HEALTHY, world.machine
        assert {edge.points_at for edge in world.edges.values()} == {world.machine.owner}
        announcing = {g.name for g in world.gateways.values() if g.announcing}
        assert announcing == {world.machine.owner}
        assert {c.type for c in world.machine.conditions} <= {"Damped"}


RandomWorld.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestRandomWorld = RandomWorld.TestCase
