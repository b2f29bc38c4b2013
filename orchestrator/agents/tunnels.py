"""The edge's tunnels: an interface a gateway, each with its gateway's peer and a parking peer.

One that can't be made does not keep the others from being made.
"""

from collections.abc import Mapping

from dataplane.errors import DataplaneError
from dataplane.wireguard import PeerUpdate, WireGuard
from fsm.records import AgentBase, Tunnel
from orchestrator.agents import edge_state as project
from orchestrator.agents.steering import Lane
from orchestrator.config.edge_agent import EdgeAgentConfig


class Tunnels:
    """Keeps them as the base says. `lanes` are those that are there, `problems` say why others are not."""

    def __init__(
        self, config: EdgeAgentConfig, wireguard: WireGuard, parking_key: str, endpoints: Mapping[str, str]
    ) -> None:
        """`endpoints`: where each gateway was last heard from, as remembered from an earlier life."""
        self._config, self._wireguard, self._parking_key = config, wireguard, parking_key
        self.endpoints: Mapping[str, str] = endpoints
        self.lanes: Mapping[str, Lane] = {}
        self.problems: Mapping[str, str] = {}

    async def ensure(self, base: AgentBase) -> None:
        """Make every tunnel, and change only what differs. Prefixes of pools are not touched: steering has those."""
        lanes: dict[str, Lane] = {}
        problems: dict[str, str] = {}
        for name, tunnel in project.by_gateway(base).items():
            device = project.device_name(self._config, tunnel)
            lane = Lane(name, device, tunnel.public_key, project.own_prefixes(tunnel))
            try:
                await self._ensure(base, tunnel, lane)
                lanes[name] = lane
            except DataplaneError as error:
                problems[name] = str(error)
                if self.lanes.get(name) == lane:
                    lanes[name] = lane  # it was there: what is on it may have to be taken from it
        self.lanes, self.problems = lanes, problems
        self.endpoints = {name: endpoint for name, endpoint in self.endpoints.items() if name in lanes}

    async def _ensure(self, base: AgentBase, tunnel: Tunnel, lane: Lane) -> None:
        key_file = self._config.wireguard.private_key_file
        await self._wireguard.ensure_device(lane.device, key_file, tunnel.port, base.mtu, f"bgplb:{tunnel.name}")
        peers = (await self._wireguard.read(lane.device)).peers
        updates = [PeerUpdate(k, remove=True) for k in peers if k not in (lane.public_key, self._parking_key)]
        present = peers.get(lane.public_key)
        missing = lane.own - (present.allowed_ips if present else frozenset())
        if present is None:
            # After a reboot the gateway's own packets are strangers here until it shakes hands again, which takes it
            # up to 15 s (WireGuard's timers); the edge need not wait for that if it knows where to knock.
            updates.append(PeerUpdate(lane.public_key, missing, endpoint=self.endpoints.get(lane.gateway)))
        elif missing:
            updates.append(PeerUpdate(lane.public_key, add_allowed_ips=missing))
        if present is not None and present.endpoint is not None and present.last_handshake_s is not None:
            self.endpoints = {**self.endpoints, lane.gateway: present.endpoint}
        if self._parking_key not in peers:
            updates.append(PeerUpdate(self._parking_key))
        if updates:
            await self._wireguard.update(lane.device, updates)
