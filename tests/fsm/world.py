"""A small world that obeys: edges and gateways as a leader sees them through etcd, without a clock of its own.

The leader's part is the real core. Agents are models: an edge goes through the real fence, then points where it is
told, or where its plan says; a gateway announces as it is told. What dies leaves its last report behind, as it does in
etcd, and an edge that cannot reach etcd is heard once it is back.
"""

from collections.abc import Mapping
from dataclasses import replace

from fsm import core
from fsm.conditions import observe
from fsm.desired import EDGE, NODE, Key, pool_desired
from fsm.evaluate import PoolView, next_event
from fsm.events import Event
from fsm.fence import Accepted, FenceState, Refused, accept, execute
from fsm.invariants import (
    Applied,
    EdgeSnapshot,
    PrefixSnapshot,
    epochs_have_one_owner,
    epochs_rise,
    never_backwards,
    one_command,
    one_path,
    plan_faults,
    plans_keep_their_numbers,
)
from fsm.records import (
    EdgeGatewaySpec,
    EdgePool,
    EdgePoolReport,
    EdgeReport,
    EdgeSpec,
    GatewayDrain,
    HistoryEntry,
    NodePool,
    NodePoolReport,
    NodeReport,
    Plan,
    PoolRecord,
    PoolSpec,
)
from fsm.types import Heartbeat, Instant
from fsm.witness import GatewayView, Sight, World, view_gateway
from orchestrator.store.records import decode, encode
from tests.fsm.model_machines import ModelEdge, ModelGateway

POOL = "web"
PREFIXES = ("192.0.2.0/26",)
STALE_S, EXPIRED_S = 1.0, 3.0


