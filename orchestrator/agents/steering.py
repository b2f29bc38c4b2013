"""Pointing a pool at a gateway on the edge: AllowedIPs say who may send, the route says who receives.

Unplanned: taken from the old gateway, given to the new one, route replaced. Planned: given to the new one, route
replaced, and taken from the old one when the answers that are under way have had their time.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field

from dataplane.diff import AddRoute
from dataplane.errors import KernelRefused
from dataplane.model import Route
from dataplane.netlink import Netlink
from dataplane.wireguard import PeerState, PeerUpdate, WireGuard
from fsm.ports import Clock
from fsm.records import EdgePool


@dataclass(frozen=True, slots=True)
class Lane:
    """One gateway's tunnel as steering sees it."""

    gateway: str
    device: str
    public_key: str
    own: frozenset[str] = frozenset()
    """AllowedIPs that the gateway has whatever it carries: its end of the tunnel and its probe address."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What was read back: `sends_to` devices the routes point at, `accepts_from` gateways that AllowedIPs let send.

    `installed`: routes and AllowedIPs are on the owner, and nobody else may send, unless the move was a planned one.
    """

    sends_to: frozenset[str]
    accepts_from: frozenset[str]
    withdrawn: bool
    installed: bool
    phases_ms: Mapping[str, float] = field(default_factory=dict)


class Steering:
    """Acts on WireGuard and the routing table. Raises errors of `dataplane.errors`; then read back before deciding."""

    def __init__(self, wireguard: WireGuard, netlink: Netlink, clock: Clock, table: int, parking_key: str) -> None:
        self._wireguard, self._netlink, self._clock = wireguard, netlink, clock
        self._table, self._parking_key = table, parking_key
        self._holders: dict[str, set[str]] = {}
        """Prefix to the devices on which its gateway may send from it, as last read back."""
        self._routed: set[str] = set()
        """Prefixes that had a route of ours when last looked at."""

    async def learn(self, lanes: Mapping[str, Lane], held: frozenset[str]) -> None:
        """Read from the kernel which gateway may send from which prefix, and take away what no pool has (`held`)."""
        holders: dict[str, set[str]] = {}
        for lane in lanes.values():
            peers = await self._peers(lane)
            allowed = peers[lane.public_key].allowed_ips if lane.public_key in peers else frozenset()
            parked = peers[self._parking_key].allowed_ips if self._parking_key in peers else frozenset()
            surplus = allowed - lane.own - held
            if surplus:
                await self._wireguard.update(lane.device, [PeerUpdate(self._parking_key, add_allowed_ips=surplus)])
            if surplus or parked - held:
                # Nobody is behind the parking peer: its list may be replaced.
                update = PeerUpdate(self._parking_key, replace_allowed_ips=parked & held)
                await self._wireguard.update(lane.device, [update])
            for prefix in allowed - surplus:
                holders.setdefault(prefix, set()).add(lane.device)
        self._holders = holders

    async def _peers(self, lane: Lane) -> Mapping[str, PeerState]:
        """The peers of a tunnel. One whose interface is gone has none: a dead tunnel must not hold up the others."""
        try:
            return (await self._wireguard.read(lane.device)).peers
        except KernelRefused as error:
            if error.errno != errno.ENODEV:
                raise
            return {}

    async def point(self, command: EdgePool, lanes: Mapping[str, Lane], mtu: int) -> Sight:
        """Make the command true and read it back. A planned command leaves the old gateway's AllowedIPs for `park`."""
        started = self._clock.now()
        target = lanes[command.owner or ""]
        if not command.planned:
            await self.park(command, lanes)
        withdrawn = self._clock.now()
        await self._wireguard.update(
            target.device, [PeerUpdate(target.public_key, add_allowed_ips=frozenset(command.prefixes))]
        )
        for prefix in command.prefixes:
            await self._route(Route(prefix, self._table, target.device, mtu_lock=mtu))
        moved = self._clock.now()
        for prefix in command.prefixes:
            self._holders.setdefault(prefix, set()).add(target.device)
        phases = {"withdraw": (withdrawn - started) * 1000, "peer_move": (moved - started) * 1000}
        return await self.look(command, lanes, phases)

    async def _route(self, route: Route) -> None:
        """Put the route in place: over ours in one step, and nowhere else. Raises Conflict over somebody else's."""
        if route.prefix in self._routed or await self._netlink.route(route.prefix, self._table) is not None:
            await self._netlink.replace_route(route)
        else:
            await self._netlink.apply([AddRoute(route)])
        self._routed.add(route.prefix)

    async def park(self, command: EdgePool, lanes: Mapping[str, Lane]) -> None:
        """Take the prefixes from every gateway but the owner: one call a device, no live peer's list is replaced."""
        for lane in lanes.values():
            theirs = frozenset(p for p in command.prefixes if lane.device in self._holders.get(p, ()))
            if lane.gateway == command.owner or not theirs:
                continue
            try:
                await self._wireguard.update(lane.device, [PeerUpdate(self._parking_key, add_allowed_ips=theirs)])
            except KernelRefused as error:
                if error.errno != errno.ENODEV:
                    raise  # an interface that is gone lets nobody send
            for prefix in theirs:
                self._holders[prefix].discard(lane.device)

    async def remove(self, prefixes: tuple[str, ...], lanes: Mapping[str, Lane]) -> Sight:
        """Nobody receives these prefixes and nobody may send from them."""
        gone = EdgePool(prefixes, None, 0)
        for prefix in prefixes:
            route = await self._netlink.route(prefix, self._table)
            if route is not None:
                await self._netlink.delete_route(route)
            self._routed.discard(prefix)
        await self.park(gone, lanes)
        return await self.look(gone, lanes, {})

    async def look(self, command: EdgePool, lanes: Mapping[str, Lane], phases_ms: Mapping[str, float]) -> Sight:
        """Read back who receives and who may send."""
        prefixes = frozenset(command.prefixes)
        sends_to = [await self._netlink.route(prefix, self._table) for prefix in command.prefixes]
        devices = frozenset(route.device or "" for route in sends_to if route is not None)
        for prefix, route in zip(command.prefixes, sends_to, strict=True):
            (self._routed.discard if route is None else self._routed.add)(prefix)
        accepts: set[str] = set()
        complete = False
        for lane in lanes.values():
            peer = (await self._peers(lane)).get(lane.public_key)
            held = prefixes & peer.allowed_ips if peer else frozenset()
            if held:
                accepts.add(lane.gateway)
            if lane.gateway == command.owner:
                complete = held == prefixes
        target = lanes.get(command.owner or "")
        wanted = frozenset({target.device}) if target else frozenset()
        return Sight(
            sends_to=devices,
            accepts_from=frozenset(accepts),
            withdrawn=devices <= wanted,
            installed=complete
            and (command.planned or accepts <= {command.owner})
            and devices == wanted
            and all(route is not None for route in sends_to),
            phases_ms=phases_ms,
        )
