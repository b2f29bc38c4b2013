"""WireGuard by the kernel's own implementation, over generic netlink.

All updates of one call travel in one message, so the kernel applies them under one lock, as wireguard-go does.
"""

import asyncio
import errno
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from pyroute2 import AsyncWireGuard  # type: ignore[import-untyped]
from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST  # type: ignore[import-untyped]
from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped]
from pyroute2.netlink.generic.wireguard import WG_CMD_SET_DEVICE, wgmsg  # type: ignore[import-untyped]

from dataplane.aside import aside
from dataplane.diff import SetLink
from dataplane.errors import Conflict, FeatureMissing, KernelRefused, KernelTimeout
from dataplane.keys import public_key_bytes, read_private_key
from dataplane.model import Link
from dataplane.namespace import entered
from dataplane.netlink import Netlink
from dataplane.wireguard import DeviceState, PeerState, PeerUpdate

_DEADLINE_S = 2.0


async def kernel_has_wireguard(netlink: Netlink, probe_name: str) -> bool:
    """Whether this kernel can make a WireGuard interface: asked by making one (`probe_name`) and removing it."""
    try:
        await _create(netlink, probe_name)
    except FeatureMissing:
        return False
    await netlink.delete_link(probe_name)
    return True


async def made_otherwise(netlink: Netlink, wireguard: "KernelWireGuard", prefix: str) -> bool:
    """Whether a tunnel of ours, by its alias and the beginning of its name, is there that the kernel did not make."""
    for link in (await netlink.read(())).links:
        if link.ours and link.kind == "wireguard" and link.name.startswith(prefix):
            try:
                await wireguard.read(link.name)
            except KernelRefused as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                return True
    return False


class KernelWireGuard:
    """The port :class:`~dataplane.wireguard.WireGuard`, by the kernel."""

    def __init__(self, netlink: Netlink, namespace: str | None = None, deadline_s: float = _DEADLINE_S) -> None:
        """`netlink` must speak to the same namespace."""
        self._netlink = netlink
        self._namespace = namespace
        self._deadline_s = deadline_s
        self._socket: Any = None

    async def ensure_device(
        self, name: str, private_key_file: Path, listen_port: int | None, mtu: int, alias: str
    ) -> None:
        """See the port. Raises FeatureMissing when the kernel has no WireGuard."""
        key = read_private_key(private_key_file)
        link = await self._netlink.link(name)
        if link is None:
            await _create(self._netlink, name)
            link = Link(name, "wireguard", 0, "", up=False)
        elif not link.ours and not await self._is_blank(name):
            problem = f"interface {name} exists but is not ours (alias {link.alias!r}): remove or rename it"
            raise Conflict((problem + ", or change interface_prefix",))
        wanted = Link(name, "wireguard", mtu, alias, up=True)
        if replace(link, kind=wanted.kind) != wanted:
            await self._netlink.apply([SetLink(wanted)])
        device = await self._own(name)
        attributes: list[list[object]] = []
        if device.public_key != key.public:
            attributes.append(["WGDEVICE_A_PRIVATE_KEY", key.secret_base64()])
        if listen_port is not None and device.listen_port != listen_port:
            attributes.append(["WGDEVICE_A_LISTEN_PORT", listen_port])
        if not attributes:
            return
        try:
            await self._set(name, lambda _: attributes, "set key and port")
        except KernelRefused as error:
            if error.errno != errno.EADDRINUSE:
                raise
            problem = f"UDP port {listen_port} for {name} is taken: stop what holds it (ss -lunp), or change portBase"
            raise Conflict((problem,)) from error

    async def read(self, name: str) -> DeviceState:
        """See the port."""
        peers: dict[str, PeerState] = {}
        public_key: str | None = None
        listen_port = 0
        for message in await self._call(f"get on {name}", lambda wireguard: wireguard.info(name)):
            listen_port = message.get_attr("WGDEVICE_A_LISTEN_PORT") or listen_port
            public_key = _text(message.get_attr("WGDEVICE_A_PUBLIC_KEY")) or public_key
            for peer in message.get_attr("WGDEVICE_A_PEERS") or ():
                key, state = _peer_state(peer)
                before = peers.get(key)
                # A long list of allowed IPs continues in the next message under the same key.
                peers[key] = state if before is None else replace(
                    before, allowed_ips=before.allowed_ips | state.allowed_ips
                )  # fmt: skip
        return DeviceState(listen_port, peers, public_key)

    async def update(self, name: str, peers: Sequence[PeerUpdate]) -> None:
        """See the port. Endpoints must be numeric."""
        if not peers:
            return
        specs = [_peer_spec(update) for update in peers]

        def attributes(wireguard: Any) -> list[list[object]]:
            parts = wgmsg()
            for spec in specs:
                wireguard._wg_set_peer(parts, spec)
            return [["WGDEVICE_A_PEERS", [entry for _, value in parts["attrs"] for entry in value]]]

        await self._set(name, attributes, "set peers")

    async def close(self) -> None:
        """See the port."""
        await aside(self._close())

    async def _close(self) -> None:
        if self._socket is not None:
            wireguard, self._socket = self._socket, None
            wireguard.close()

    async def _set(self, name: str, attributes: Callable[[Any], list[list[object]]], what: str) -> None:
        def exchange(wireguard: Any) -> Awaitable[AsyncIterable[Any]]:
            message = wgmsg()
            message["cmd"] = WG_CMD_SET_DEVICE
            message["attrs"] = [["WGDEVICE_A_IFNAME", name], *attributes(wireguard)]
            answers: Awaitable[AsyncIterable[Any]] = wireguard.nlm_request(
                message, msg_type=wireguard.prid, msg_flags=NLM_F_REQUEST | NLM_F_ACK
            )
            return answers

        await self._call(f"{what} on {name}", exchange)

    async def _own(self, name: str) -> DeviceState:
        """The device, which is ours by its alias. Raises Conflict when it is one of wireguard-go."""
        try:
            return await self.read(name)
        except KernelRefused as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            problem = f"interface {name} was made by wireguard-go: remove it (the agent's cleanup does), or set "
            raise Conflict((problem + "wireguard.backend to auto or userspace",)) from error

    async def _is_blank(self, name: str) -> bool:
        try:
            device = await self.read(name)
        except KernelRefused:
            return False
        return device.public_key is None and not device.peers

    async def _call(self, op: str, exchange: Callable[[Any], Awaitable[AsyncIterable[Any]]]) -> list[Any]:
        try:
            return await aside(self._exchange(exchange))
        except NetlinkError as error:
            raise KernelRefused(error.code, op, str(error.args[-1])) from error
        except TimeoutError as error:
            await self.close()
            raise KernelTimeout(op, self._deadline_s) from error

    async def _exchange(self, exchange: Callable[[Any], Awaitable[AsyncIterable[Any]]]) -> list[Any]:
        async with asyncio.timeout(self._deadline_s):
            if self._socket is None:
                with entered(self._namespace):
                    self._socket = AsyncWireGuard()
                    assert self._socket.socket is not None  # it is this access that opens it
            await self._socket.setup_endpoint()
            return [message async for message in await exchange(self._socket)]


