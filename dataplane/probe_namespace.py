"""The probe's responder on a gateway: a network namespace on a veth pair, where the kernel answers echo requests.

No process has to live for it: a dead agent must not look like a dead path. It is reached by forwarding, and the request
by a translated address, so an answer shows that the whole way a client's packets take works.
"""

from dataclasses import dataclass, replace
from ipaddress import ip_interface

from dataplane.diff import AddAddress, Op, SetLink, diff
from dataplane.errors import Conflict
from dataplane.model import TABLE_MAIN, Address, KernelState, Link, Route
from dataplane.namespace import namespace_path
from dataplane.netlink import Netlink
from dataplane.programs import run

_MTU = 1500
_IPV6_OUTSIDE, _IPV6_INSIDE = "fd62:6770:6c62::1/126", "fd62:6770:6c62::2/126"
"""Unique local addresses (RFC 4193) for what IPv4 has link-local ones for: no translation leads to fe80::/10."""


@dataclass(frozen=True)
class ProbeNamespace:
    """Names and addresses of the responder. The defaults are link-local (RFC 3927), so they collide with no plan.

    ``outside`` and ``inside``: the two ends, with prefix length, per family. ``inside`` is what the probe's address is
    translated to.
    """

    name: str = "bgplb-probe"
    host_device: str = "bgplb-p0"
    inside_device: str = "p0"
    outside: tuple[str, ...] = ("169.254.77.1/30",)
    inside: tuple[str, ...] = ("169.254.77.2/30",)

    def with_ipv6(self) -> "ProbeNamespace":
        """The same, answering IPv6 as well."""
        return replace(self, outside=(*self.outside, _IPV6_OUTSIDE), inside=(*self.inside, _IPV6_INSIDE))

    def inside_address(self, version: int) -> str:
        """Where the probe's address of this IP version is translated to. Raises ValueError when there is none."""
        for cidr in self.inside:
            if ip_interface(cidr).version == version:
                return str(ip_interface(cidr).ip)
        raise ValueError(f"the responder {self.name} has no IPv{version} address")

    @property
    def alias(self) -> str:
        """What marks both ends as ours."""
        return f"bgplb:{self.name}"

    @property
    def host_link(self) -> Link:
        """The end on the host, for the host's desired state."""
        return Link(self.host_device, "veth", _MTU, self.alias)

    @property
    def host_addresses(self) -> frozenset[Address]:
        """The addresses of that end, for the host's desired state."""
        return frozenset(Address(self.host_device, cidr) for cidr in self.outside)

    def inside_state(self) -> KernelState:
        """What the namespace should hold."""
        routes = [
            Route("0.0.0.0/0" if ip_interface(cidr).version == 4 else "::/0", TABLE_MAIN, self.inside_device,
                  via=str(ip_interface(cidr).ip))
            for cidr in self.outside
        ]  # fmt: skip
        return KernelState(
            links=frozenset({Link(self.inside_device, "veth", _MTU, self.alias)}),
            addresses=frozenset(Address(self.inside_device, cidr) for cidr in self.inside),
            routes=frozenset(routes),
        )

    async def ensure(self, host: Netlink) -> None:
        """Make it, or whatever of it is missing; nothing is touched that is right already.

        The end on the host, once made, is the host's to keep right: it is in its desired state. Raises Conflict when
        the host has an interface of that name that is not ours.
        """
        link = await host.link(self.host_device)
        if link is not None and not link.ours:
            raise Conflict((f"interface {self.host_device} exists but is not ours: remove or rename it",))
        if not namespace_path(self.name).exists():
            await run("ip", "netns", "add", self.name)
        inner = Netlink(self.name)
        try:
            actual = await inner.read([TABLE_MAIN])
            if link is None or all(inside.name != self.inside_device for inside in actual.links):
                if link is not None:
                    await host.delete_link(self.host_device)
                await inner.delete_link(self.inside_device)
                await host.create_veth(self.host_link, self.inside_device, self.name)
                ops: list[Op] = [SetLink(self.host_link)]
                ops += [AddAddress(address) for address in sorted(self.host_addresses, key=repr)]
                await host.apply(ops)
                actual = await inner.read([TABLE_MAIN])
            # Made by us a moment ago, or by an earlier run: the end inside is ours by the namespace that it is in.
            unmarked = [SetLink(inside) for inside in self.inside_state().links - actual.links]
            if unmarked:
                await inner.apply(unmarked)
                actual = await inner.read([TABLE_MAIN])
            await self._converge_inside(inner, actual)
        finally:
            await inner.close()

    async def remove(self, host: Netlink) -> None:
        """Remove the pair and the namespace; no error when they are gone already."""
        link = await host.link(self.host_device)
        if link is not None and link.ours:
            await host.delete_link(self.host_device)
        if namespace_path(self.name).exists():
            await run("ip", "netns", "del", self.name)

    async def _converge_inside(self, inner: Netlink, actual: KernelState) -> None:
        loopback = next(link for link in actual.links if link.name == "lo")
        if not loopback.up:
            await inner.apply([SetLink(Link("lo", "", loopback.mtu, loopback.alias, up=True))])
        await inner.apply(diff(actual, self.inside_state()))
