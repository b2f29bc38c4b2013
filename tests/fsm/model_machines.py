"""Gateways and edges of a model world: what works of them, what they did, and what they said last."""

from dataclasses import dataclass, field, replace

from fsm.fence import FenceState
from fsm.records import AgentRecord, EdgePoolReport, GatewayWitness, NodePool, NodePoolReport
from fsm.types import PROBE_UNFIT_AFTER

SETTLE_S = 2.5
"""Fifty answered probes, 50 ms apart."""


@dataclass
class ModelGateway:
    """A gateway: what works of it, and what its agent reported last."""

    name: str
    powered: bool = True
    bird: bool = True
    path: bool = True
    agent: bool = True
    obedient: bool = True
    """Its agent does what it is told; if not, it only lives."""
    lan_targets: int = 1
    lan: tuple[str, ...] = ("10.10.0.13",)
    """Nodes on the cluster LAN that answer it."""
    leaving: bool = False
    good_since_s: float = 0.0
    lost_s: float | None = None
    announcing: bool = False
    applied: NodePool | None = None
    report: NodePoolReport | None = None

    @property
    def alive(self) -> bool:
        return self.powered and self.agent

    @property
    def session(self) -> str:
        return "up" if self.powered and self.bird else "down"

    @property
    def passes(self) -> bool:
        return self.powered and self.path

    def witness(self, now_s: float) -> GatewayWitness:
        good = self.session == "up" and self.passes
        return GatewayWitness(
            session=self.session,
            probe="passing" if self.passes else "failing",
            missed=0 if self.passes else PROBE_UNFIT_AFTER,
            settled=good and now_s >= self.good_since_s + SETTLE_S,
        )


@dataclass
class ModelEdge:
    """An edge: its fence, whom its route points at, and its report. `at_once`: withdraws and installs in one go.

    `unsaid` is its newest word, whether it reached etcd or not; `executed` the numbers of the plans it carried out.
    """

    name: str
    reachable: bool = True
    at_once: bool = True
    stuck: bool = False
    """Its agent lives and reports, but the kernel refuses what it asks."""
    late: bool = False
    """Its reports of pools are under way: `hear` brings them."""
    lost_s: float | None = None
    fresh_since_s: float = 0.0
    instance: int = 1
    born_revision: int = 0
    """It came without a past when the store stood there: what was written before is not meant for it."""
    fence: FenceState = field(default_factory=FenceState)
    points_at: str | None = None
    report: EdgePoolReport | None = None
    unsaid: EdgePoolReport | None = None
    executed: list[int] = field(default_factory=list)
    witnesses: dict[str, GatewayWitness] = field(default_factory=dict)
    cut_off: set[str] = field(default_factory=set)
    """Gateways to which its own link is cut; others may reach them."""
    healed_s: dict[str, float] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    def witness(self, gateway: ModelGateway, now_s: float) -> GatewayWitness:
        """What it sees of that gateway through its own link."""
        if gateway.name in self.cut_off:
            return GatewayWitness("down", "failing", PROBE_UNFIT_AFTER)
        seen = gateway.witness(now_s)
        return replace(seen, settled=seen.settled and now_s >= self.healed_s.get(gateway.name, 0.0) + SETTLE_S)

    def registered(self) -> AgentRecord:
        """As it stands in the store."""
        incarnation = f"i-{self.instance}@{self.born_revision}"
        return AgentRecord(self.name, "edge", f"i-{self.instance}", "1", "key", incarnation=incarnation)
