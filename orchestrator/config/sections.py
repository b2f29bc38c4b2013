"""The parts that several daemons' configuration files share. Units are the last word of a name."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fsm.desired import MAX_EDGES
from orchestrator.config.problems import refuse, setting

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
NAME_RULE = "a DNS label: 1 to 63 of a-z, 0-9 and '-', not beginning or ending with '-' (RFC 1123)"
RESERVED_TABLES = {0: "unspec", 253: "default", 255: "local"}
"""Routing tables of the kernel's own that cannot be used for ours (/etc/iproute2/rt_tables)."""


class Section(BaseModel):
    """A part of a configuration file: unknown fields and wrong types are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _listen_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        address = None
    if address is None or (address.version == 6) != host.startswith("[") or not port.isascii() or not port.isdigit():
        raise ValueError("ADDRESS:PORT, such as 127.0.0.1:9177 or [::1]:9177")
    if int(port) > 65535:
        raise ValueError("a port of 0 to 65535, where 0 lets the kernel choose")
    return text


def _etcd_endpoint(text: str) -> str:
    """A member without a scheme is taken as http, as etcd's own tools do."""
    match = re.fullmatch(r"(https?://)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})", text)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise ValueError("http://HOST:PORT or https://HOST:PORT")
    return text if match[1] else f"http://{text}"


def _ip_address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("an IPv4 or IPv6 address") from None


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("an absolute path")
    return path


AbsolutePath = Annotated[Path, Field(strict=False), AfterValidator(_absolute)]
IpAddress = Annotated[str, AfterValidator(_ip_address)]
EtcdEndpoint = Annotated[str, AfterValidator(_etcd_endpoint)]
ListenAddress = Annotated[str, AfterValidator(_listen_address)]


