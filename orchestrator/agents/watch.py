"""The edge's word on each gateway: its session, and the probe through its tunnel."""

import asyncio
from collections.abc import Callable, Mapping

from dataplane.probe import Prober, ProbeState
from fsm.ports import Clock
from fsm.records import AgentBase, GatewayWitness, Tunnel
from fsm.types import PROBE_UNFIT_AFTER
from orchestrator.agents import edge_state as project
from orchestrator.agents.sessions import Sessions
from orchestrator.config.edge_agent import EdgeAgentConfig


class Watch:
    """A prober for each tunnel, beside the sessions. `on_change` is called when a probe's word changes."""

    def __init__(
        self, config: EdgeAgentConfig, clock: Clock, sessions: Sessions, on_change: Callable[[ProbeState], None]
    ) -> None:
        self._config, self._clock, self._sessions, self._on_change = config, clock, sessions, on_change
        self._probers: dict[str, tuple[Tunnel, Prober, asyncio.Task[None]]] = {}

    def follow(self, base: AgentBase) -> None:
        """Probe exactly these tunnels; what is right already goes on undisturbed."""
        tunnels: Mapping[str, Tunnel] = project.by_gateway(base)
        for name, (tunnel, _, task) in list(self._probers.items()):
            if tunnels.get(name) != tunnel:
                task.cancel()
                del self._probers[name]
        for name, tunnel in tunnels.items():
            if name not in self._probers:
                prober = Prober(
                    device=project.device_name(self._config, tunnel),
                    source=project.probe_source(tunnel),
                    destination=tunnel.probe_ipv4,
                    interval_ms=base.probe_interval_ms,
                    clock=self._clock,
                    on_change=self._on_change,
                    mtu=base.mtu,
                )
                task = asyncio.create_task(prober.run(), name=f"probe {name}")
                self._probers[name] = (tunnel, prober, task)

    def probe(self, gateway: str | None) -> ProbeState | None:
        """What the probe says right now; None without a tunnel."""
        entry = self._probers.get(gateway or "")
        return entry[1].evaluate() if entry else None

    def passes(self, gateway: str) -> bool:
        """Whether its probe passes right now."""
        state = self.probe(gateway)
        return state is not None and state.word == "passing"

    def witness(self, gateway: str) -> GatewayWitness:
        """Session and probe of a gateway, as the leader is told."""
        session, reason = self._sessions.word(gateway, self.passes)
        state = self.probe(gateway)
        if state is None:
            return GatewayWitness(session, reason=reason)
        return GatewayWitness(
            session=session,
            probe=state.word,
            missed=min(state.judgement.missed, PROBE_UNFIT_AFTER),
            settled=state.judgement.settled,
            full_size=state.full_size,
            reason=reason,
        )

    def close(self) -> None:
        """Stop probing."""
        for _, _, task in self._probers.values():
            task.cancel()
