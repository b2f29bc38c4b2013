"""BIRD configuration as text, from plain values. Pure: the same value gives the same bytes.

Every protocol has a name of ours (`bgplb_*`): an unnamed one would be renumbered by a later
`configure`, and its session dropped. `strict bind` makes BGP and BFD listen on their own address
and interface only, so that this BIRD and the operator's own can share a machine, also when that one
has BFD on the wildcard port (UDP 3784, RFC 5881 section 4).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address
from pathlib import Path

from birdctl import names
from birdctl.commands import Address, Network

SIGNAL_TABLE = 10177
"""Kernel table of the edge's signals. No rule reads it; it exists for its netlink events."""

_HEADER = "# Written by bgplb; changes made here are lost. The operator's own parts belong in the included files.\n"
_FIXED = """\
log stderr { info, remote, warning, error, auth, fatal, bug };
timeformat base "%FT%T.%3f";
timeformat protocol "%FT%T.%3f";
timeformat route "%FT%T.%3f";
timeformat log "%FT%T.%3f";
"""
# One second, though links are followed by events: BIRD 2.0.12 may sleep in poll for 3 s with an UPDATE still to be
# sent, when a session has just come up and nothing else happens (measured: routes 3.0 s after Established). Any
# timer that runs out wakes it.
_DEVICE = f"protocol device {names.PREFIX}device {{\n\tscan time 1;\n}}\n"
_GLOB_CHARS = "?*["


@dataclass(frozen=True, slots=True)
class Bfd:
    """Timers of BFD (RFC 5880), the same on both ends: a neighbour is down after multiplier x interval.

    `interval_ms` 10..10000, `multiplier` 2..255. `idle_interval_ms` is how often a session that is not
    up tries (RFC 5880 section 6.8.3 asks for 1000; tunnels of ours alone carry it, so it is shorter,
    for a neighbour that comes back).
    """

    interval_ms: int = 50
    multiplier: int = 3
    idle_interval_ms: int = 300

    def __post_init__(self) -> None:
        _within("BFD interval_ms", self.interval_ms, 10, 10_000)
        _within("BFD multiplier", self.multiplier, 2, 255)
        _within("BFD idle_interval_ms", self.idle_interval_ms, 10, 10_000)


