"""What there is in the lab, as data: machines, links, addresses, services.

```
client - transit (another AS) - edge-1 - nat-a - gw-a - cluster LAN - worker-1 (the pod)
                                       - nat-b - gw-b -/
management network: etcd-1..3, orch-1..3, edge-1, gw-a, gw-b
```

With two edges there is edge-2 as well, between the same transit and the same NAT boxes, on wires of its own. Both
announce the aggregate, and edge-2 the upper half of the pool besides: what goes there comes in by edge-2 as long as
that lives, everything else by edge-1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fsm.types import PROFILES

POOL = "external-ip-pool-1"
POOL_PREFIX = "192.0.2.0/26"
AGGREGATE = "192.0.2.0/24"
UPPER_HALF, UPPER_HALF_IPV6 = "192.0.2.32/27", "2001:db8:2:0:8000::/65"
"""The part of the pool that a second edge attracts."""
FLOOR_PREFIX = "192.0.2.240/28"
SERVICE_ADDRESS = "192.0.2.10"
POOL_PREFIX_IPV6, AGGREGATE_IPV6, SERVICE_ADDRESS_IPV6 = "2001:db8:2::/64", "2001:db8:2::/48", "2001:db8:2::10"
SECOND_SERVICE_ADDRESS, SECOND_SERVICE_ADDRESS_IPV6 = "192.0.2.42", "2001:db8:2:0:8000::10"
"""The same service in the upper half."""
POOL_PREFIXES = (POOL_PREFIX, POOL_PREFIX_IPV6)
UDP_PORT = 7
TCP_PORT = 8080
POD_ADDRESS, POD_ADDRESS_IPV6 = "10.244.1.10", "fd10:244:1::10"
CLIENT_ADDRESS = "198.51.100.10"
EDGE_ADDRESS, EDGE_ADDRESS_IPV6 = "203.0.113.1", "2001:db8:113::1"
OUTSIDE_IPV6 = "2001:db8:b{}"
"""Behind a NAT box, by its number."""
TRANSIT_ADDRESS, TRANSIT_ADDRESS_IPV6 = "203.0.113.2", "2001:db8:113::2"
EDGE_ASN, TRANSIT_ASN, GATEWAY_ASN = 64512, 64601, 64513
SIGNAL_TABLE = 10177
BFD_INTERVAL_MS, BFD_MULTIPLIER = 50, 3

GATEWAYS = ("gw-a", "gw-b")
PROBE_PREFIXES = dict(zip(GATEWAYS, ("10.78.0.1/32", "10.78.0.2/32"), strict=True))
"""What each gateway announces as long as its session lives, whatever it owns."""
ETCD = {"etcd-1": "10.99.0.11", "etcd-2": "10.99.0.12", "etcd-3": "10.99.0.13"}
ORCHESTRATORS = ("orch-1", "orch-2", "orch-3")
FABRIC = "fabric"

OUR_BIRD_FOLDER = "/run/bgplb/bird"
OUR_BIRD_SOCKET = "/run/bgplb/bird.ctl"
OPERATOR_BIRD_SOCKET = "/run/bird/bird.ctl"


@dataclass(frozen=True)
class Site:
    """Where an edge stands: its wires and the addresses on them.

    `underlay`: on the wire to each NAT box the edge's address and the box's, of a /30; `underlay_ipv6` is that wire's
    prefix by the number of the NAT box. `attracts`: prefixes that it announces besides the aggregates.
    """

    name: str
    address: str
    address_ipv6: str
    transit: str
    transit_ipv6: str
    management: str
    underlay: dict[str, tuple[str, str]]
    underlay_ipv6: str
    tag: str = "edge"
    """Beginning of its bridges' names."""
    attracts: tuple[str, ...] = ()


SITES = (
    Site(
        "edge-1",
        EDGE_ADDRESS,
        EDGE_ADDRESS_IPV6,
        TRANSIT_ADDRESS,
        TRANSIT_ADDRESS_IPV6,
        "10.99.0.31",
        {"a": ("203.0.113.5", "203.0.113.6"), "b": ("203.0.113.9", "203.0.113.10")},
        "2001:db8:a{}",
    ),
    Site(
        "edge-2",
        "203.0.113.17",
        "2001:db8:114::1",
        "203.0.113.18",
        "2001:db8:114::2",
        "10.99.0.32",
        {"a": ("203.0.113.21", "203.0.113.22"), "b": ("203.0.113.25", "203.0.113.26")},
        "2001:db8:c{}",
        tag="edge-2",
        attracts=(UPPER_HALF, UPPER_HALF_IPV6),
    ),
)
EDGES = tuple(site.name for site in SITES)
"""All that there can be; a lab has the first, or more of them."""
NAT_BOXES = {"a": 1, "b": 2}
"""Letter and number of each."""


