"""The manifests as a person writes them: one EIPPool or EdgeGateway, checked by itself.

What several objects must be to each other is checked in `orchestrator.config.intent`. A feature that this version does
not have is refused by name and never silently left out.
"""

import ipaddress
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from fsm.desired import MAX_EDGES, MAX_GATEWAYS
from fsm.records import EdgeGatewaySpec, EdgeSpec, PoolSpec
from orchestrator.config.problems import refuse, setting
from orchestrator.config.sections import DNS_LABEL, NAME_RULE

API_VERSION = "networking.example.net/v1alpha1"
ASN_RULE = "1 to 4294967294, but not 23456 or 65535 (RFC 6793, RFC 7300)"
PREFIX_RULE = (
    "an IPv4 prefix of /16 to /32 or an IPv6 prefix of /32 to /128 without host bits, such as 192.0.2.0/26 or "
    "2001:db8:2::/64"
)
WIDEST, NARROWEST = {4: 16, 6: 32}, {4: 32, 6: 128}
"""Prefix lengths of a pool by IP version."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Manifest(BaseModel):
    """A part of a manifest: field names in camelCase, unknown ones refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


def network(text: str, rule: str) -> Network:
    """A prefix without host bits. Raises ValueError with `rule`, or with the prefix that was probably meant."""
    try:
        if "/" not in text:
            raise ValueError(text)
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(rule) from None
    if "/" not in text:
        raise ValueError(f"{rule}; a single address is {meant}")
    raise ValueError(f"host bits are set; the prefix is {meant}")


def within(net: Network, around: Network) -> bool:
    """Whether a prefix lies in another; not if they are of different families."""
    if isinstance(net, ipaddress.IPv4Network) and isinstance(around, ipaddress.IPv4Network):
        return net.subnet_of(around)
    if isinstance(net, ipaddress.IPv6Network) and isinstance(around, ipaddress.IPv6Network):
        return net.subnet_of(around)
    return False


def _pool_prefix(text: str) -> str:
    net = network(text, PREFIX_RULE)
    if not WIDEST[net.version] <= net.prefixlen <= NARROWEST[net.version]:
        raise ValueError(PREFIX_RULE)
    return str(net)


def _aggregate(text: str) -> str:
    return str(network(text, "an IPv4 or IPv6 prefix without host bits, such as 192.0.2.0/24"))


def _range(version: int, longest: int, example: str) -> AfterValidator:
    rule = f"an IPv{version} prefix of /{longest} or shorter without host bits, such as {example}"

    def check(text: str) -> str:
        net = network(text, rule)
        if net.version != version or net.prefixlen > longest:
            raise ValueError(rule)
        return str(net)

    return AfterValidator(check)


def _asn(number: int) -> int:
    if number in (23456, 65535):
        raise ValueError(ASN_RULE)
    return number


def _endpoint(text: str) -> str:
    rule = "an IP address or a host name, without a port (ports follow from tunnel.portBase)"
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    label = r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
    if len(text) > 253 or re.fullmatch(rf"{label}(\.{label})*", text) is None or re.fullmatch(r"[0-9.]+", text):
        raise ValueError(rule)
    return text


def _name(text: str) -> str:
    if re.fullmatch(DNS_LABEL, text) is None:
        raise ValueError(NAME_RULE)
    return text


def not_yet(text: str) -> BeforeValidator:
    """Refuses every value of a field that a later version will have."""

    def check(value: Any) -> Any:
        raise ValueError(text)

    return BeforeValidator(check)


Asn = Annotated[int, AfterValidator(_asn)]
Names = Annotated[tuple[Annotated[str, AfterValidator(_name)], ...], Field(strict=False)]


class Metadata(Manifest):
    """The object's name. What Kubernetes adds to an object that it gives out is passed over."""

    name: str = setting(..., "Name of the object", allowed=NAME_RULE, pattern=DNS_LABEL)
    labels: dict[str, str] = setting({}, "Labels", allowed="a mapping of texts")
    annotations: dict[str, str] = setting({}, "Annotations", allowed="a mapping of texts")
    uid: Any = None
    resource_version: Any = None
    generation: Any = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    finalizers: Any = None
    self_link: Any = None