@dataclass(frozen=True, slots=True)
class Session:
    """One private BGP session.

    `name` and `far_asn` are the far end's: a gateway's on the edge, an edge's on the gateway. `accept` matters on the
    edge only: the exact prefixes taken from this gateway, its probe addresses and the pools it may
    serve. IP versions in `accept` decide the channels: keep a probe address of each version in use in
    it from the start, since a new channel restarts the session.
    """

    name: str
    interface: str
    local: Address
    neighbor: Address
    far_asn: int
    accept: tuple[Network, ...] = ()

    def __post_init__(self) -> None:
        if self.local.version != self.neighbor.version:
            raise ValueError(f"session {self.name}: {self.local} and {self.neighbor} are of different IP versions")


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """The edge's private BIRD: takes announcements, exports them to the signal table, sends nothing.

    `hold_time_s` 3..65535 (RFC 4271 section 4.2; a changed one drops the sessions). `import_extra` is a
    file of filter statements of the operator's, run in each session's import filter after our own
    (`if net = 192.0.2.240/28 then accept;`); in the filter of the other IP version it simply does not
    match. `local_include` is a file of whole statements of the operator's, at the end. Both must exist.
    """

    router_id: IPv4Address
    asn: int
    sessions: tuple[Session, ...]
    bgp_port: int = 1179
    hold_time_s: int = 15
    bfd: Bfd = field(default_factory=Bfd)
    signal_table: int = SIGNAL_TABLE
    import_extra: Path | None = None
    local_include: Path | None = None

    def __post_init__(self) -> None:
        _check_bgp(self.asn, self.bgp_port, self.hold_time_s, self.sessions)
        _within("signal_table", self.signal_table, 256, 0xFFFF_FFFF)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway's private BIRD: announces its probe addresses and what the announcement file says.

    It exports static protocols named `bgplb_pool*` and `bgplb_probe*`, and those the operator's
    `local_include` defines with names that begin with `local_`; it imports nothing and touches no
    kernel table. `announce_file` may be absent: then no pool is announced. `probe_prefixes` decide the
    channels, as `Session.accept` does on the edge.
    """

    router_id: IPv4Address
    asn: int
    sessions: tuple[Session, ...]
    probe_prefixes: tuple[Network, ...]
    announce_file: Path
    bgp_port: int = 1179
    hold_time_s: int = 15
    bfd: Bfd = field(default_factory=Bfd)
    local_include: Path | None = None

    def __post_init__(self) -> None:
        _check_bgp(self.asn, self.bgp_port, self.hold_time_s, self.sessions)
        if not self.probe_prefixes:
            raise ValueError("a gateway needs at least one probe prefix")


@dataclass(frozen=True, slots=True)
class PoolAnnouncement:
    """One pool on this gateway: prepared, and announced or not."""

    pool: str
    prefixes: tuple[Network, ...]
    announced: bool

    def __post_init__(self) -> None:
        if not self.prefixes:
            raise ValueError(f"pool {self.pool} has no prefix to announce")

    def protocols(self) -> tuple[str, ...]:
        """The names of its static protocols: one per IP version, since a static protocol has one channel."""
        return tuple(names.pool_protocol(self.pool, version) for version in _versions(self.prefixes))


@dataclass(frozen=True, slots=True)
class Announcements:
    """All pools that this gateway has a part in: the whole announcement file."""

    pools: tuple[PoolAnnouncement, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for pool in self.pools:
            for protocol in pool.protocols():
                if protocol in seen:
                    raise ValueError(f"pools {seen[protocol]} and {pool.pool} would both be {protocol} in BIRD")
                seen[protocol] = pool.pool


def edge_text(config: EdgeConfig) -> str:
    """The whole bird.conf of an edge."""
    versions = _versions(prefix for session in config.sessions for prefix in session.accept)
    parts = [
        _HEADER + _FIXED + f"router id {config.router_id};\n",
        _DEVICE,
        *(_signal(version, config.signal_table) for version in versions),
        _bfd(config.bfd, config.sessions),
    ]
    for session in config.sessions:
        session_versions = _versions(session.accept)
        parts += [_import_filter(session, version, config.import_extra) for version in session_versions]
        channels = [
            f"\tipv{version} {{ import filter {names.import_filter(session.name, version)}; export none; }};\n"
            for version in session_versions
        ]
        # Gateways sit behind NAT and may come and go: they connect, the edge waits.
        head = _bgp_head(session, config.asn, config.bgp_port, config.hold_time_s, passive=True)
        parts.append(head + "".join(channels) + "}\n")
    parts += _included(config.local_include)
    return "\n".join(parts)


def gateway_text(config: GatewayConfig) -> str:
    """The whole bird.conf of a gateway."""
    versions = _versions(config.probe_prefixes)
    parts = [
        _HEADER + _FIXED + f"router id {config.router_id};\n",
        _DEVICE,
        _bfd(config.bfd, config.sessions),
        *(
            _static(names.probe_protocol(version), version, config.probe_prefixes, disabled=False)
            for version in versions
        ),
        f"filter {names.PREFIX}out {{\n"
        f'\tif proto ~ "{names.PREFIX}pool*" || proto ~ "{names.PREFIX}probe*" then accept;\n'
        f'\tif source = RTS_STATIC && proto ~ "{names.LOCAL_PREFIX}*" then accept;\n'
        "\treject;\n}\n",
    ]
    channels = "".join(f"\tipv{v} {{ import none; export filter {names.PREFIX}out; }};\n" for v in versions)
    for session in config.sessions:
        head = _bgp_head(session, config.asn, config.bgp_port, config.hold_time_s, passive=False)
        parts.append(head + channels + "}\n")
    parts.append(f'include "{_optional(config.announce_file)}";\n')
    parts += _included(config.local_include)
    return "\n".join(parts)


def announcements_text(announcements: Announcements) -> str:
    """The announcement file that a gateway's bird.conf includes."""
    return "\n".join([_HEADER, *(_pool_text(pool) for pool in announcements.pools)])


@lru_cache(maxsize=4096)  # in a move the text of all pools but one is what it was, and the move waits for it
def _pool_text(pool: PoolAnnouncement) -> str:
    return "\n".join(
        _static(names.pool_protocol(pool.pool, version), version, pool.prefixes, disabled=not pool.announced)
        for version in _versions(pool.prefixes)
    )


def _signal(version: int, table: int) -> str:
    return (
        f"protocol kernel {names.signal_protocol(version)} {{\n"
        f"\tkernel table {table};\n\tscan time 60;\n"
        f"\tipv{version} {{ import none; export all; }};\n}}\n"
    )


