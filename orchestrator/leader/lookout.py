"""One look at the world: every gateway judged, and what matters to each pool put together for the core."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from fsm.evaluate import PoolView
from fsm.types import PARTIAL_AFTER_MS, SUSPECT_MOVE_AFTER_MS, Heartbeat
from fsm.witness import GatewayView, view_gateway
from orchestrator.leader.knowledge import Knowledge

_NO_EVIDENCE: Mapping[str, str] = {}


class Lookout:
    """Remembers the last look, so that the next one can say which pools it concerns."""

    def __init__(self, knowledge: Knowledge, mirror_age_s: Callable[[float], float]) -> None:
        """`mirror_age_s` gives, for an instant, how long ago the mirror was known to be current."""
        self._known, self._mirror_age_s = knowledge, mirror_age_s
        self._gateways: dict[str, dict[str, GatewayView]] = {}
        self._looks: dict[str, dict[str, GatewayView]] = {}
        """What of each gateway has to differ for its group's pools to be looked at."""
        self._serving: dict[str, set[str]] = {}
        """Through which gateways packets pass, which only pools on their way wait for."""
        self._edges: dict[str, tuple[Heartbeat, ...]] = {}
        self._ready_since_s: dict[str, float] = {}
        self._partial_since_s: dict[str, float] = {}
        self._seen_s = 0.0
        """Up to when the mirror was current, at the last look."""

    def look(self, now: float) -> set[str]:
        """Judge every gateway afresh; returns the pools of groups where something differs from the last look.

        Ages count up to the instant at which the mirror was last current: a store that is silent makes nobody old.
        """
        self._seen_s = max(now - max(0.0, self._mirror_age_s(now)), 0.0)
        world = self._known.world(self._seen_s)
        moved: set[str] = set()
        for group in self._known.groups().values():
            views = {g: self._lasting(view_gateway(g, group, world), now) for g in group.gateways}
            looks = {name: _look(view) for name, view in views.items()}
            edges = tuple(world.edges[e.name].heartbeat for e in group.edges)
            for view in views.values():
                if view.ready:
                    self._ready_since_s.setdefault(view.name, now)
                else:
                    self._ready_since_s.pop(view.name, None)
            serving = {name for name, view in views.items() if view.serves}
            if serving != self._serving.get(group.name):
                moved |= self._known.timed.keys()
                self._serving[group.name] = serving
            if looks != self._looks.get(group.name) or edges != self._edges.get(group.name):
                moved |= {n for n, spec in self._known.pool_specs().items() if spec.gateway_ref == group.name}
            self._gateways[group.name], self._edges[group.name] = views, edges
            self._looks[group.name] = looks
        return moved

    def _lasting(self, view: GatewayView, now: float) -> GatewayView:
        """Without a disagreement of its edges that has only just begun: a power cut must not wait for it to be told."""
        if not view.down_at:
            self._partial_since_s.pop(view.name, None)
        elif now - self._partial_since_s.setdefault(view.name, now) < PARTIAL_AFTER_MS / 1000:
            return replace(view, down_at=())
        return view

    def views(self, now: float, write_failed: bool, missing: Collection[str]) -> Mapping[str, PoolView]:
        """What matters to each pool, put together when it is asked for. `missing`: pools that the intent lacks."""
        stale, registered = self._known.stale_share(now)
        trouble = write_failed or (stale >= 2 and stale * 2 > registered)
        return _Views(self, now, trouble, missing)

    def names(self) -> set[str]:
        """Pools whose group is known: those that there is a view of."""
        groups = self._known.groups()
        return {name for name, spec in self._known.pool_specs().items() if spec.gateway_ref in groups}

    def view(self, name: str, now: float, trouble: bool, missing: Collection[str]) -> PoolView:
        """What matters to one pool. Raises KeyError for one that is unknown, or whose group is."""
        spec = self._known.pool_specs()[name]
        group = self._known.groups()[spec.gateway_ref]
        edges = [edge.name for edge in group.edges]
        return PoolView(
            now_s=now,
            spec=spec,
            group=group,
            gateways=self._gateways.get(group.name, {}),
            edges={e: self._known.sight("edge", e, self._seen_s) for e in edges},
            edge_reports=self._known.edge_pools(name, edges),
            node_reports=self._known.node_pools(name, group.gateways),
            orders=self._known.orders(name, edges),
            ready_since_s=self._ready_since_s,
            control_trouble=trouble,
            intent_missing=name in missing,
        )


def _look(view: GatewayView) -> GatewayView:
    """A gateway without what changes all the time: of an age only whether it is enough to act upon.

    One late answer makes a probe doubtful, on which no pool at rest depends: a thousand need not be looked at for it.
    """
    return replace(
        view, suspect_s=float(view.suspect_s * 1000 >= SUSPECT_MOVE_AFTER_MS), serves=False, evidence=_NO_EVIDENCE
    )


class _Views(Mapping[str, PoolView]):
    """A view for each pool, made anew at each question: most turns concern a few of a thousand."""

    def __init__(self, lookout: Lookout, now: float, trouble: bool, missing: Collection[str]) -> None:
        self._lookout, self._now, self._trouble, self._missing = lookout, now, trouble, missing

    def __getitem__(self, name: str) -> PoolView:
        return self._lookout.view(name, self._now, self._trouble, self._missing)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lookout.names())

    def __len__(self) -> int:
        return len(self._lookout.names())