class ServiceAllocation(Manifest):
    """Which services may have addresses of the pool; what MetalLB is told."""

    namespaces: Names = setting((), "Namespaces whose services may use the pool", allowed="a list of namespaces")
    priority: int = setting(
        0, "MetalLB's order among pools: the lowest number first", allowed="0 to 2147483647", ge=0, le=2**31 - 1
    )


class EIPPoolSpec(Manifest):
    """`spec` of an EIPPool."""

    aggregate: Annotated[str, AfterValidator(_aggregate)] = setting(
        ..., "Prefix that the edge announces to its transit", allowed="an IPv4 or IPv6 prefix, such as 192.0.2.0/24"
    )
    aggregate_ipv6: Annotated[str, _range(6, 128, "2001:db8::/32")] | None = setting(
        None,
        "The IPv6 one, for a pool of both families whose `aggregate` is the IPv4 one",
        allowed="an IPv6 prefix, such as 2001:db8::/32",
        alias="aggregateIPv6",
    )
    addresses: Annotated[tuple[Annotated[str, AfterValidator(_pool_prefix)], ...], Field(strict=False)] = setting(
        ...,
        "Prefixes of the pool, which move as a whole",
        allowed="a list of 1 to 64 prefixes within aggregate, IPv4 of /16 to /32 and IPv6 of /32 to /128",
        min_length=1,
        max_length=64,
    )
    gateway_ref: str = setting(..., "Name of the EdgeGateway", allowed=NAME_RULE, pattern=DNS_LABEL)
    auto_assign: bool = setting(True, "Whether MetalLB may choose from the pool by itself", allowed="true or false")
    advertise_when_empty: bool = setting(
        True, "Whether the pool is announced while no address is in use", allowed="true or false"
    )
    service_allocation: ServiceAllocation = setting(
        ServiceAllocation(), "Which services may use it", allowed="a mapping with namespaces and priority"
    )
    hold: bool = setting(False, "Pause all automation for this pool", allowed="true or false")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        broken = []
        aggregate = ipaddress.ip_network(self.aggregate)
        aggregates = {aggregate.version: aggregate}
        if self.aggregate_ipv6 is not None and aggregate.version == 6:
            broken.append(("aggregateIPv6", f"nothing, as aggregate is an IPv6 prefix already, {aggregate}"))
        elif self.aggregate_ipv6 is not None:
            aggregates[6] = ipaddress.IPv6Network(self.aggregate_ipv6)
        nets = [ipaddress.ip_network(text) for text in self.addresses]
        for index, net in enumerate(nets):
            around = aggregates.get(net.version)
            if around is None:
                missing = "give aggregateIPv6 as well" if net.version == 6 else f"the aggregate is {aggregate}"
                broken.append((f"addresses.{index}", f"a prefix within an aggregate of its family: {missing}"))
            elif not within(net, around):
                broken.append((f"addresses.{index}", f"a prefix within the aggregate {around}"))
            for other in nets[:index]:
                if net.overlaps(other):
                    broken.append((f"addresses.{index}", f"a prefix that does not overlap {other} of the same pool"))
        refuse(broken)
        return self


class Edge(Manifest):
    """One edge router."""

    name: str = setting(..., "Name of its edge agent", allowed=NAME_RULE, pattern=DNS_LABEL)
    endpoint: Annotated[str, AfterValidator(_endpoint)] = setting(
        ..., "Where gateways reach it", allowed="an IP address or a host name, without a port"
    )
    asn: Asn = setting(..., "Its number in the private BGP", allowed=ASN_RULE, ge=1, le=2**32 - 2)


class Probe(Manifest):
    """Ranges of the addresses that only our own probes use: one address a gateway."""

    ipv4: Annotated[str, _range(4, 24, "10.78.0.0/24")] = setting(
        "10.78.0.0/24", "IPv4", allowed="a text: an IPv4 prefix such as 10.78.0.0/24"
    )
    ipv6: Annotated[str, _range(6, 64, "fd78::/64")] = setting(
        "fd78::/64", "IPv6", allowed="a text: an IPv6 prefix such as fd78::/64"
    )


