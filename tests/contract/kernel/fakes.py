"""Kernel and WireGuard in memory, which pass the same suites as the real ones."""

import errno
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

from dataplane.diff import (
    AddAddress,
    AddRoute,
    AddRule,
    CreateLink,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    DeleteRule,
    Op,
    ReplaceNft,
    ReplaceRoute,
    SetLink,
    SetSysctl,
)
from dataplane.errors import Conflict, KernelRefused
from dataplane.keys import read_private_key
from dataplane.model import TABLE_MAIN, KernelState, Link, Route
from dataplane.wireguard import DeviceState, PeerState, PeerUpdate


class FakeKernel:
    """Holds a :class:`KernelState` and refuses what a kernel refuses. Tests may set ``state`` directly."""

    def __init__(self, state: KernelState | None = None) -> None:
        self.state = state or KernelState()
        self.applied: list[Op] = []

    async def read(self, tables: Iterable[int], sysctls: Iterable[str] = ()) -> KernelState:
        wanted = frozenset(tables)
        routes = frozenset(r for r in self.state.routes if r.table in wanted and (r.ours or r.table != TABLE_MAIN))
        values = {name: self.state.sysctls[name] for name in sysctls if name in self.state.sysctls}
        return replace(self.state, routes=routes, sysctls=values)

    async def apply(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self._perform(op)
            self.applied.append(op)

    def _perform(self, op: Op) -> None:
        match op:
            case CreateLink(link):
                if self._link(link.name) is not None:
                    raise KernelRefused(errno.EEXIST, op)
                self._links(replace(link, alias="", up=False))
            case SetLink(link):
                present = self._need(link.name, op)
                self._links(replace(present, mtu=link.mtu, alias=link.alias, up=link.up))
                if not link.up:
                    self._drop_routes_of(link.name)
            case DeleteLink(name):
                self._delete_link(name)
            case AddAddress(address):
                self._need(address.device, op)
                self.state = replace(self.state, addresses=self.state.addresses | {address})
            case DeleteAddress(address):
                self.state = replace(self.state, addresses=self.state.addresses - {address})
            case AddRoute(route):
                self._add_route(route)
            case ReplaceRoute(route):
                self._put_route(route, op)
            case DeleteRoute(route):
                self.state = replace(self.state, routes=self.state.routes - {route})
            case AddRule(rule):
                self.state = replace(self.state, rules=self.state.rules | {rule})
            case DeleteRule(rule):
                self.state = replace(self.state, rules=self.state.rules - {rule})
            case SetSysctl(name, value):
                self._set_sysctl(name, value, op)
            case ReplaceNft(ruleset):
                self.state = replace(self.state, nft=ruleset)

    def _link(self, name: str) -> Link | None:
        return next((link for link in self.state.links if link.name == name), None)

    def _need(self, name: str, op: object) -> Link:
        link = self._link(name)
        if link is None:
            raise KernelRefused(errno.ENODEV, op)
        return link

    def _links(self, link: Link) -> None:
        others = frozenset(other for other in self.state.links if other.name != link.name)
        self.state = replace(self.state, links=others | {link})

    def _delete_link(self, name: str) -> None:
        self.state = replace(
            self.state,
            links=frozenset(link for link in self.state.links if link.name != name),
            addresses=frozenset(a for a in self.state.addresses if a.device != name),
        )
        self._drop_routes_of(name)

    def _drop_routes_of(self, device: str) -> None:
        self.state = replace(self.state, routes=frozenset(r for r in self.state.routes if r.device != device))

    def _add_route(self, route: Route) -> None:
        if any(other.key == route.key for other in self.state.routes):
            raise Conflict((f"route {route.prefix} in table {route.table} was made by somebody else",))
        self._put_route(route, AddRoute(route))

    def _put_route(self, route: Route, op: Op) -> None:
        if route.device is not None and not self._need(route.device, op).up:
            raise KernelRefused(errno.ENETDOWN, op)
        others = frozenset(other for other in self.state.routes if other.key != route.key)
        self.state = replace(self.state, routes=others | {route})

    def _set_sysctl(self, name: str, value: str, op: Op) -> None:
        if name not in self.state.sysctls:
            raise KernelRefused(errno.ENOENT, op)
        self.state = replace(self.state, sysctls={**self.state.sysctls, name: value})


class FakeWireGuard:
    """Devices in memory, over a :class:`FakeKernel`'s links; one owner per allowed IP, as in the real ones."""

    def __init__(self, kernel: FakeKernel, taken_ports: Iterable[int] = ()) -> None:
        self._kernel = kernel
        self._devices: dict[str, DeviceState] = {}
        self._taken = set(taken_ports)
        self.calls: list[tuple[str, tuple[PeerUpdate, ...]]] = []

    async def ensure_device(
        self, name: str, private_key_file: Path, listen_port: int | None, mtu: int, alias: str
    ) -> None:
        key = read_private_key(private_key_file)
        link = next((link for link in self._kernel.state.links if link.name == name), None)
        if link is not None and not link.ours:
            raise Conflict((f"interface {name} exists but is not ours",))
        wanted = Link(name, "wireguard", mtu, alias)
        if link is None:
            await self._kernel.apply([CreateLink(wanted)])
            self._devices[name] = DeviceState(40000 + len(self._devices), {})
        if link != wanted:
            await self._kernel.apply([SetLink(wanted)])
        device = self._devices[name]
        ports = {other.listen_port for other_name, other in self._devices.items() if other_name != name} | self._taken
        if listen_port is not None and listen_port in ports:
            raise Conflict((f"UDP port {listen_port} for {name} is taken",))
        self._devices[name] = replace(device, public_key=key.public, listen_port=listen_port or device.listen_port)

    async def read(self, name: str) -> DeviceState:
        return self._device(name)

    async def update(self, name: str, peers: Sequence[PeerUpdate]) -> None:
        device = self._device(name)
        self.calls.append((name, tuple(peers)))
        present: dict[str, PeerState] = dict(device.peers)
        for update in peers:
            _apply(present, update)
        self._devices[name] = replace(device, peers=present)

    async def close(self) -> None:
        pass

    def _device(self, name: str) -> DeviceState:
        if name not in self._devices:
            raise KernelRefused(errno.ENODEV, f"get on {name}")
        return self._devices[name]


def _apply(peers: dict[str, PeerState], update: PeerUpdate) -> None:
    if update.remove:
        peers.pop(update.public_key, None)
        return
    gained = {str(ip_network(p)) for p in update.add_allowed_ips | (update.replace_allowed_ips or frozenset())}
    for key, other in peers.items():
        peers[key] = replace(other, allowed_ips=other.allowed_ips - gained)
    peer = peers.get(update.public_key, PeerState(frozenset(), None, None, 0, 0))
    kept = frozenset[str]() if update.replace_allowed_ips is not None else peer.allowed_ips
    peers[update.public_key] = replace(
        peer,
        allowed_ips=kept | gained,
        endpoint=peer.endpoint if update.endpoint is None else update.endpoint,
        keepalive_s=peer.keepalive_s if update.keepalive_s is None else update.keepalive_s or None,
    )
