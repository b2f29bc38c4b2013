"""Random worlds: whatever breaks in whatever order, S1 and S2 hold; once faults stop, every pool comes to rest (L1)."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fsm.desired import edge_pool
from fsm.evaluate import candidates, next_event
from fsm.events import Event, PoolEvent
from fsm.pool import DEADLINES_MS
from fsm.types import PoolState
from tests.fsm.model_machines import SETTLE_S
from tests.fsm.plan_accounts import untold_plans
from tests.fsm.world import ModelWorld

S, E = PoolState, PoolEvent
GATEWAYS = ("gw-a", "gw-b", "gw-c")
gateways = st.sampled_from(GATEWAYS)
edges = st.sampled_from(("edge-1", "edge-2"))
OWNED = (S.ACTIVE_HEALTHY, S.FAILURE_DETECTED, S.WITHDRAWN, S.PEER_UPDATED, S.STANDBY_ADVERTISING, S.DRAINING)
LIVENESS_S = sum(limit or 0 for state, limit in DEADLINES_MS.items() if state != S.TERMINATING) / 1000 + SETTLE_S


class RandomWorld(RuleBasedStateMachine):
    """Faults, orders, and turns of leader and agents, one at a time; edges act alone while the leader sleeps."""

    world: ModelWorld
    read: int
    newest: int

    @initialize(count=st.sampled_from((1, 2)), at_once=st.booleans())
    def begin(self, count: int, at_once: bool) -> None:
        self.world = ModelWorld(GATEWAYS, ("edge-1", "edge-2")[:count])
        for edge in self.world.edges.values():
            edge.at_once = at_once
        self.world.run(1)
        self.read, self.newest = 0, 0

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

    @rule(edge=edges, name=gateways)
    def link(self, edge: str, name: str) -> None:
        """Between one edge and one gateway, as long as there is another edge."""
        if len(self.world.edges) < 2:
            return
        if name in self.world.edges[edge].cut_off:
            self.world.link_heal(edge, name)
        else:
            self.world.link_cut(edge, name)

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
    def disk_of_an_edge(self, name: str) -> None:
        """It is lost, and what the edge knew with it; the leader hears of it when the edge is back."""
        if name in self.world.edges:
            self.world.edge_forgets(name)

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

    @rule(name=gateways)
    def move(self, name: str) -> None:
        record = self.world.machine
        if record.state in (S.ACTIVE_HEALTHY, S.IDLE) and name in candidates(
            record, self.world.view(), (record.owner,)
        ):
            self.world.think(Event(E.MOVE_WANTED, "move by operator", target=name))

    @rule()
    def usage(self) -> None:
        name = E.BECAME_EMPTY if self.world.machine.announce else E.BECAME_USED
        self.world.think(Event(name, "as seen"))

    @rule(name=gateways)
    def membership(self, name: str) -> None:
        """A gateway leaves its group, whoever it is, or joins again; one always stays."""
        group = self.world.group
        left = tuple(g for g in GATEWAYS if (g in group.gateways) != (g == name))
        self.world.group = replace(group, gateways=left or GATEWAYS)

    @rule(count=st.integers(1, 2))
    def addresses(self, count: int) -> None:
        prefixes = ("192.0.2.0/26", "192.0.2.64/26")[:count]
        self.world.spec = replace(self.world.spec, addresses=prefixes)

    @rule()
    def leader_change(self) -> None:
        self.world.another_leads()

    # ---- turns -----------------------------------------------------------------------------------------------------

    @rule()
    def look(self) -> None:
        self.world.think()

    @rule(name=st.sampled_from((*GATEWAYS, "edge-1", "edge-2")))
    def one_agent(self, name: str) -> None:
        self.world.obey(name)

    @rule()
    def all_agents(self) -> None:
        self.world.obey()

    @rule(name=edges)
    def plan(self, name: str) -> None:
        """It acts by itself if there is reason to, whether it reaches the store or not."""
        self.world.act(name)

    @rule(name=edges)
    def reports_on_their_way(self, name: str) -> None:
        """What it says of pools arrives later, or does so now."""
        edge = self.world.edges.get(name)
        if edge is not None and edge.late:
            self.world.hear()
        elif edge is not None:
            edge.late = True

    @rule(times=st.integers(1, 3), back=st.booleans())
    def failures_while_nobody_leads(self, times: int, back: bool) -> None:
        """Whoever carries the pool dies, and the edges act at once, again and again; one may be back before a look."""
        for _ in range(times):
            name = self.world.edges["edge-1"].points_at
            if name is None:
                return
            self.world.power_cut(name)
            self.world.act()
            if back:
                self.world.power_on(name)

    @rule()
    def calm(self) -> None:
        """All gateways work, and there is time to come to rest and to arm, as far as orders and edges let it."""
        for name, gateway in self.world.gateways.items():
            if not (gateway.powered and gateway.bird and gateway.path and gateway.alive):
                self.world.power_on(name)
            self.world.gateways[name].obedient = True
            for edge in self.world.edges:
                self.world.link_heal(edge, name)
        self.world.run(4, step_s=0.5)

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
    def no_number_is_handed_out_twice(self) -> None:
        new = self.world.history[self.read :]
        self.read = len(self.world.history)
        for entry in new:
            if entry.epoch != self.newest:
                assert entry.epoch > self.newest, f"epoch {entry.epoch} after {self.newest}"
                self.newest = entry.epoch
        assert self.world.counter >= self.newest

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def nothing_is_withdrawn_without_a_target(self) -> None:
        record = self.world.machine
        if record.state in OWNED:
            assert edge_pool(record, self.world.spec).owner is not None, record
            assert (record.target is not None) == (record.state in (S.FAILURE_DETECTED, S.WITHDRAWN, S.DRAINING))
        if record.state in (S.HELD, S.STRANDED):
            assert record.target is None

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def no_edge_of_several_has_a_plan(self) -> None:
        if len(self.world.edges) > 1:
            assert not self.world.machine.plan and not self.world.armed

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def an_edge_ahead_is_adopted_at_the_next_look(self) -> None:
        """What follows from an edge that is ahead is its adoption, unless the pool is being deleted."""
        world = self.world
        ahead = [e for e in world.edges.values() if e.report and (e.report.executed_plan or 0) > world.machine.epoch]
        if ahead:
            following = next_event(world.machine, world.view())
            assert following is not None and following.name == E.PLAN_EXECUTED, (world.machine, following)

    def _records_tell_the_edges_truth(self) -> None:
        """At rest: same number, same owner, no plan unadopted, and the plan of the record armed where there is one."""
        record = self.world.machine
        armed = record.plan[0].epoch if record.plan else None
        for edge in self.world.edges.values():
            report = edge.report
            assert report is not None and (report.epoch, report.owner) == (record.epoch, record.owner)
            assert report.executed_plan is None and report.armed_plan == armed
        adopted = [e.epoch for e in self.world.history if e.event == E.PLAN_EXECUTED]
        assert len(adopted) == len(set(adopted)), "adopted once"
        assert untold_plans(self.world) == []

    def teardown(self) -> None:
        """L1: faults stop, and the pool is at rest within the sum of the deadlines."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.drains.clear()
        world.group = replace(world.group, gateways=GATEWAYS)
        if world.machine.hold_request:
            world.release()
        world.hear()
        for edge in world.edges.values():
            edge.stuck = False
            for name in GATEWAYS:
                world.link_heal(edge.name, name)
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
        if not world.machine.announce:
            world.think(Event(E.BECAME_USED, "as seen"))
            world.run(1)
        assert world.violations() == []
        assert world.state == S.ACTIVE_HEALTHY, world.machine
        assert {edge.points_at for edge in world.edges.values()} == {world.machine.owner}
        assert world.machine.addresses == world.spec.addresses
        self._records_tell_the_edges_truth()
        announcing = {g.name for g in world.gateways.values() if g.announcing}
        assert announcing == {world.machine.owner}
        assert {c.type for c in world.machine.conditions} <= {"Damped"}
        world.delete()
        world.run(1)
        assert world.forgotten and {edge.points_at for edge in world.edges.values()} == {None}


RandomWorld.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestRandomWorld = RandomWorld.TestCase