class Tunnel(Manifest):
    """How edges and gateways are connected."""

    mtu: int = setting(1280, "MTU of the tunnels, in bytes", allowed="1280 to 1420 bytes", ge=1280, le=1420)
    keepalive_seconds: int = setting(
        25, "WireGuard's persistent keepalive, which keeps a NAT open", allowed="1 to 3600 seconds", ge=1, le=3600
    )
    port_base: int = setting(
        51820,
        "UDP port of each edge for gateway number 0; the next gateways take the next ports",
        allowed="1024 to 65280",
        ge=1024,
        le=65280,
    )
    ipv4: Annotated[str, _range(4, 16, "10.77.0.0/16")] = setting(
        "10.77.0.0/16",
        "Addresses of the tunnels: a /24 a gateway, in it a /31 an edge",
        allowed="a text: an IPv4 prefix such as 10.77.0.0/16",
    )
    ipv6: Annotated[str, _range(6, 48, "fd77::/48")] = setting(
        "fd77::/48",
        "Addresses of the tunnels: a /64 a gateway, in it a /127 an edge",
        allowed="a text: an IPv6 prefix such as fd77::/48",
    )
    probe: Probe = setting(Probe(), "Addresses of the probes", allowed="a mapping with ipv4 and ipv6")


class Bgp(Manifest):
    """The private BGP within the tunnels."""

    hold_time_seconds: int = setting(
        15, "Hold time, the backstop behind BFD (RFC 4271)", allowed="3 to 3600 seconds", ge=3, le=3600
    )


class Failover(Manifest):
    """When and how a pool moves."""

    profile: Literal["fast", "lan", "wan"] = setting(
        "fast", "BFD and probes: fast 3 x 50 ms, lan 3 x 10 ms, wan 3 x 300 ms", allowed="fast, lan or wan"
    )
    preempt: bool = setting(False, "Go back to a better gateway when it has recovered", allowed="true or false")
    preempt_delay_seconds: int = setting(
        300, "Good probes needed before that", allowed="0 to 86400 seconds", ge=0, le=86_400
    )
    on_store_loss: Literal["hold", "withdraw"] = setting(
        "hold",
        "What a gateway does that cannot reach etcd: serve on, or give its sessions up before its lease can end, which "
        "has to be of 6 seconds at least",
        allowed="hold or withdraw",
    )
    suspect_action: Literal["none", "move"] = setting(
        "none", "What to do with a gateway whose traffic is fine and whose agent is silent", allowed="none or move"
    )
    drain_linger_milliseconds: int = setting(
        500,
        "How long answers under way in the old tunnel are still accepted in a planned move",
        allowed="0 to 5000 milliseconds",
        ge=0,
        le=5000,
    )