async def _create(netlink: Netlink, name: str) -> None:
    try:
        await netlink.create_link(name, "wireguard")
    except KernelRefused as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENODEV):
            raise
        raise FeatureMissing(
            "this kernel has no WireGuard (CONFIG_WIREGUARD): load the module, or set backend: userspace"
        ) from error


def _peer_spec(update: PeerUpdate) -> dict[str, object]:
    public_key_bytes(update.public_key)
    if update.remove:
        return {"public_key": update.public_key, "remove": True}
    prefixes = update.add_allowed_ips | (update.replace_allowed_ips or frozenset())
    spec: dict[str, object] = {
        "public_key": update.public_key,
        "allowed_ips": [str(ip_network(prefix)) for prefix in sorted(prefixes)],
        "replace_allowed_ips": update.replace_allowed_ips is not None,
    }
    if update.endpoint is not None:
        host, _, port = update.endpoint.rpartition(":")
        spec |= {"endpoint_addr": str(ip_address(host.strip("[]"))), "endpoint_port": int(port)}
    if update.keepalive_s is not None:
        spec["persistent_keepalive"] = update.keepalive_s
    return spec


def _peer_state(peer: Any) -> tuple[str, PeerState]:
    endpoint = peer.get_attr("WGPEER_A_ENDPOINT")
    handshake = peer.get_attr("WGPEER_A_LAST_HANDSHAKE_TIME") or {}
    allowed = peer.get_attr("WGPEER_A_ALLOWEDIPS") or ()
    stamp = handshake.get("tv_sec", 0) + handshake.get("tv_nsec", 0) / 1e9
    host = f"[{endpoint['addr']}]" if endpoint and ":" in endpoint["addr"] else endpoint and endpoint["addr"]
    return _text(peer.get_attr("WGPEER_A_PUBLIC_KEY")) or "", PeerState(
        allowed_ips=frozenset(str(ip_network(entry["addr"])) for entry in allowed),
        endpoint=f"{host}:{endpoint['port']}" if endpoint else None,
        last_handshake_s=stamp or None,
        rx_bytes=peer.get_attr("WGPEER_A_RX_BYTES") or 0,
        tx_bytes=peer.get_attr("WGPEER_A_TX_BYTES") or 0,
        keepalive_s=peer.get_attr("WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL") or None,
    )


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)
