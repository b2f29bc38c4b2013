"""Pointing a pool at a gateway on the edge: AllowedIPs say who may send, the route says who receives.

Unplanned: taken from the old gateway, given to the new one, route replaced. Planned: given to the new one, route
replaced, and taken from the old one when the answers that are under way have had their time.
"""

import asyncio
import errno
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dataplane.diff import AddRoute, DeleteRoute, ReplaceRoute
from dataplane.errors import KernelRefused, KernelTimeout
from dataplane.model import ROUTE_PROTOCOL, Route
from dataplane.netlink import Netlink
from dataplane.wireguard import PeerState, PeerUpdate, WireGuard
from fsm.ports import Clock
from fsm.records import EdgePool

PATIENCE_S = 0.1
"""How long a move waits for prefixes to be taken from the old gateway, in seconds: it takes a millisecond."""


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

    async def carry_out(
        self, commands: Sequence[EdgePool], gone: Collection[str], lanes: Mapping[str, Lane], mtu: int
    ) -> list[Sight]:
        """Make all these commands true and read them back, in as few calls as possible; a sight for each.

        `gone`: prefixes that no pool has any more. A planned command leaves the old gateway's AllowedIPs for `park`.
        No two commands may name the same prefix. After an error some of it may be done: read back before deciding.

        A tunnel whose process hangs lets nobody send; taking prefixes from it is waited for no longer than a moment,
        or the process of a dead gateway's tunnel could keep its pools from leaving.
        """
        started = self._clock.now()
        pointed = [command for command in commands if command.owner is not None]
        kept = {prefix for command in pointed for prefix in command.prefixes}
        ownerless = {prefix for command in commands if command.owner is None for prefix in command.prefixes}
        removed = frozenset((ownerless | set(gone)) - kept)
        if removed:
            await self._unroute(removed)
        unplanned = [c for c in commands if not c.planned or c.owner is None]
        parking = asyncio.create_task(self.park(unplanned, lanes, gone=removed), name="parking")
        try:
            if (await asyncio.wait({parking}, timeout=PATIENCE_S))[0]:
                _unless_silent(parking)
            withdrawn = self._clock.now()
            await self._give(pointed, lanes)
            await self._route(
                [
                    Route(prefix, self._table, lanes[command.owner or ""].device, mtu_lock=mtu)
                    for command in pointed
                    for prefix in command.prefixes
                ]
            )
            moved = self._clock.now()
            await parking  # raises what it met: the move is made, and not confirmed
        finally:
            if not parking.cancel() and not parking.cancelled():
                parking.exception()  # it was met already, or something worse was
        phases = {"withdraw": (withdrawn - started) * 1000, "peer_move": (moved - started) * 1000}
        return await self.look([(c, phases if c.owner is not None else {}) for c in commands], lanes)

    async def _give(self, commands: Iterable[EdgePool], lanes: Mapping[str, Lane]) -> None:
        """Let the owners send: one call a device."""
        given: dict[str, set[str]] = {}
        for command in commands:
            given.setdefault(command.owner or "", set()).update(command.prefixes)
        for gateway, prefixes in given.items():
            lane = lanes[gateway]
            update = PeerUpdate(lane.public_key, add_allowed_ips=frozenset(prefixes))
            await self._wireguard.update(lane.device, [update])
            for prefix in prefixes:
                self._holders.setdefault(prefix, set()).add(lane.device)

    async def _route(self, routes: Sequence[Route]) -> None:
        """Put the routes in place: over ours in one step, and nowhere else. Raises Conflict over somebody else's."""
        if any(route.prefix not in self._routed for route in routes):
            self._routed |= set(await self._ours())
        ops = [ReplaceRoute(route) if route.prefix in self._routed else AddRoute(route) for route in routes]
        if ops:
            await self._netlink.change_routes(ops)
        self._routed |= {route.prefix for route in routes}

    async def _unroute(self, prefixes: Collection[str]) -> None:
        ours = await self._ours()
        ops = [DeleteRoute(ours[prefix]) for prefix in sorted(prefixes) if prefix in ours]
        if ops:
            await self._netlink.change_routes(ops)
        self._routed -= set(prefixes)

    async def _ours(self) -> dict[str, Route]:
        """Our routes by prefix, as the kernel holds them now; the one with the lowest metric if several."""
        found = sorted(
            await self._netlink.routes(self._table, ROUTE_PROTOCOL), key=lambda r: r.metric or 0, reverse=True
        )
        return {route.prefix: route for route in found}

    async def park(self, commands: Iterable[EdgePool], lanes: Mapping[str, Lane], gone: Iterable[str] = ()) -> None:
        """Take prefixes from every gateway but the owner: one call a device, no live peer's list is replaced.

        `gone`: prefixes that have no owner.
        """
        owners = dict.fromkeys(gone) | {prefix: c.owner for c in commands for prefix in c.prefixes}
        theirs = {
            lane.device: frozenset(
                prefix
                for prefix, owner in owners.items()
                if owner != lane.gateway and lane.device in self._holders.get(prefix, ())
            )
            for lane in lanes.values()
        }
        parking = (self._park_on(device, prefixes) for device, prefixes in theirs.items() if prefixes)
        found = await asyncio.gather(*parking, return_exceptions=True)  # all of them, whatever one of them says
        for error in found:
            if error is not None:
                raise error

    async def _park_on(self, device: str, prefixes: frozenset[str]) -> None:
        try:
            await self._wireguard.update(device, [PeerUpdate(self._parking_key, add_allowed_ips=prefixes)])
        except KernelRefused as error:
            if error.errno != errno.ENODEV:
                raise  # an interface that is gone lets nobody send
        for prefix in prefixes:
            self._holders[prefix].discard(device)

    def touched(self, command: EdgePool, lanes: Mapping[str, Lane]) -> frozenset[str]:
        """The devices that this command's act concerns: its owner's, and those that let its prefixes in now."""
        holders = {device for prefix in command.prefixes for device in self._holders.get(prefix, ())}
        lane = lanes.get(command.owner or "")
        return frozenset(holders | ({lane.device} if lane else set()))

    async def look(
        self, commands: Sequence[tuple[EdgePool, Mapping[str, float]]], lanes: Mapping[str, Lane]
    ) -> list[Sight]:
        """Read back who receives and who may send, for all of them in one reading. With each go its move's phases."""
        routes = await self._ours()
        allowed: dict[str, frozenset[str]] = {}
        for lane in lanes.values():
            peer = (await self._peers(lane)).get(lane.public_key)
            allowed[lane.gateway] = peer.allowed_ips if peer else frozenset()
        self._routed = set(routes)
        return [_sight(command, lanes, routes, allowed, phases) for command, phases in commands]


def _unless_silent(parking: asyncio.Task[None]) -> None:
    """Raise what it met, but for silence."""
    try:
        parking.result()
    except KernelTimeout:
        return


def _sight(
    command: EdgePool,
    lanes: Mapping[str, Lane],
    routes: Mapping[str, Route],
    allowed: Mapping[str, frozenset[str]],
    phases_ms: Mapping[str, float],
) -> Sight:
    """What a reading says of one command. `allowed`: prefixes that each gateway may send from."""
    sends_to = [routes.get(prefix) for prefix in command.prefixes]
    devices = frozenset(route.device or "" for route in sends_to if route is not None)
    accepts = frozenset(name for name, held in allowed.items() if not held.isdisjoint(command.prefixes))
    target = lanes.get(command.owner or "")
    wanted = frozenset({target.device}) if target else frozenset()
    return Sight(
        sends_to=devices,
        accepts_from=accepts,
        withdrawn=devices <= wanted,
        installed=target is not None
        and allowed[target.gateway].issuperset(command.prefixes)
        and (command.planned or accepts <= {command.owner})
        and devices == wanted
        and all(route is not None for route in sends_to),
        phases_ms=phases_ms,
    )