class Profile(StrEnum):
    """How soon a dead gateway is noticed: the manifests' `failover.profile`."""

    FAST = "fast"
    LAN = "lan"
    WAN = "wan"

    @property
    def notice_ms(self) -> int:
        """BFD's detection time: interval times multiplier, in milliseconds (RFC 5880 section 6.8.4)."""
        timing = PROFILES[self.value]
        return timing.interval_ms * timing.multiplier


class Family(StrEnum):
    """The IP versions over which probes ask the service."""

    IPV4 = "4"
    IPV6 = "6"
    BOTH = "both"

    def services(self, edges: int = 1) -> dict[str, str]:
        """The service's addresses by IP version; with two edges also those that lead through the second one."""
        every = {"4": SERVICE_ADDRESS, "6": SERVICE_ADDRESS_IPV6}
        second = {"4": SECOND_SERVICE_ADDRESS, "6": SECOND_SERVICE_ADDRESS_IPV6}
        asked = {version: address for version, address in every.items() if self in (Family.BOTH, version)}
        return asked if edges == 1 else asked | {f"{v} by {EDGES[1]}": second[v] for v in asked}


class Auth(StrEnum):
    """How the daemons log in to etcd; with any but NONE it speaks TLS and its access control is on."""

    NONE = "none"
    CERTIFICATE = "certificate"
    PASSWORD = "password"  # noqa: S105 the name of a way, and no secret


@dataclass(frozen=True)
class Port:
    """An interface of a machine; its other end, `MACHINE.NAME`, is a port of `bridge` in the fabric."""

    name: str
    bridge: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """A program that the machine's first process keeps running; None as restart delay: it runs once.

    `nice` is the scheduling weight that its unit would ask for (-20 first, 19 last), passed on to what it starts.
    """

    name: str
    argv: tuple[str, ...]
    restart_after_s: float | None = 1.0
    daemon_of_ours: bool = False
    nice: int = 0

    @property
    def command(self) -> tuple[str, ...]:
        """The argument list with its nice value; `nice` replaces itself by the program, so the process is the same."""
        return self.argv if self.nice == 0 else ("nice", "-n", str(self.nice), *self.argv)


@dataclass(frozen=True)
class Machine:
    """One machine. `ports` are in the order in which a power cut takes them: underlay first."""

    name: str
    ports: tuple[Port, ...] = ()
    routes: tuple[str, ...] = ()
    sysctls: dict[str, str] = field(default_factory=dict)
    services: tuple[Service, ...] = ()
    nft: str = ""
    extra_addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Programs:
    """Where the lab's own programs are: the interpreter, the `bgplb` command, the folder of the lean scripts."""

    python: str
    bgplb: str
    scripts: str

    def script(self, name: str, *arguments: str) -> tuple[str, ...]:
        """The argument list that runs one of the lab's standard-library-only scripts."""
        return (self.python, "-I", "-S", f"{self.scripts}/{name}.py", *arguments)