class ModelWorld:
    """All of it. `think` is one look of the leader, `obey` lets agents do what they are told, `tick` passes time."""

    def __init__(self, gateways: tuple[str, ...] = ("gw-a", "gw-b"), edges: tuple[str, ...] = ("edge-1",)) -> None:
        self.now_s = 1000.0
        self.counter = 0
        self.revision = 1
        self.leader, self.term = "orchestrator-1", 1
        self.group = EdgeGatewaySpec(
            name="group",
            edges=tuple(EdgeSpec(name, "203.0.113.1", 64512) for name in edges),
            gateways=gateways,
            gateway_asn=64513,
            slots={name: slot for slot, name in enumerate(gateways)},
            edge_numbers={name: number for number, name in enumerate(edges)},
        )
        self.spec: PoolSpec = PoolSpec(POOL, "192.0.2.0/24", PREFIXES, "group")
        self.gateways = {name: ModelGateway(name) for name in gateways}
        self.edges = {name: ModelEdge(name) for name in edges}
        self.drains: dict[str, GatewayDrain] = {}
        self.record: PoolRecord | None = None
        self.forgotten = False
        self.history: list[HistoryEntry] = []
        self.desired: dict[Key, EdgePool | NodePool] = {}
        self.desired_revision: dict[Key, int] = {}
        self.applied: list[Applied] = []
        self.armed: dict[int, Plan] = {}
        """Every plan that an edge was ever told, by its number."""
        self.last_step: core.Step | None = None
        self._watch()

    # ---- what the leader sees --------------------------------------------------------------------------------------

    def _sight(self, alive: bool, lost_s: float | None, fresh_since_s: float = 0.0) -> Sight:
        if alive or lost_s is None:
            return Sight(Heartbeat.FRESH, 0.0, fresh_since_s)
        age_s = self.now_s - lost_s
        if age_s < STALE_S:
            return Sight(Heartbeat.FRESH, age_s, fresh_since_s)
        return Sight(Heartbeat.STALE if age_s < EXPIRED_S else Heartbeat.EXPIRED, age_s, fresh_since_s)

    def world(self) -> World:
        return World(
            edges={
                e.name: replace(self._sight(e.reachable, e.lost_s, e.fresh_since_s), record=e.registered())
                for e in self.edges.values()
            },
            nodes={g.name: self._sight(g.alive, g.lost_s) for g in self.gateways.values()},
            edge_reports={e.name: EdgeReport("1", dict(e.witnesses), "up") for e in self.edges.values()},
            node_reports={
                g.name: NodeReport("1", True, (), g.lan_targets, len(g.lan), g.leaving, lan_answering=g.lan)
                for g in self.gateways.values()
            },
            drains=self.drains,
        )

    def views(self) -> Mapping[str, GatewayView]:
        world = self.world()
        return {name: view_gateway(name, self.group, world) for name in self.group.gateways}

    def view(self) -> PoolView:
        world = self.world()
        return PoolView(
            now_s=self.now_s,
            spec=self.spec,
            group=self.group,
            gateways=self.views(),
            edges=world.edges,
            edge_reports={e.name: e.report for e in self.edges.values() if e.report is not None},
            node_reports={g.name: g.report for g in self.gateways.values() if g.report is not None},
            ready_since_s={g.name: g.good_since_s for g in self.gateways.values()},
            orders={
                name: (command, self.desired_revision[role, name])
                for (role, name), command in self.desired.items()
                if isinstance(command, EdgePool)
            },
        )

    # ---- the leader ------------------------------------------------------------------------------------------------

    def instant(self) -> Instant:
        return Instant(self.now_s, int(self.now_s * 1000))

    def think(self, first: Event | None = None) -> core.Step:
        """One look: settle, commit. `first` is an operator's event."""
        if self.forgotten:
            raise AssertionError("the machine is forgotten")
        before = self.record or core.new_pool(POOL, self.instant(), self.leader, self.term)
        view, events = self.view(), iter([first] if first else [])

        def following(record: PoolRecord) -> Event | None:
            asked = next(events, None)
            event = asked or next_event(record, view)
            if event is not None and event is not asked:
                ignored = core.handle(record, event, self.instant(), self.counter).ignored
                assert not ignored, f"{event.name} in {record.state} would hide all that is less urgent: {ignored}"
            return event

        taken = core.resume(before, self.instant(), self.leader, self.term)
        step = core.settle(taken, following, self.instant(), self.counter)
        self.last_step, self.counter = step, step.epoch_counter
        self.history += step.entries
        self.forgotten = step.forgotten
        self.record = observe(step.record, view)
        self._publish()
        return step

    def _publish(self) -> None:
        """Write desired state, each key with the revision of its last change."""
        record = self.machine
        wanted = {} if self.forgotten else pool_desired(record, self.spec, self.group)
        self.revision += 1
        for key, value in wanted.items():
            if self.desired.get(key) != value:
                self.desired_revision[key] = self.revision
                self.armed |= {plan.epoch: plan for plan in value.plan} if isinstance(value, EdgePool) else {}
        self.desired = dict(wanted)

    def another_leads(self, name: str = "orchestrator-2") -> None:
        """It takes over what the store holds; it may be the one that led before, started anew."""
        if not self.forgotten and self.record is not None:
            self.record = decode(encode(self.record), PoolRecord)
        self.leader, self.term = name, self.term + 1

    @property
    def machine(self) -> PoolRecord:
        assert self.record is not None, "the leader has not looked yet"
        return self.record

    @property
    def state(self) -> str:
        return self.machine.state

    # ---- the agents ------------------------------------------------------------------------------------------------

    def obey(self, *only: str) -> None:
        """Every agent that lives (or those named) does what it is told and reports what came of it."""
        for gateway in self.gateways.values():
            if gateway.alive and gateway.obedient and (not only or gateway.name in only):
                self._obey_node(gateway)
        for edge in self.edges.values():
            if edge.reachable and (not only or edge.name in only):
                self._obey_edge(edge)
        self._watch()

    def _obey_node(self, gateway: ModelGateway) -> None:
        command = self.desired.get((NODE, gateway.name))
        if not isinstance(command, NodePool):
            gateway.announcing, gateway.report, gateway.applied = False, None, None
            return
        if command != gateway.applied:
            self.applied += [Applied(gateway.name, prefix, command.epoch) for prefix in command.prefixes]
        gateway.announcing, gateway.applied = command.announce, command
        gateway.report = NodePoolReport(command.epoch, command.announce, True)

    def _obey_edge(self, edge: ModelEdge) -> None:
        """What it is told, and then what its plan says, should there be reason to."""
        key = (EDGE, edge.name)
        command = self.desired.get(key)
        if not isinstance(command, EdgePool):
            edge.report = edge.unsaid = None
            return
        after = accept(edge.fence, POOL, command, self.desired_revision[key])
        if isinstance(after, Refused):
            taken = edge.fence.pools.get(POOL)
            if taken is None or not (after.stale and taken.executed):
                edge.refusals.append(after.reason)
                return
        elif not edge.fence.floor and self.desired_revision[key] <= edge.born_revision:
            return  # it was not meant for this edge, which has no past
        else:
            edge.fence = after
        self._apply(edge)
        self._carry_out_plan(edge)

    def _apply(self, edge: ModelEdge) -> None:
        """Make the kernel what the fence accepted last, and say so."""
        taken = edge.fence.pools[POOL]
        command, at_once = taken.command, edge.at_once or taken.executed or taken.command.planned
        if not edge.stuck:
            self.applied += [Applied(edge.name, prefix, command.epoch) for prefix in command.prefixes]
            half_way = not at_once and command.owner is not None and edge.points_at not in (command.owner, None)
            edge.points_at = None if half_way else command.owner
        edge.unsaid = self._told_of(edge, taken)
        if edge.reachable and not edge.late:
            edge.report = edge.unsaid

    def _told_of(self, edge: ModelEdge, taken: Accepted) -> EdgePoolReport:
        command = taken.command
        return EdgePoolReport(
            epoch=command.epoch,
            owner=command.owner,
            withdrawn=not edge.stuck,
            installed=not edge.stuck and command.owner is not None and edge.points_at == command.owner,
            removed=not edge.stuck and command.deleted,
            executed_plan=command.epoch if taken.executed else None,
            armed_plan=next((plan.epoch for plan in command.plan if plan.base == command.epoch), None),
            carried_out=taken.carried_out,
            revision=taken.mod_revision,
            phases_ms={"detect": 1.0} if taken.executed else {},
            error="the kernel refuses" if edge.stuck else "",
        )

    def act(self, *only: str) -> None:
        """Edges (or those named) do what their plans say, whether they reach etcd or not."""
        for edge in self.edges.values():
            if not only or edge.name in only:
                self._carry_out_plan(edge)
        self._watch()

    def hear(self) -> None:
        """What edges had to say arrives."""
        for edge in self.edges.values():
            edge.late = False
            if edge.reachable:
                edge.report = edge.unsaid
        self._watch()

    def _carry_out_plan(self, edge: ModelEdge) -> None:
        """The owner's session is down and its probe fails, the target is up and passes: one plan after the other."""
        while (taken := edge.fence.pools.get(POOL)) is not None:
            command = taken.command
            plan = next((plan for plan in command.plan if plan.base == command.epoch), None)
            owner, target = self.gateways.get(command.owner or ""), self.gateways.get(plan.target if plan else "")
            if plan is None or owner is None or target is None:
                return
            seen = [edge.witness(gateway, self.now_s) for gateway in (owner, target)]
            if [(w.session, w.probe) for w in seen] != [("down", "failing"), ("up", "passing")]:
                return
            edge.fence = execute(edge.fence, POOL)
            edge.executed.append(plan.epoch)
            self._apply(edge)

    def _watch(self) -> None:
        """Edges that live see sessions, probes and announcements as they are."""
        for edge in self.edges.values():
            if not edge.reachable:
                continue
            edge.witnesses = {g.name: edge.witness(g, self.now_s) for g in self.gateways.values()}
            if edge.report is not None:
                up = (g for g in self.gateways.values() if edge.witnesses[g.name].session == "up")
                heard = tuple(g.name for g in up if g.announcing)
                edge.report = replace(edge.report, announced_by=heard)

    # ---- time and faults -------------------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self._watch()

    def power_cut(self, name: str) -> None:
        gateway = self.gateways[name]
        gateway.powered, gateway.announcing, gateway.applied = False, False, None
        gateway.lost_s = self.now_s if gateway.lost_s is None else gateway.lost_s
        self._watch()

    def power_on(self, name: str) -> None:
        """It comes back empty: its announcement file lived on tmpfs."""
        self.gateways[name] = ModelGateway(name, good_since_s=self.now_s)
        self._watch()

    def bird_kill(self, name: str) -> None:
        self.gateways[name].bird = False
        self._watch()

    def bird_start(self, name: str) -> None:
        self.gateways[name].bird, self.gateways[name].good_since_s = True, self.now_s
        self._watch()

    def path_cut(self, name: str) -> None:
        self.gateways[name].path = False
        self._watch()

    def path_heal(self, name: str) -> None:
        self.gateways[name].path, self.gateways[name].good_since_s = True, self.now_s
        self._watch()

    def link_cut(self, edge: str, gateway: str) -> None:
        """Between these two alone."""
        self.edges[edge].cut_off.add(gateway)
        self._watch()

    def link_heal(self, edge: str, gateway: str) -> None:
        self.edges[edge].cut_off.discard(gateway)
        self.edges[edge].healed_s[gateway] = self.now_s
        self._watch()

    def agent_kill(self, name: str) -> None:
        self.gateways[name].agent, self.gateways[name].lost_s = False, self.now_s

    def agent_start(self, name: str) -> None:
        self.gateways[name].agent, self.gateways[name].lost_s = True, None

    def edge_lost(self, name: str) -> None:
        self.edges[name].reachable, self.edges[name].lost_s = False, self.now_s

    def edge_forgets(self, name: str) -> None:
        """Its disk is lost; its kernel stands as it did. Its lease is another one: what it had reported is gone."""
        edge = self.edges[name]
        edge.fence, edge.report, edge.unsaid = FenceState(), None, None
        edge.instance, edge.born_revision = edge.instance + 1, self.revision
        self._watch()

    def edge_back(self, name: str) -> None:
        edge = self.edges[name]
        edge.reachable, edge.lost_s, edge.fresh_since_s = True, None, self.now_s
        edge.report = edge.unsaid or edge.report
        self._watch()

    def drain(self, name: str) -> None:
        self.drains[name] = GatewayDrain(name, "maintenance", "operator")

    def undrain(self, name: str) -> None:
        del self.drains[name]

    def hold(self, reason: str = "hold by operator") -> None:
        self.record = replace(self.machine, hold_request=reason)

    def release(self) -> None:
        self.record = replace(self.machine, hold_request="")

    def delete(self) -> None:
        self.spec = replace(self.spec, deleted=True)

    # ---- running ---------------------------------------------------------------------------------------------------

    def run(self, seconds: float = 0.0, step_s: float = 0.25) -> None:
        """Leader and agents take turns until nothing changes, then time passes in steps, and so on."""
        end = self.now_s + seconds
        while True:
            self._quiesce()
            if self.now_s >= end or self.forgotten:
                return
            self.tick(min(step_s, end - self.now_s))

    def _quiesce(self) -> None:
        for _ in range(40):
            if self.forgotten:
                return
            step = self.think()
            before = self.reports()
            self.obey()
            if not step.entries and self.reports() == before:
                return
        raise AssertionError(f"no quiet: {[(e.from_state, e.event, e.to_state) for e in self.history[-8:]]}")

    def reports(self) -> tuple[object, ...]:
        return (*(e.report for e in self.edges.values()), *(g.report for g in self.gateways.values()))

    def snapshots(self) -> list[EdgeSnapshot]:
        """Each edge as its kernel stands, for S1. The model has no linger. One whose kernel refuses says so itself."""
        return [
            EdgeSnapshot(
                edge.name,
                {
                    prefix: PrefixSnapshot(
                        sends_to=(edge.points_at,) if edge.points_at else (),
                        accepts_from=(edge.points_at,) if edge.points_at else (),
                        epoch=taken.command.epoch,
                        owner=taken.command.owner,
                    )
                    for prefix in taken.command.prefixes
                },
            )
            for edge in self.edges.values()
            if not (edge.unsaid and edge.unsaid.error) and (taken := edge.fence.pools.get(POOL)) is not None
        ]

    def violations(self) -> list[str]:
        """What of S1 and S2 does not hold now."""
        found = [text for edge in self.snapshots() for text in one_path(edge)]
        found += one_command({agent: w for (_, agent), w in self.desired.items() if isinstance(w, EdgePool)})
        found += [*epochs_have_one_owner({POOL: self.history}), *epochs_rise(POOL, self.history)]
        found += [text for w in self.desired.values() if isinstance(w, EdgePool) for text in plan_faults(w)]
        found += plans_keep_their_numbers(self.armed.values(), self.history)
        found += never_backwards(self.applied)
        return found + [text for edge in self.edges.values() for text in edge.refusals]

    def states(self, since: int = 0) -> list[str]:
        """States entered, in order, from that entry of the history on."""
        return [entry.to_state for entry in self.history[since:] if entry.to_state != entry.from_state]


def settled(*, gateways: tuple[str, ...] = ("gw-a", "gw-b"), edges: tuple[str, ...] = ("edge-1",)) -> ModelWorld:
    """A world whose pool stands in ActiveHealthy with a ready standby, and with one edge, which has a plan."""
    world = ModelWorld(gateways, edges)
    world.run(seconds=1.0)
    assert world.state == "ActiveHealthy", world.history
    return world