class EdgeGatewayManifestSpec(Manifest):
    """`spec` of an EdgeGateway."""

    edges: Annotated[tuple[Edge, ...], Field(strict=False)] = setting(
        ...,
        "The edge routers; each serves every pool of the group",
        allowed=f"a list of 1 to {MAX_EDGES} edges, each with name, endpoint and asn",
        min_length=1,
        max_length=MAX_EDGES,
    )
    gateways: Names = setting(
        ...,
        "Names of the node agents that may serve",
        allowed=f"a list of 1 to {MAX_GATEWAYS} names",
        min_length=1,
        max_length=MAX_GATEWAYS,
    )
    gateway_asn: Asn = setting(
        ..., "Number of all gateways in the private BGP", allowed=ASN_RULE, alias="gatewayASN", ge=1, le=2**32 - 2
    )
    node_selector: Annotated[
        None, not_yet("not supported by this version; list the names of the nodes under gateways")
    ] = None
    tunnel: Tunnel = setting(Tunnel(), "The tunnels", allowed="a mapping")
    bgp: Bgp = setting(Bgp(), "The private BGP", allowed="a mapping with holdTimeSeconds")
    failover: Failover = setting(Failover(), "When and how a pool moves", allowed="a mapping")
    standbys: int = setting(
        1,
        "Ready gateways wanted beside the owner; the conditions NoStandby and FewStandbys tell of fewer",
        allowed="0 to 255",
        ge=0,
        le=255,
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        broken = []
        broken += _repeated("edges", [edge.name for edge in self.edges], ".name", "a name")
        broken += _repeated("edges", [edge.endpoint for edge in self.edges], ".endpoint", "an endpoint")
        broken += _repeated("gateways", self.gateways, "", "a name")
        for index, edge in enumerate(self.edges):
            if edge.asn == self.gateway_asn:
                broken.append((f"edges.{index}.asn", f"another number than gatewayASN, {self.gateway_asn}"))
        for family in ("ipv4", "ipv6"):
            probes, tunnels = (ipaddress.ip_network(getattr(part, family)) for part in (self.tunnel.probe, self.tunnel))
            if probes.overlaps(tunnels):
                broken.append((f"tunnel.probe.{family}", f"a prefix that does not overlap tunnel.{family}, {tunnels}"))
        refuse(broken)
        return self


def _repeated(field: str, values: Sequence[str], tail: str, what: str) -> list[tuple[str, str]]:
    return [
        (f"{field}.{index}{tail}", f"{what} that is not in the list already, as number {values.index(value) + 1}")
        for index, value in enumerate(values)
        if value in values[:index]
    ]


class EIPPool(Manifest):
    """A whole EIPPool."""

    api_version: Literal["networking.example.net/v1alpha1"] = setting(..., "Version", allowed=API_VERSION)
    kind: Literal["EIPPool"] = setting(..., "Kind", allowed="EIPPool")
    metadata: Metadata = setting(..., "Name and labels", allowed="a mapping with name")
    spec: EIPPoolSpec = setting(..., "The pool", allowed="a mapping with aggregate, addresses and gatewayRef")
    status: Any = None

    def record(self) -> PoolSpec:
        """The accepted pool as it is kept."""
        spec = self.spec
        return PoolSpec(
            name=self.metadata.name,
            aggregate=spec.aggregate,
            aggregate_ipv6=spec.aggregate_ipv6 or "",
            addresses=spec.addresses,
            gateway_ref=spec.gateway_ref,
            auto_assign=spec.auto_assign,
            advertise_when_empty=spec.advertise_when_empty,
            namespaces=spec.service_allocation.namespaces,
            priority=spec.service_allocation.priority,
            hold=spec.hold,
        )


class EdgeGateway(Manifest):
    """A whole EdgeGateway."""

    api_version: Literal["networking.example.net/v1alpha1"] = setting(..., "Version", allowed=API_VERSION)
    kind: Literal["EdgeGateway"] = setting(..., "Kind", allowed="EdgeGateway")
    metadata: Metadata = setting(..., "Name and labels", allowed="a mapping with name")
    spec: EdgeGatewayManifestSpec = setting(
        ..., "Edges and gateways", allowed="a mapping with edges, gateways and gatewayASN"
    )
    status: Any = None

    def record(self) -> EdgeGatewaySpec:
        """The accepted EdgeGateway as it is kept; slots are the leader's to allocate."""
        spec, tunnel, failover = self.spec, self.spec.tunnel, self.spec.failover
        return EdgeGatewaySpec(
            name=self.metadata.name,
            edges=tuple(EdgeSpec(edge.name, edge.endpoint, edge.asn) for edge in spec.edges),
            gateways=spec.gateways,
            gateway_asn=spec.gateway_asn,
            mtu=tunnel.mtu,
            keepalive_s=tunnel.keepalive_seconds,
            port_base=tunnel.port_base,
            tunnel_ipv4=tunnel.ipv4,
            tunnel_ipv6=tunnel.ipv6,
            probe_ipv4=tunnel.probe.ipv4,
            probe_ipv6=tunnel.probe.ipv6,
            hold_time_s=spec.bgp.hold_time_seconds,
            profile=failover.profile,
            preempt=failover.preempt,
            preempt_delay_s=failover.preempt_delay_seconds,
            on_store_loss=failover.on_store_loss,
            suspect_action=failover.suspect_action,
            drain_linger_ms=failover.drain_linger_milliseconds,
            standbys=spec.standbys,
        )


KINDS: dict[str, type[EIPPool] | type[EdgeGateway]] = {"EIPPool": EIPPool, "EdgeGateway": EdgeGateway}
OUTPUT_KINDS = ("TunnelPeer", "RouteAdvertisement")
"""What bgplb writes by itself; in the folder of intent it can only be a mistake."""
