"""What an agent stands on, in memory: one record of all that is done, in order, and faults on demand."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from birdctl.apply import Applied, PoolExport
from birdctl.commands import BfdSession
from birdctl.errors import BirdError
from birdctl.render import Announcements
from dataplane.diff import Op
from dataplane.keys import ensure_private_key
from dataplane.model import TABLE_MAIN, Address, KernelState, Route
from dataplane.nft_foreign import ForeignRule, Ours
from dataplane.wireguard import PeerUpdate
from fsm.desired import agent_bases
from fsm.records import AgentBase, EdgeGatewaySpec, EdgePool, EdgeSpec, Identity, PoolSpec
from orchestrator.store.keys import Keys
from orchestrator.store.port import Change
from orchestrator.store.records import encode
from tests.contract.kernel.fakes import FakeKernel, FakeWireGuard

KEYS = Keys()
WEB, MAIL = ("192.0.2.0/26",), ("192.0.2.64/26",)
PARKING = "parking"
Event = tuple[str, Any]


EDGES = (EdgeSpec("edge-1", "203.0.113.1", 64512), EdgeSpec("edge-2", "203.0.113.17", 64514))


def group(edges: tuple[EdgeSpec, ...] = EDGES[:1], **fields: Any) -> EdgeGatewaySpec:
    """One edge, or those given, and two gateways."""
    return EdgeGatewaySpec(
        "group",
        edges,
        ("gw-a", "gw-b"),
        64513,
        slots={"gw-a": 0, "gw-b": 1},
        edge_numbers={edge.name: number for number, edge in enumerate(EDGES)},
        drain_linger_ms=30,
        **fields,
    )


def base(role: str, name: str, *pools: tuple[str, ...], **fields: Any) -> AgentBase:
    """The base of an agent of that group."""
    keys = {"edge-1": "key-edge", "edge-2": "key-edge-2"}
    identities = {("edge", edge): Identity("edge", edge, key) for edge, key in keys.items()}
    identities |= {("node", n): Identity("node", n, f"key-{n}", f"10.10.0.{i}") for i, n in enumerate(("gw-a", "gw-b"))}
    specs = [PoolSpec(f"pool-{n}", "192.0.2.0/24", prefixes, "group") for n, prefixes in enumerate(pools)]
    return agent_bases(group(**fields), specs, identities)[role, name]


class RealClock:
    """The event loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def eventually(condition: Callable[[], object], what: str, within_s: float = 5.0) -> None:
    """Wait for a condition; raises when it does not come."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError as error:
        raise AssertionError(f"not within {within_s:g} s: {what}") from error


class FakeLinux:
    """The shape of `LinuxKernel` over a `FakeKernel`; every change goes into `done`."""

    def __init__(self, done: list[Event]) -> None:
        self.done = done
        names = [f"net.ipv4.conf.{d}.rp_filter" for d in ("bgplb-g0", "bgplb-g1", "bgplb-e0", "bgplb-e1", "all")]
        self.kernel = FakeKernel(KernelState(sysctls={"net.ipv4.ip_forward": "0", **dict.fromkeys(names, "0")}))
        self.netlink, self.nft, self.sysctls = self, self, self
        self.before_write: Callable[[], Awaitable[None]] | None = None
        """Called before each change of a route: where a test lets something else happen."""
        self.ruleset: str | None = None
        self.failing: Exception | None = None
        self.lent: dict[Address, int | None] = {}
        self.lendings = 0

    @property
    def state(self) -> KernelState:
        return self.kernel.state

    def add(self, **fields: Iterable[Any]) -> None:
        """Put things there as another hand would."""
        merged = {name: getattr(self.state, name) | frozenset(values) for name, values in fields.items()}
        self.kernel.state = replace(self.state, **merged)

    def routes_to(self, prefix: str) -> list[str | None]:
        return [r.device for r in self.state.routes if r.prefix == prefix and r.table == TABLE_MAIN]

    # Kernel, netlink

    async def apply(self, ops: Iterable[Op]) -> None:
        for op in ops:
            await self._meanwhile()
            self.done.append(("kernel", op))
            await self.kernel.apply([op])

    async def route(self, prefix: str, table: int) -> Route | None:
        await asyncio.sleep(0)
        return next((r for r in self.state.routes if r.prefix == prefix and r.table == table and r.ours), None)

    async def routes(self, table: int, protocol: int = 0) -> frozenset[Route]:
        await asyncio.sleep(0)
        return frozenset(r for r in self.state.routes if r.table == table and protocol in (0, r.protocol))

    async def change_routes(self, ops: Iterable[Op]) -> None:
        await self.apply(ops)

    async def lend(self, address: Address, seconds: int | None) -> None:
        """The time that it is lent for is only noted: here no clock takes it away."""
        await asyncio.sleep(0)
        if not any(link.name == address.device for link in self.state.links):
            return
        self.lent[address] = seconds
        self.lendings += 1
        self.add(addresses=[address])

    async def _meanwhile(self) -> None:
        if self.failing is not None:
            raise self.failing
        hook, self.before_write = self.before_write, None
        if hook is not None:
            await hook()

    async def close(self) -> None:
        pass

    # nft

    async def ensure(self, ruleset: str | None) -> bool:
        changed, self.ruleset = ruleset != self.ruleset, ruleset
        if changed:
            self.done.append(("nft", ruleset))
        return changed


class Netlink(FakeLinux):
    """Reading, as `Netlink` does; the sysctls and nft have their own."""

    async def read(self, tables: Iterable[int]) -> KernelState:
        await asyncio.sleep(0)
        return replace(await self.kernel.read(tables), sysctls={})


class FakeNft:
    """Our table of nft, and what of others' is in its way."""

    def __init__(self, linux: FakeLinux) -> None:
        self._linux = linux
        self.foreign: list[ForeignRule] = []
        self.failing: Exception | None = None
        self.asked: list[Ours] = []

    async def in_the_way(self, ours: Ours) -> tuple[ForeignRule, ...]:
        self.asked.append(ours)
        if self.failing is not None:
            raise self.failing
        return tuple(self.foreign)

    async def ensure(self, ruleset: str | None) -> bool:
        return await self._linux.ensure(ruleset)

    async def read(self) -> str | None:
        return self._linux.ruleset