def _bfd(bfd: Bfd, sessions: Sequence[Session]) -> str:
    # Named interfaces only: a pattern would also match tunnels that are not in this configuration.
    patterns = ", ".join(f'"{_checked_interface(session.interface)}"' for session in sessions)
    interfaces = (
        f"\tinterface {patterns} {{\n"
        f"\t\tinterval {bfd.interval_ms} ms;\n\t\tmultiplier {bfd.multiplier};\n"
        f"\t\tidle tx interval {bfd.idle_interval_ms} ms;\n\t}};\n"
        if sessions
        else ""
    )
    return f"protocol bfd {names.PREFIX}bfd {{\n\taccept direct;\n\tstrict bind on;\n{interfaces}}}\n"


def _import_filter(session: Session, version: int, extra: Path | None) -> str:
    accept = ", ".join(str(prefix) for prefix in _of_version(session.accept, version))
    hook = f'\tinclude "{_existing(extra)}";\n' if extra is not None else ""
    return (
        f"filter {names.import_filter(session.name, version)} {{\n"
        f"\tif net ~ [ {accept} ] then accept;\n{hook}\treject;\n}}\n"
    )


def _bgp_head(session: Session, asn: int, port: int, hold_time_s: int, *, passive: bool) -> str:
    passive_line = "\tpassive on;\n" if passive else ""
    return (
        f"protocol bgp {names.session_protocol(session.name)} {{\n"
        f"\tlocal {session.local} port {port} as {asn};\n"
        f"\tneighbor {session.neighbor} port {port} as {session.far_asn};\n"
        f'\tinterface "{_checked_interface(session.interface)}";\n'
        f"\tdirect;\n\tstrict bind on;\n{passive_line}"
        f"\tbfd on;\n\tgraceful restart off;\n\tlong lived graceful restart off;\n"
        f"\thold time {hold_time_s};\n"
        "\tconnect delay time 1;\n\tconnect retry time 1;\n\terror wait time 1, 2;\n"
    )


def _static(name: str, version: int, prefixes: Iterable[Network], *, disabled: bool) -> str:
    # The target never reaches a kernel here; `blackhole` is the one that needs no neighbour to be valid.
    routes = "".join(f"\troute {prefix} blackhole;\n" for prefix in _of_version(prefixes, version))
    disabled_line = "\tdisabled;\n" if disabled else ""
    return f"protocol static {name} {{\n{disabled_line}\tipv{version};\n{routes}}}\n"


def _included(path: Path | None) -> list[str]:
    return [] if path is None else [f'include "{_existing(path)}";\n']


def _existing(path: Path) -> str:
    text = str(path)
    if not path.is_absolute() or any(char in text for char in '"' + _GLOB_CHARS) or not text.isprintable():
        raise ValueError(f"BIRD can include only an absolute path without quotes and wildcards, not {text!r}")
    return text


def _optional(path: Path) -> str:
    # A wildcard that matches nothing is no error to BIRD, a missing file is.
    text = _existing(path)
    return f"{text[:-1]}[{text[-1]}]"


def _versions(prefixes: Iterable[Network]) -> tuple[int, ...]:
    return tuple(sorted({prefix.version for prefix in prefixes}))


def _of_version(prefixes: Iterable[Network], version: int) -> list[Network]:
    return sorted({prefix for prefix in prefixes if prefix.version == version}, key=_network_key)


def _network_key(prefix: Network) -> tuple[int, int]:
    return int(prefix.network_address), prefix.prefixlen


def _checked_interface(name: str) -> str:
    if not name or len(name) > 15 or not name.isprintable() or any(char in name for char in '"*? /'):
        raise ValueError(f"not a network interface's name: {name!r}")
    return name


def _within(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{what} must be {low}..{high}, not {value}")


def _check_bgp(asn: int, port: int, hold_time_s: int, sessions: Sequence[Session]) -> None:
    _within("asn", asn, 1, 0xFFFF_FFFF)
    for session in sessions:
        _within("the neighbour's asn", session.far_asn, 1, 0xFFFF_FFFF)
    _within("bgp_port", port, 1, 0xFFFF)
    _within("hold_time_s", hold_time_s, 3, 0xFFFF)
    taken = [names.session_protocol(session.name) for session in sessions]
    if len(set(taken)) != len(taken):
        raise ValueError("two sessions have the same name")
