"""What must be done to make one kernel state equal to another: pure, complete, idempotent.

Nothing that is not ours is ever named in an operation. Where something foreign stands on the very place that ours
needs, :class:`~dataplane.errors.Conflict` is raised and no operation is returned at all.
"""

from dataclasses import dataclass

from dataplane.errors import Conflict
from dataplane.model import Address, KernelState, Link, Route, Rule


@dataclass(frozen=True)
class CreateLink:
    """Make an interface that does not exist yet."""

    link: Link


@dataclass(frozen=True)
class SetLink:
    """Give an interface of ours its MTU, alias and administrative state."""

    link: Link


@dataclass(frozen=True)
class DeleteLink:
    """Remove an interface of ours, with all addresses and routes on it."""

    name: str


@dataclass(frozen=True)
class AddAddress:
    """Add an address to an interface of ours."""

    address: Address


@dataclass(frozen=True)
class DeleteAddress:
    """Take an address from an interface of ours."""

    address: Address


@dataclass(frozen=True)
class AddRoute:
    """Add a route where none is; the kernel itself refuses (EEXIST) when something stands there after all."""

    route: Route


@dataclass(frozen=True)
class ReplaceRoute:
    """Put the route in place of ours with the same key, in one step without a gap."""

    route: Route


@dataclass(frozen=True)
class DeleteRoute:
    """Remove a route of ours."""

    route: Route


@dataclass(frozen=True)
class AddRule:
    """Add a policy rule."""

    rule: Rule


@dataclass(frozen=True)
class DeleteRule:
    """Remove a policy rule of ours."""

    rule: Rule


@dataclass(frozen=True)
class SetSysctl:
    """Write one sysctl."""

    name: str
    value: str


@dataclass(frozen=True)
class ReplaceNft:
    """Replace the whole table ``inet bgplb`` in one transaction; None deletes it."""

    ruleset: str | None


RouteOp = AddRoute | ReplaceRoute | DeleteRoute | AddRule | DeleteRule
"""What can be performed many at once."""

Op = (
    CreateLink
    | SetLink
    | DeleteLink
    | AddAddress
    | DeleteAddress
    | AddRoute
    | ReplaceRoute
    | DeleteRoute
    | AddRule
    | DeleteRule
    | SetSysctl
    | ReplaceNft
)


def diff(actual: KernelState, desired: KernelState) -> tuple[Op, ...]:
    """The operations, in a safe order, that turn `actual` into `desired`.

    Additions come before removals: links, addresses, sysctls and the nft table first, then routes and rules, so that a
    rule never selects an empty table; then what is no longer wanted, rules before routes for the same reason.

    Raises Conflict when a foreign interface, route or rule has the place of a desired one.
    """
    _refuse_conflicts(actual, desired)
    doomed = frozenset(link.name for link in actual.links if link.ours) - {link.name for link in desired.links}
    additions, removals = _route_ops(actual, desired, doomed)
    rules_to_add = sorted(desired.rules - actual.rules, key=_rule_order)
    rules_to_delete = sorted((r for r in actual.rules - desired.rules if r.ours), key=_rule_order)
    add_addresses, delete_addresses = _address_ops(actual, desired)
    return (
        *_link_ops(actual, desired),
        *add_addresses,
        *_sysctl_ops(actual, desired),
        *((ReplaceNft(desired.nft),) if desired.nft != actual.nft else ()),
        *additions,
        *(AddRule(rule) for rule in rules_to_add),
        *(DeleteRule(rule) for rule in rules_to_delete),
        *removals,
        *delete_addresses,
        *(DeleteLink(name) for name in sorted(doomed)),
    )


def _refuse_conflicts(actual: KernelState, desired: KernelState) -> None:
    problems: list[str] = []
    foreign_links = {link.name: link for link in actual.links if not link.ours}
    for link in sorted(desired.links, key=lambda link: link.name):
        if link.name in foreign_links:
            problems.append(
                f"interface {link.name} exists but is not ours (alias {foreign_links[link.name].alias!r}, "
                f"ours begins with 'bgplb:'): remove or rename it, or change interface_prefix"
            )
    foreign_routes = {route.key: route for route in actual.routes if not route.ours}
    for route in sorted(desired.routes, key=_route_order):
        if route.key in foreign_routes:
            protocol = foreign_routes[route.key].protocol
            problems.append(
                f"route {route.prefix} in table {route.table} exists with protocol {protocol} (ours is 77): "
                f"remove it, or choose another table"
            )
    if problems:
        raise Conflict(tuple(problems))


def _link_ops(actual: KernelState, desired: KernelState) -> list[Op]:
    present = {link.name: link for link in actual.links}
    ops: list[Op] = []
    for link in sorted(desired.links, key=lambda link: link.name):
        if link.name not in present:
            ops += [CreateLink(link), SetLink(link)]
        elif _settable(present[link.name]) != _settable(link):
            ops.append(SetLink(link))
    return ops


def _settable(link: Link) -> tuple[int, str, bool]:
    return (link.mtu, link.alias, link.up)


def _address_ops(actual: KernelState, desired: KernelState) -> tuple[list[Op], list[Op]]:
    kept = {link.name for link in desired.links}
    surplus = [a for a in actual.addresses - desired.addresses if a.device in kept]
    missing = desired.addresses - actual.addresses
    return (
        [AddAddress(a) for a in sorted(missing, key=_address_order)],
        [DeleteAddress(a) for a in sorted(surplus, key=_address_order)],
    )


def _route_ops(actual: KernelState, desired: KernelState, doomed: frozenset[str]) -> tuple[list[Op], list[Op]]:
    wanted = {route.key for route in desired.routes}
    present = {route.key for route in actual.routes if route.ours}
    missing = sorted(desired.routes - actual.routes, key=_route_order)
    surplus = [
        route
        for route in sorted(actual.routes - desired.routes, key=_route_order)
        if route.ours and route.key not in wanted and route.device not in doomed
    ]
    additions: list[Op] = [ReplaceRoute(r) if r.key in present else AddRoute(r) for r in missing]
    return additions, [DeleteRoute(route) for route in surplus]


def _sysctl_ops(actual: KernelState, desired: KernelState) -> list[Op]:
    changed = sorted(item for item in desired.sysctls.items() if actual.sysctls.get(item[0]) != item[1])
    return [SetSysctl(name, value) for name, value in changed]


def _route_order(route: Route) -> tuple[int, str, int]:
    return (route.table, route.prefix, route.metric or 0)


def _rule_order(rule: Rule) -> tuple[int, str, int, str]:
    return (rule.priority, rule.family, rule.table, repr(rule))


def _address_order(address: Address) -> tuple[str, str]:
    return (address.device, address.cidr)