class FakeSysctls:
    """Parameters by name."""

    def __init__(self, linux: FakeLinux) -> None:
        self._linux = linux

    def read(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self._linux.state.sysctls[name] for name in names if name in self._linux.state.sysctls}


def linux(done: list[Event]) -> Netlink:
    """A kernel whose parts are told apart."""
    made = Netlink(done)
    made.nft, made.sysctls = FakeNft(made), FakeSysctls(made)  # type: ignore[assignment]
    return made


class RecordingWireGuard(FakeWireGuard):
    """WireGuard in memory, with its updates in the common record."""

    def __init__(self, kernel: FakeKernel, done: list[Event], taken_ports: Iterable[int] = ()) -> None:
        super().__init__(kernel, taken_ports)
        self.done = done
        self.broken: dict[str, Exception] = {}
        """Devices on which every call fails, and how."""

    async def ensure_device(
        self, name: str, private_key_file: Path, listen_port: int | None, mtu: int, alias: str
    ) -> None:
        self._fail(name)
        await super().ensure_device(name, private_key_file, listen_port, mtu, alias)

    async def read(self, name: str) -> Any:
        await asyncio.sleep(0)
        self._fail(name)
        return await super().read(name)

    async def update(self, name: str, peers: Sequence[PeerUpdate]) -> None:
        await asyncio.sleep(0)
        self._fail(name)
        self.done.append(("wireguard", (name, tuple(peers))))
        await super().update(name, peers)

    def allowed(self, name: str, peer: str) -> frozenset[str]:
        device = self._devices.get(name)
        return device.peers[peer].allowed_ips if device and peer in device.peers else frozenset()

    def hear(self, name: str, peer: str) -> None:
        """Something comes from that peer."""
        device = self._devices[name]
        found = device.peers[peer]
        self._devices[name] = replace(device, peers={**device.peers, peer: replace(found, rx_bytes=found.rx_bytes + 1)})

    def vanish(self, name: str) -> None:
        """Its process is killed: the interface goes, with its routes."""
        self._devices.pop(name, None)
        self._kernel._delete_link(name)

    def _fail(self, name: str) -> None:
        if name in self.broken:
            raise self.broken[name]


@dataclass
class FakeApplier:
    """BIRD's files and what it announces."""

    done: list[Event]
    text: str = ""
    announced: Announcements | None = None
    failing: BirdError | None = None
    started: int = 0
    """How often BIRD was started, or configured by another hand."""
    read_back: int = -1
    """`started` as it was when all was read back last."""
    given_up: set[str] = field(default_factory=set)
    """Peers with whom it has disabled its session itself."""
    asked: int = 0
    """How often it was asked for all that it announces."""

    async def configure(self, text: str) -> Applied:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        if text != self.text:
            self.done.append(("bird", "configure"))
        self.text = text
        return Applied(True, True)

    async def enable_sessions(self, *peers: str) -> tuple[str, ...]:
        await asyncio.sleep(0)
        if self.failing is not None:
            return ()
        found = tuple(peer for peer in peers if peer in self.given_up)
        self.given_up -= set(found)
        return found

    async def announce(self, wanted: Announcements) -> Applied:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        self.read_back = self.started
        self.asked += 1
        if wanted != self.announced:
            self.done.append(("bird", tuple(p.pool for p in wanted.pools if p.announced)))
        self.announced = wanted
        return Applied(True, False, tuple(PoolExport(p.pool, p.announced, (), ()) for p in wanted.pools))

    async def undisturbed(self) -> bool:
        if self.failing is not None:
            raise self.failing
        return self.read_back == self.started


SINCE = "2001-01-01T00:00:00.000"


@dataclass
class FakeMonitor:
    """What `Sessions` asks of BIRD. `silent`: every question fails."""

    process: str = "first"
    up: set[str] = field(default_factory=set)
    silent: BirdError | None = None

    async def bfd_sessions(self) -> tuple[BfdSession, ...]:
        await asyncio.sleep(0)
        if self.silent is not None:
            raise self.silent
        from ipaddress import ip_address

        return tuple(BfdSession(ip_address(a), None, "Up", SINCE, 50.0, 150.0) for a in sorted(self.up))


@dataclass
class FakeLink:
    """The link with the store: what was reported, and a mirror that a test fills."""

    told: dict[str, Any] = field(default_factory=dict)
    order: list[tuple[str, Any]] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    keys: set[str] = field(default_factory=set)

    @property
    def reports(self) -> "FakeLink":
        return self

    @property
    def mirror(self) -> "FakeLink":
        return self

    def set(self, key: str, value: Any) -> None:
        self.told[key] = value
        self.order.append((key, value))

    def get(self, key: str) -> object | None:
        return key if key in self.keys else None

    lease_s: float = 5.0

    def lease_left_s(self) -> float:
        return self.lease_s

    async def run(self) -> None:
        await asyncio.Event().wait()


def change(key: str, value: object | None, revision: int) -> Change:
    """A change as the mirror brings it."""
    return Change(key, None if value is None else encode(value), 1, revision, 0)


def order(pool: str, command: EdgePool | None, revision: int) -> Change:
    return change(KEYS.desired("edge", "edge-1", "pool", pool), command, revision)


def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "wireguard.key"
    ensure_private_key(path)
    return path
