"""WireGuard by wireguard-go, steered through its control socket.

The program is started by us, puts itself in the background and outlives us, so that an agent's restart does not cost a
packet. Its interface lives exactly as long as the program.
"""

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from dataplane import uapi_text
from dataplane.diff import SetLink
from dataplane.errors import Conflict, KernelError, KernelRefused, KernelTimeout
from dataplane.keys import PrivateKey, read_private_key
from dataplane.model import Link
from dataplane.netlink import Netlink
from dataplane.programs import start_detached
from dataplane.wireguard import DeviceState, PeerUpdate

SOCKET_DIR = Path("/var/run/wireguard")
"""One folder for all network namespaces of a mount namespace: interface names must be unique over them."""

_DEADLINE_S = 2.0
_SILENT_DEADLINE_S = 0.25
"""For a program that did not answer the last time: who waits for one that hangs keeps the other tunnels waiting."""
_START_DEADLINE_S = 5.0
_LIMIT_BYTES = 1 << 22


class _Control:
    """The control socket of one device, kept open; one exchange at a time."""

    def __init__(self, name: str, deadline_s: float) -> None:
        self._name = name
        self._deadline_s = self._patience_s = deadline_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()

    async def exchange(self, request: str, what: str) -> str:
        """The answer to a request. Raises KernelRefused by its errno, KernelTimeout when there is none."""
        op = f"{what} on {self._name}"
        try:
            async with asyncio.timeout(self._patience_s), self._lock:
                try:
                    answer = await self._once(request)
                except (EOFError, ConnectionError):
                    # The program was started anew since the last call; nothing was done on the dead connection.
                    self.close()
                    answer = await self._once(request)
        except TimeoutError as error:
            self.close()
            waited_s, self._patience_s = self._patience_s, min(self._deadline_s, _SILENT_DEADLINE_S)
            raise KernelTimeout(op, waited_s) from error
        except (OSError, EOFError) as error:
            self.close()
            detail = f"no wireguard-go answers at {SOCKET_DIR / (self._name + '.sock')}"
            raise KernelRefused(errno.ENODEV, op, detail) from error
        self._patience_s = self._deadline_s
        code = uapi_text.answer_errno(answer)
        if code:
            raise KernelRefused(code, op)
        return answer

    async def _once(self, request: str) -> str:
        if self._streams is None:
            path = SOCKET_DIR / f"{self._name}.sock"
            self._streams = await asyncio.open_unix_connection(path, limit=_LIMIT_BYTES)
        reader, writer = self._streams
        finished = False
        try:
            if writer.is_closing():
                raise ConnectionResetError  # which uvloop would make a RuntimeError
            writer.write(request.encode())
            await writer.drain()
            answer = (await reader.readuntil(b"\n\n")).decode()
            finished = True
            return answer
        finally:
            if not finished:
                self.close()  # also when cancelled: the answer that is still to come must not be taken for the next

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class UserspaceWireGuard:
    """The port :class:`~dataplane.wireguard.WireGuard`, by wireguard-go."""

    def __init__(self, netlink: Netlink, namespace: str | None = None, deadline_s: float = _DEADLINE_S) -> None:
        """`netlink` must speak to the same namespace."""
        self._netlink = netlink
        self._namespace = namespace
        self._deadline_s = deadline_s
        self._controls: dict[str, _Control] = {}

    async def ensure_device(
        self, name: str, private_key_file: Path, listen_port: int | None, mtu: int, alias: str
    ) -> None:
        """See the port. The private key is read anew each time and not kept."""
        key = read_private_key(private_key_file)
        link = await self._netlink.link(name)
        if link is None:
            self._forget(name)
            await start_detached("wireguard-go", name, namespace=self._namespace, deadline_s=_START_DEADLINE_S)
            # The socket exists already, but is served only once the program has set its own MTU: an answer shows that.
            await self.read(name)
            link = await self._netlink.link(name)
            if link is None:
                raise KernelError(f"wireguard-go started but there is no interface {name}: look at its own log")
        elif not link.ours and not await self._is_blank(name):
            raise Conflict(
                (f"interface {name} exists but is not ours (alias {link.alias!r}): remove or rename it, "
                 f"or change interface_prefix",)
            )  # fmt: skip
        wanted = Link(name, link.kind, mtu, alias, up=True)
        if replace(link, kind=wanted.kind) != wanted:
            await self._netlink.apply([SetLink(wanted)])
        await self._set_key_and_port(name, key, listen_port)

    async def read(self, name: str) -> DeviceState:
        """See the port."""
        return uapi_text.parse_device(await self._control(name).exchange(uapi_text.GET, "get"))

    async def update(self, name: str, peers: Sequence[PeerUpdate]) -> None:
        """See the port. An endpoint that is a name is resolved here, once, before anything is written."""
        if not peers:
            return
        resolved = [await self._resolved(update) for update in peers]
        await self._control(name).exchange(uapi_text.set_peers(resolved), "set peers")

    async def close(self) -> None:
        """See the port."""
        for name in list(self._controls):
            self._forget(name)

    async def _set_key_and_port(self, name: str, key: PrivateKey, listen_port: int | None) -> None:
        # The link is up by now: a port is only bound, and so only refused, on an interface that is up.
        device = await self.read(name)
        if device.public_key != key.public:
            await self._control(name).exchange(uapi_text.set_device(private_key=key), "set private key")
        if listen_port is None or device.listen_port == listen_port:
            return
        try:
            await self._control(name).exchange(uapi_text.set_device(listen_port=listen_port), "set listen port")
        except KernelRefused as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise Conflict(
                (f"UDP port {listen_port} for {name} is taken: stop what holds it (ss -lunp), or change portBase",)
            ) from error

    async def _is_blank(self, name: str) -> bool:
        """Whether it is a device without key and peers: ours, from a start that died before it was given its alias."""
        try:
            device = await self.read(name)
        except KernelRefused:
            return False
        return device.public_key is None and not device.peers

    async def _resolved(self, update: PeerUpdate) -> PeerUpdate:
        if update.endpoint is None:
            return update
        host, _, port = update.endpoint.rpartition(":")
        host = host.strip("[]")
        try:
            ip_address(host)
            return update
        except ValueError:
            pass
        try:
            async with asyncio.timeout(self._deadline_s):
                found = await asyncio.get_running_loop().getaddrinfo(host, int(port))
        except TimeoutError as error:
            raise KernelTimeout(f"resolving {host}", self._deadline_s) from error
        except (OSError, ValueError) as error:
            raise KernelRefused(errno.EINVAL, f"endpoint {update.endpoint}", f"can't be resolved: {error}") from error
        address = found[0][4][0]
        return replace(update, endpoint=f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}")

    def _control(self, name: str) -> _Control:
        if name not in self._controls:
            self._controls[name] = _Control(name, self._deadline_s)
        return self._controls[name]

    def _forget(self, name: str) -> None:
        control = self._controls.pop(name, None)
        if control is not None:
            control.close()