QUIET = {
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
    "net.ipv6.conf.default.accept_dad": "0",
    "net.ipv6.conf.default.accept_ra": "0",
}
ROUTER = QUIET | {"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}

OPERATOR_BIRD = Service("operator-bird", ("bird", "-f", "-c", "/etc/bird/bird.conf", "-s", OPERATOR_BIRD_SOCKET))
FIRST = -15
"""Nice value of what must not wait for a processor when a gateway dies: our BIRD, the agents and their tunnels."""
MEASURING = -10
"""Nice value of what answers the probes, as of what sends them: a late answer would be taken for a late network."""
OUR_BIRD = Service(
    "bird", ("bird", "-f", "-c", f"{OUR_BIRD_FOLDER}/bird.conf", "-s", OUR_BIRD_SOCKET), daemon_of_ours=True, nice=FIRST
)


def agent(name: str, programs: Programs) -> Service:
    """An agent of ours."""
    return Service(name, (programs.bgplb, name), daemon_of_ours=True, nice=FIRST)


OUTER_PORTS = "out*"
"""What a NAT box calls its ports on the edges' side, one for each."""

MASQUERADE = f"""\
table ip nat {{
  chain out {{
    type nat hook postrouting priority 100;
    oifname "{OUTER_PORTS}" masquerade
  }}
}}
"""
"""What a home router or a carrier's NAT box does."""

SERVICE_NFT = f"""\
table ip service {{
  chain in {{
    type nat hook prerouting priority -100;
    ip daddr {{ {SERVICE_ADDRESS}, {SECOND_SERVICE_ADDRESS} }} udp dport {UDP_PORT} dnat to {POD_ADDRESS}:{UDP_PORT}
    ip daddr {SERVICE_ADDRESS} tcp dport {TCP_PORT} dnat to {POD_ADDRESS}:{TCP_PORT}
  }}
  chain out {{
    type nat hook postrouting priority 100;
    ip daddr {POD_ADDRESS} masquerade
  }}
}}
table ip6 service {{
  chain in {{
    type nat hook prerouting priority -100;
    ip6 daddr {{ {SERVICE_ADDRESS_IPV6}, {SECOND_SERVICE_ADDRESS_IPV6} }} \\
      udp dport {UDP_PORT} dnat to [{POD_ADDRESS_IPV6}]:{UDP_PORT}
    ip6 daddr {SERVICE_ADDRESS_IPV6} tcp dport {TCP_PORT} dnat to [{POD_ADDRESS_IPV6}]:{TCP_PORT}
  }}
  chain out {{
    type nat hook postrouting priority 100;
    ip6 daddr {POD_ADDRESS_IPV6} masquerade
  }}
}}
"""


def management(address: str) -> Port:
    """The management interface of a machine."""
    return Port("mgmt0", "mgmt", (f"{address}/24",))


def gateway(letter: str, host: int, network: int, management_address: str, programs: Programs) -> Machine:
    """A gateway behind its own NAT box, with the service's DNAT as kube-proxy would write it."""
    outside = OUTSIDE_IPV6.format(network)
    return Machine(
        f"gw-{letter}",
        (
            Port("under0", f"nat-{letter}-gw-{letter}", (f"10.0.{network}.{host}/24", f"{outside}::{host}/64")),
            Port("lan0", "cluster-lan", (f"10.10.0.{host}/24", f"fd10::{host}/64")),
            management(management_address),
        ),
        (
            f"default via 10.0.{network}.1",
            f"default via {outside}::1",
            "10.244.1.0/24 via 10.10.0.13",
            "fd10:244:1::/64 via fd10::13",
        ),
        ROUTER,
        (OUR_BIRD, agent("node-agent", programs)),
        SERVICE_NFT,
    )


def nat_box(letter: str, sites: Sequence[Site]) -> Machine:
    """A NAT box between the edges and a gateway; it forgets nothing but its mappings' time-outs. IPv6 it only routes.

    By default all goes to the first edge.
    """
    network = NAT_BOXES[letter]
    outer, routes = [], []
    for number, site in enumerate(sites):
        (edge_side, own_side), ipv6 = site.underlay[letter], site.underlay_ipv6.format(network)
        outer.append(Port(f"out{number}", f"{site.tag}-nat-{letter}", (f"{own_side}/30", f"{ipv6}::2/64")))
        targets = ("default", "default") if number == 0 else (f"{site.address}/32", f"{site.address_ipv6}/128")
        routes += [f"{targets[0]} via {edge_side}", f"{targets[1]} via {ipv6}::1"]
    inner = (f"10.0.{network}.1/24", f"{OUTSIDE_IPV6.format(network)}::1/64")
    ports = (*outer, Port("in0", f"nat-{letter}-gw-{letter}", inner))
    return Machine(f"nat-{letter}", ports, tuple(routes), ROUTER, (), MASQUERADE)


def endpoints(auth: Auth) -> dict[str, str]:
    """Where etcd's members are asked: member -> address with its scheme."""
    return {member: f"{scheme(auth)}://{address}:2379" for member, address in ETCD.items()}


def scheme(auth: Auth) -> str:
    """What etcd's members speak, with clients and among themselves."""
    return "http" if auth is Auth.NONE else "https"


def etcd_tls(auth: Auth) -> tuple[str, ...]:
    """etcd's arguments for TLS. It asks every client for a certificate once it has an authority for them."""
    if auth is Auth.NONE:
        return ()
    own = ("/etc/bgplb/member.pem", "/etc/bgplb/member.key")
    asking = ("--trusted-ca-file", "/etc/bgplb/ca.pem", "--client-cert-auth") if auth is Auth.CERTIFICATE else ()
    return (
        *("--cert-file", own[0], "--key-file", own[1], *asking),
        *("--peer-cert-file", own[0], "--peer-key-file", own[1]),
        *("--peer-trusted-ca-file", "/etc/bgplb/ca.pem", "--peer-client-cert-auth"),
    )


def etcd_member(name: str, auth: Auth) -> Machine:
    """One of three members; its data is on the lab's disk and etcd's fsync is left on."""
    peers = {member: f"{scheme(auth)}://{address}:2380" for member, address in ETCD.items()}
    client = endpoints(auth)[name]
    cluster = ",".join(f"{member}={peer}" for member, peer in peers.items())
    argv = (
        "etcd",
        *("--name", name, "--data-dir", "/var/lib/bgplb/etcd", "--log-level", "warn"),
        *("--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name]),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--initial-cluster", cluster, "--initial-cluster-state", "new", "--initial-cluster-token", "lab"),
        *etcd_tls(auth),
    )
    return Machine(name, (management(ETCD[name]),), (), QUIET, (Service("etcd", argv),))


def orchestrator(number: int, programs: Programs) -> Machine:
    """One replica of the orchestrator."""
    service = Service("orchestrator", (programs.bgplb, "orchestrator"), daemon_of_ours=True, nice=-5)
    return Machine(f"orch-{number}", (management(f"10.99.0.{20 + number}"),), (), QUIET, (service,))


def edge(site: Site, programs: Programs) -> Machine:
    """An edge: the operator's own BIRD with the transit session, and ours beside it."""
    wires = tuple(
        Port(
            f"nat-{letter}0",
            f"{site.tag}-nat-{letter}",
            (f"{site.underlay[letter][0]}/30", f"{site.underlay_ipv6.format(number)}::1/64"),
        )
        for letter, number in NAT_BOXES.items()
    )
    return Machine(
        site.name,
        (
            *wires,
            Port("up0", f"transit-{site.tag}", (f"{site.address}/30", f"{site.address_ipv6}/64")),
            management(site.management),
        ),
        tuple(f"{OUTSIDE_IPV6.format(n)}::/64 via {site.underlay_ipv6.format(n)}::2" for n in NAT_BOXES.values()),
        ROUTER,
        (OPERATOR_BIRD, OUR_BIRD, agent("edge-agent", programs)),
    )


def transit(sites: Sequence[Site]) -> Machine:
    """The other AS: the client's provider, with a wire to each edge."""
    wires = (
        Port(f"edge{number}", f"transit-{site.tag}", (f"{site.transit}/30", f"{site.transit_ipv6}/64"))
        for number, site in enumerate(sites)
    )
    client = Port("client0", "client-tr", ("198.51.100.1/24", "2001:db8:51::1/64"))
    return Machine("transit", (client, *wires), (), ROUTER, (OPERATOR_BIRD,))


def machines(programs: Programs, auth: Auth = Auth.NONE, edges: int = 1) -> dict[str, Machine]:
    """Every machine by name, in the order in which they start; the fabric and etcd first."""
    sites = SITES[:edges]
    pod = (POD_ADDRESS, POD_ADDRESS_IPV6)
    udp_echo = Service("echo-udp", programs.script("echo", "udp", str(UDP_PORT), *pod), nice=MEASURING)
    tcp_echo = Service("echo-tcp", programs.script("echo", "tcp", str(TCP_PORT), *pod))
    every = (
        Machine(FABRIC),
        *(etcd_member(name, auth) for name in ETCD),
        Machine(
            "client",
            (Port("eth0", "client-tr", (f"{CLIENT_ADDRESS}/24", "2001:db8:51::10/64")),),
            ("default via 198.51.100.1", "default via 2001:db8:51::1"),
            QUIET,
        ),
        transit(sites),
        *(nat_box(letter, sites) for letter in NAT_BOXES),
        Machine(
            "worker-1",
            (Port("lan0", "cluster-lan", ("10.10.0.13/24", "fd10::13/64")),),
            (),
            QUIET,
            (udp_echo, tcp_echo),
            extra_addresses=(f"{POD_ADDRESS}/32", f"{POD_ADDRESS_IPV6}/128"),
        ),
        *(edge(site, programs) for site in sites),
        gateway("a", 11, 1, "10.99.0.41", programs),
        gateway("b", 12, 2, "10.99.0.42", programs),
        *(orchestrator(number, programs) for number in (1, 2, 3)),
    )
    return {machine.name: machine for machine in every}


def bridges(machines: Iterable[Machine]) -> tuple[str, ...]:
    """The fabric's bridges, one for each wire between machines."""
    return tuple(dict.fromkeys(port.bridge for machine in machines for port in machine.ports))