class Etcd(Section):
    """Where etcd is and how we log in."""

    endpoints: Annotated[tuple[EtcdEndpoint, ...], Field(strict=False)] = setting(
        ...,
        "Members of the etcd cluster; name them all, one that is down is passed over",
        allowed="a list of at least one http://HOST:PORT or https://HOST:PORT",
        example=["http://127.0.0.1:2379"],
        min_length=1,
    )
    prefix: str = setting(
        "/bgplb/v1/",
        "All keys begin with this; the same for every daemon of an installation",
        allowed="a path that begins and ends with '/', such as /bgplb/v1/",
        pattern=r"^/([!-.0-~]+/)+$",
    )
    ca: AbsolutePath | None = setting(
        None, "Certificates that sign the members' ones (PEM)", allowed="an absolute path"
    )
    cert: AbsolutePath | None = setting(None, "Our own client certificate (PEM)", allowed="an absolute path")
    key: AbsolutePath | None = setting(None, "The key of `cert` (PEM)", allowed="an absolute path")
    username: str | None = setting(None, "User of etcd", allowed="a name that is not empty", min_length=1)
    password_file: AbsolutePath | None = setting(
        None, "File whose first line is that user's password", allowed="an absolute path"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        broken = []
        if (self.cert is None) != (self.key is None):
            broken.append(("key" if self.key is None else "cert", "cert and key are given together or not at all"))
        if (self.username is None) != (self.password_file is None):
            field = "username" if self.username is None else "password_file"
            broken.append((field, "username and password_file are given together or not at all"))
        if len({endpoint.split(":")[0] for endpoint in self.endpoints}) > 1:
            broken.append(("endpoints", "all with http:// or all with https://"))
        elif (self.ca or self.cert) and self.endpoints[0].startswith("http:"):
            broken.append(("endpoints", "https:// as ca or cert is given"))
        refuse(broken)
        return self


class Lease(Section):
    """How a daemon shows that it lives: a lease in etcd, and a heartbeat under it."""

    ttl_ms: int = setting(
        3000,
        "Life of the lease without renewal, in milliseconds; etcd's shortest is 2000 with its default timers",
        allowed="2000 to 60000 milliseconds, in whole seconds",
        ge=2000,
        le=60_000,
        multiple_of=1000,
    )
    renew_every_ms: int = setting(
        1000, "Time between two renewals, in milliseconds", allowed="100 milliseconds to a third of ttl_ms", ge=100
    )
    heartbeat_every_ms: int = setting(
        250, "Time between two heartbeats, in milliseconds", allowed="50 to 5000 milliseconds", ge=50, le=5000
    )
    stale_after_ms: int = setting(
        1000,
        "Age of the last heartbeat from which a daemon counts as stale, in milliseconds; only the orchestrator judges",
        allowed="at least twice heartbeat_every_ms, and less than ttl_ms",
        ge=100,
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        broken = []
        if self.renew_every_ms * 3 > self.ttl_ms:
            broken.append(("renew_every_ms", f"at most a third of ttl_ms, {self.ttl_ms // 3} milliseconds"))
        if self.stale_after_ms >= self.ttl_ms:
            broken.append(("stale_after_ms", f"less than ttl_ms, {self.ttl_ms} milliseconds"))
        if self.stale_after_ms < 2 * self.heartbeat_every_ms:
            least = 2 * self.heartbeat_every_ms
            broken.append(("stale_after_ms", f"at least twice heartbeat_every_ms, {least} milliseconds"))
        refuse(broken)
        return self


class Log(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Least weight of a line that is written", allowed="debug, info, warning or error"
    )
    format: Literal["json", "console"] = setting(
        "json", "One JSON object a line, or lines for people", allowed="json or console"
    )


class Http(Section):
    """Metrics and health over HTTP; nothing else is ever served."""

    listen: ListenAddress | None = setting(
        None, "Where /metrics, /healthz and /readyz are served; null serves nothing", allowed="ADDRESS:PORT or null"
    )


class Bird(Section):
    """Our own BIRD: a service of its own, started with `bird -f -c CONFIG_DIR/bird.conf -s SOCKET`."""

    socket: AbsolutePath = setting(
        Path("/run/bgplb/bird.ctl"), "BIRD's control socket; RUN_DIR/bird.ctl unless given", allowed="an absolute path"
    )
    config_dir: AbsolutePath = setting(
        Path("/run/bgplb/bird"),
        "Where the agent writes bird.conf and announce.conf, on tmpfs: nothing is announced after a boot. "
        "RUN_DIR/bird unless given",
        allowed="an absolute path",
    )
    local_include: AbsolutePath | None = setting(
        None, "The operator's own file, included at the end of bird.conf", allowed="an absolute path"
    )
    import_extra: AbsolutePath | None = setting(
        None, "The operator's own file, included in the import filter of the edge", allowed="an absolute path"
    )

    @property
    def config_file(self) -> Path:
        """bird.conf, written whole by the agent."""
        return self.config_dir / "bird.conf"

    @property
    def announce_file(self) -> Path:
        """announce.conf: what a gateway announces."""
        return self.config_dir / "announce.conf"


class WireGuard(Section):
    """The tunnels."""

    backend: Literal["auto", "kernel", "userspace"] = setting(
        "auto",
        "Who does WireGuard: the kernel, wireguard-go, or the kernel where it can",
        allowed="auto, kernel or userspace",
    )
    interface_prefix: str = setting(
        "bgplb-",
        "Beginning of the names of all tunnel interfaces",
        allowed="1 to 11 of a-z, 0-9, '-' and '_', beginning with a letter",
        pattern=r"^[a-z][a-z0-9_-]{0,10}$",
    )
    private_key_file: AbsolutePath = setting(
        Path("/var/lib/bgplb/wireguard.key"),
        "The private key, made there with mode 0600 if absent; STATE_DIR/wireguard.key unless given",
        allowed="an absolute path",
    )


class Marks(Section):
    """Connection and packet marks of the way back."""

    mask: int = setting(
        0xFF00_0000,
        "Bits of the mark that are ours; all others are left alone. One value per edge",
        allowed="4 to 16 bits in a row within 32 bits, such as 0xff000000",
        gt=0,
        lt=1 << 32,
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ours = self.mask >> self.shift
        if ours & (ours + 1) or not 4 <= ours.bit_length() <= 16:
            refuse([("mask", "4 to 16 bits in a row within 32 bits, such as 0xff000000")])
        return self

    @property
    def shift(self) -> int:
        """Number of the lowest bit that is ours."""
        return (self.mask & -self.mask).bit_length() - 1

    def has_room_for(self, edge_index: int) -> bool:
        """Whether there is a value for that edge."""
        return 0 <= edge_index < self.mask >> self.shift

    def value(self, edge_index: int) -> int:
        """The mark of an edge, within the mask: 1 for the first, since 0 means no mark.

        Raises ValueError where the mask has no room for that many edges.
        """
        if not self.has_room_for(edge_index):
            raise ValueError(f"marks.mask {self.mask:#x} has no room for edge number {edge_index}")
        return (edge_index + 1) << self.shift


class Tables(Section):
    """Numbers of routing tables."""

    TOP: ClassVar[int] = 0xFFFF_FFFF

    main: int = setting(254, "Table of the edge that gets the steering routes", allowed="1 to 4294967295", ge=1, le=TOP)
    signal: int = setting(
        10177,
        "Table of the edge that our BIRD writes to and no rule reads",
        allowed="1 to 4294967295, and not a table of the kernel's own",
        ge=1,
        le=TOP,
    )
    first: int = setting(
        10077,
        "Table of a gateway for the answers through the first edge; the next edges take the next numbers, "
        f"{MAX_EDGES} in all",
        allowed="1 to 4294967232, and not a table of the kernel's own",
        ge=1,
        le=TOP - MAX_EDGES + 1,
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        broken = []
        for field, number in (("main", self.main), ("signal", self.signal), ("first", self.first)):
            if number in RESERVED_TABLES:
                broken.append((field, f"not {number}, the kernel's own table '{RESERVED_TABLES[number]}'"))
        if self.signal == self.main:
            broken.append(("signal", f"another table than main, {self.main}"))
        answers = range(self.first, self.first + MAX_EDGES)
        for field, number in (("main", self.main), ("signal", self.signal), ("kernel", 254)):
            if number in answers:
                text = "the kernel's main table" if field == "kernel" else field
                broken.append(("first", f"{MAX_EDGES} numbers from here on that do not meet {text}, {number}"))
                break
        refuse(broken)
        return self


class Root(Section):
    """What every daemon's file has."""

    LISTEN: ClassVar[str] = ""

    name: str = setting(
        ..., "Name of this daemon, the only live one of its role with it", allowed=NAME_RULE, pattern=DNS_LABEL
    )
    state_dir: AbsolutePath = setting(
        Path("/var/lib/bgplb"), "What must survive a reboot: instance, keys, epochs", allowed="an absolute path"
    )
    run_dir: AbsolutePath = setting(
        Path("/run/bgplb"), "What must not survive a reboot: sockets, announcements (tmpfs)", allowed="an absolute path"
    )
    etcd: Etcd = setting(..., "The store", allowed="a mapping with at least endpoints")
    lease: Lease = setting(Lease(), "The sign of life", allowed="a mapping")
    log: Log = setting(Log(), "The log", allowed="a mapping")
    http: Http = setting(Http(), "Metrics and health", allowed="a mapping")

    @model_validator(mode="before")
    @classmethod
    def _places(cls, data: Any) -> Any:
        """Fill in what follows from other values, where the file leaves it open."""
        return cls._derive(dict(data)) if isinstance(data, dict) else data

    @classmethod
    def _derive(cls, data: dict[str, Any]) -> dict[str, Any]:
        _offer(data, "http", "listen", cls.LISTEN)
        return data

    @property
    def admin_socket(self) -> Path:
        """The socket that answers `dump` and `status`."""
        return self.run_dir / f"{self.name}.sock"


class Agent(Root):
    """What the files of both agents have."""

    bird: Bird = setting(Bird(), "Our BIRD", allowed="a mapping")
    wireguard: WireGuard = setting(WireGuard(), "The tunnels", allowed="a mapping")
    marks: Marks = setting(Marks(), "Marks of the way back", allowed="a mapping")
    tables: Tables = setting(Tables(), "Routing tables", allowed="a mapping")

    @classmethod
    def _derive(cls, data: dict[str, Any]) -> dict[str, Any]:
        data = super()._derive(data)
        run_dir, state_dir = data.get("run_dir", "/run/bgplb"), data.get("state_dir", "/var/lib/bgplb")
        if isinstance(run_dir, str) and run_dir.startswith("/"):
            _offer(data, "bird", "socket", f"{run_dir.rstrip('/')}/bird.ctl")
            _offer(data, "bird", "config_dir", f"{run_dir.rstrip('/')}/bird")
        if isinstance(state_dir, str) and state_dir.startswith("/"):
            _offer(data, "wireguard", "private_key_file", f"{state_dir.rstrip('/')}/wireguard.key")
        return data


def _offer(data: dict[str, Any], section: str, field: str, value: str) -> None:
    """Set a field that the file leaves open, unless its section is no mapping, which is refused later."""
    given = data.get(section, {})
    if isinstance(given, dict):
        data[section] = {field: value, **given}
