"""Plain values for what a kernel holds and for what it should hold.

All are frozen and hashable, in one canonical spelling (addresses and prefixes as :mod:`ipaddress` prints them), so that
two states are equal exactly when the kernels are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address, ip_interface, ip_network
from typing import Literal

ROUTE_PROTOCOL = 77
"""Route and rule protocol number that marks what is ours (rtnetlink ``rtm_protocol``, 0..255)."""

RULE_PRIORITIES = range(10077, 10100)
"""The only rule priorities that we use; a rule is ours when its priority is in here *and* its protocol is 77."""

ALIAS_PREFIX = "bgplb:"
"""An interface is ours exactly when its alias (``ip link show``: ``alias``) begins with this."""

TABLE_MAIN = 254

Family = Literal["ipv4", "ipv6"]
RouteKind = Literal["unicast", "blackhole", "unreachable"]
LinkKind = Literal["wireguard", "veth"]

_IPV6_DEFAULT_METRIC = 1024


@lru_cache(maxsize=65536)
def canonical(prefix: str) -> tuple[str, Family]:
    """A prefix as `ipaddress` prints it, and its family. Remembered: with many pools the same ones come by all day."""
    network = ip_network(prefix)
    return str(network), "ipv4" if network.version == 4 else "ipv6"


@dataclass(frozen=True)
class Route:
    """One route. ``prefix`` must have no host bits (ValueError).

    ``mtu_lock``: bytes, shown by iproute2 as ``mtu lock N``: path MTU discovery may not lower or raise it.
    ``metric`` None means the kernel's default (0 for IPv4, 1024 for IPv6).
    """

    prefix: str
    table: int
    device: str | None = None
    via: str | None = None
    mtu_lock: int | None = None
    protocol: int = ROUTE_PROTOCOL
    kind: RouteKind = "unicast"
    source: str | None = None
    metric: int | None = None

    def __post_init__(self) -> None:
        prefix, family = canonical(self.prefix)
        object.__setattr__(self, "prefix", prefix)
        for name in ("via", "source"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, str(ip_address(value)))
        default = _IPV6_DEFAULT_METRIC if family == "ipv6" else 0
        if self.metric == default:
            object.__setattr__(self, "metric", None)
        if self.kind == "unicast" and self.device is None and self.via is None:
            raise ValueError(f"route {self.prefix}: a unicast route needs a device or a next hop")

    @property
    def family(self) -> Family:
        """Family of the prefix."""
        return canonical(self.prefix)[1]

    @property
    def key(self) -> tuple[int, str, int | None]:
        """What the kernel tells routes apart by: two with one key can't both exist."""
        return (self.table, self.prefix, self.metric)

    @property
    def ours(self) -> bool:
        """Whether the protocol says that we made it."""
        return self.protocol == ROUTE_PROTOCOL


@dataclass(frozen=True)
class Rule:
    """One policy rule. ``fwmark`` is compared under ``fwmask`` (None: all 32 bits)."""

    family: Family
    priority: int
    table: int
    source: str | None = None
    fwmark: int | None = None
    fwmask: int | None = None
    to: str | None = None
    protocol: int = ROUTE_PROTOCOL

    def __post_init__(self) -> None:
        for name in ("source", "to"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, canonical(value)[0])
        if self.fwmark is not None and self.fwmask is None:
            object.__setattr__(self, "fwmask", 0xFFFFFFFF)

    @property
    def ours(self) -> bool:
        """Whether priority and protocol both say that we made it."""
        return self.protocol == ROUTE_PROTOCOL and self.priority in RULE_PRIORITIES


@dataclass(frozen=True)
class Address:
    """An address on a device, with its prefix length, e.g. ``10.77.0.0/31``."""

    device: str
    cidr: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "cidr", str(ip_interface(self.cidr)))


@dataclass(frozen=True)
class Link:
    """A network interface. ``mtu`` in bytes. ``kind`` is what we make; a foreign one may carry any other word."""

    name: str
    kind: LinkKind | str
    mtu: int
    alias: str = ""
    up: bool = True

    @property
    def ours(self) -> bool:
        """Whether the alias says that we made it."""
        return self.alias.startswith(ALIAS_PREFIX)


@dataclass(frozen=True)
class Peer:
    """A WireGuard peer as it should be. ``public_key`` in base64; ``endpoint`` ``host:port`` or ``[v6]:port``."""

    public_key: str
    allowed_ips: frozenset[str] = frozenset()
    endpoint: str | None = None
    keepalive_s: int | None = None


@dataclass(frozen=True)
class WireGuardDevice:
    """A WireGuard interface as it should be; ``listen_port`` None lets the kernel choose."""

    name: str
    listen_port: int | None = None
    peers: Mapping[str, Peer] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelState:
    """All that we look at in one network namespace, or all that should be there.

    ``nft`` is the normalised text of table ``inet bgplb`` (see :mod:`dataplane.nft_rules`), None when it is absent.
    ``sysctls`` maps dotted names to values; a desired state names only those that must have a value.
    """

    links: frozenset[Link] = frozenset()
    addresses: frozenset[Address] = frozenset()
    routes: frozenset[Route] = frozenset()
    rules: frozenset[Rule] = frozenset()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    nft: str | None = None
