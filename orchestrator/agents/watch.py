"""The edge's word on each gateway: its session, and the probes through its tunnel, one for each family in use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dataplane.probe import Prober, ProbeState
from dataplane.probe_window import Judgement
from fsm.ports import Clock
from fsm.records import AgentBase, GatewayWitness, Tunnel
from fsm.types import PROBE_UNFIT_AFTER
from orchestrator.agents import edge_state as project
from orchestrator.agents.sessions import Sessions
from orchestrator.config.edge_agent import EdgeAgentConfig

GRACE_MISSES = 100
"""So many questions may go unanswered before IPv6 that was never answered counts: the other end is being set up."""

_WORDS = ("passing", "doubtful", "unknown", "failing")
"""From the best to the worst."""

W = TypeVar("W", bound=str)


def worst(states: Sequence[ProbeState]) -> ProbeState:
    """A gateway's word from those of its families, IPv4 first: the worst, since its pools move as a whole.

    IPv6 that has never been answered does not count for a while, but keeps the gateway from being settled: when a
    group's first IPv6 pool comes, its gateways get their addresses a moment after the edge begins to ask.
    """
    if len(states) == 1:
        return states[0]
    counted = [states[0], *(state for state in states[1:] if _speaks(state.judgement))]
    judgements = [state.judgement for state in counted]
    answered = [judgement.last_answered_s for judgement in judgements if judgement.last_answered_s is not None]
    trips = [judgement.round_trip_s for judgement in judgements if judgement.round_trip_s is not None]
    return ProbeState(
        Judgement(
            word=_worst([judgement.word for judgement in judgements]),
            missed=max(judgement.missed for judgement in judgements),
            good=min(judgement.good for judgement in judgements),
            settled=all(state.judgement.settled for state in states),
            last_answered_s=min(answered) if len(answered) == len(judgements) else None,
            round_trip_s=max(trips, default=None),
        ),
        full_size=_worst([state.full_size for state in counted]),
        send_errno=next((state.send_errno for state in counted if state.send_errno), 0),
    )


def worst_family(states: Sequence[ProbeState]) -> str:
    """The family whose word the worst is, IPv4 first; empty where they say the same."""
    words = [state.word for state in states]
    return "" if len(set(words)) == 1 else ("IPv4", "IPv6")[words.index(_worst(words))]


def _speaks(judgement: Judgement) -> bool:
    return judgement.last_answered_s is not None or judgement.missed >= GRACE_MISSES


def _worst(words: Sequence[W]) -> W:
    return max(words, key=_WORDS.index)


@dataclass(frozen=True)
class _Question:
    """What a prober was made with: with anything else it is another one."""

    device: str
    source: str
    destination: str
    interval_ms: int
    mtu: int


class Watch:
    """Probers for each tunnel, beside the sessions. `on_change` is called when a probe's word changes."""

    def __init__(
        self, config: EdgeAgentConfig, clock: Clock, sessions: Sessions, on_change: Callable[[ProbeState], None]
    ) -> None:
        self._config, self._clock, self._sessions, self._on_change = config, clock, sessions, on_change
        self._probers: dict[str, dict[_Question, Prober]] = {}
        """By gateway; IPv4 first."""

    def follow(self, base: AgentBase) -> None:
        """Probe exactly these tunnels; what is right already goes on undisturbed."""
        tunnels: Mapping[str, Tunnel] = project.by_gateway(base)
        wanted = {name: self._questions(tunnel, base) for name, tunnel in tunnels.items()}
        before, self._probers = self._probers, {}
        for name, questions in wanted.items():
            known = before.get(name, {})
            self._probers[name] = {q: known.pop(q) if q in known else self._start(q) for q in questions}
        for gone in before.values():
            for prober in gone.values():
                prober.close()

    def _questions(self, tunnel: Tunnel, base: AgentBase) -> list[_Question]:
        device = project.device_name(self._config, tunnel)
        interval_ms = base.probe_interval_ms
        return [_Question(device, source, to, interval_ms, base.mtu) for source, to in project.probed(tunnel)]

    def _start(self, question: _Question) -> Prober:
        prober = Prober(
            device=question.device,
            source=question.source,
            destination=question.destination,
            interval_ms=question.interval_ms,
            clock=self._clock,
            on_change=self._on_change,
            mtu=question.mtu,
        )
        prober.start()
        return prober

    def probe(self, gateway: str | None) -> ProbeState | None:
        """What the probes say right now; None without a tunnel."""
        states = self._states(gateway)
        return worst(states) if states else None

    def _states(self, gateway: str | None) -> list[ProbeState]:
        """Of each family, IPv4 first."""
        return [prober.evaluate() for prober in self._probers.get(gateway or "", {}).values()]

    def probes(self, gateways: Iterable[str]) -> dict[str, ProbeState | None]:
        """What the probes of several gateways say right now."""
        return {gateway: self.probe(gateway) for gateway in gateways}

    def passes(self, gateway: str) -> bool:
        """Whether its probes pass right now."""
        state = self.probe(gateway)
        return state is not None and state.word == "passing"

    def witness(self, gateway: str) -> GatewayWitness:
        """Session and probes of a gateway, as the leader is told."""
        session, reason = self._sessions.word(gateway, self.passes)
        states = self._states(gateway)
        if not states:
            return GatewayWitness(session, reason=reason)
        state = worst(states)
        return GatewayWitness(
            session=session,
            probe=state.word,
            missed=min(state.judgement.missed, PROBE_UNFIT_AFTER),
            settled=state.judgement.settled,
            full_size=state.full_size,
            reason=reason,
            family=worst_family(states),
        )

    def close(self) -> None:
        """Stop probing."""
        for probers in self._probers.values():
            for prober in probers.values():
                prober.close()
