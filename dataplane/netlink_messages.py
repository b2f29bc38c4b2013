"""rtnetlink messages, as pyroute2 parses them, to our values: pure, and the only place that knows attribute names."""

import socket
from collections.abc import Callable, Mapping
from typing import Any

from dataplane.model import Address, Family, Link, Route, RouteKind, Rule

_KINDS: Mapping[int, RouteKind] = {1: "unicast", 6: "blackhole", 7: "unreachable"}
_RTAX_LOCK_MTU = 1 << 2
_IFF_UP = 1
_TUN_KINDS = ("tun", "wireguard")


def link_from(message: Any) -> Link:
    """An interface. A TUN device counts as ``wireguard``: wireguard-go makes its interface of one."""
    kind = message.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or ""
    return Link(
        name=message.get("ifname"),
        kind="wireguard" if kind in _TUN_KINDS else kind,
        mtu=message.get("mtu") or 0,
        alias=message.get("ifalias") or "",
        up=bool(message["flags"] & _IFF_UP),
    )


def address_from(message: Any, names: Mapping[int, str]) -> Address:
    """An address; the local end where the link is point to point."""
    local = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    return Address(names.get(message["index"], f"#{message['index']}"), f"{local}/{message['prefixlen']}")


def route_from(message: Any, name_of: Callable[[int], str | None]) -> Route | None:
    """A route, or None for what we never make (multicast, multipath and other kinds)."""
    kind = _KINDS.get(message["type"])
    family = _family(message["family"])
    gateway, index = message.get_attr("RTA_GATEWAY"), message.get_attr("RTA_OIF")
    if kind is None or (kind == "unicast" and gateway is None and index is None):
        return None
    metrics = message.get_attr("RTA_METRICS")
    mtu = None
    if metrics is not None and (metrics.get_attr("RTAX_LOCK") or 0) & _RTAX_LOCK_MTU:
        mtu = metrics.get_attr("RTAX_MTU")
    default = "0.0.0.0" if family == "ipv4" else "::"
    return Route(
        prefix=f"{message.get_attr('RTA_DST') or default}/{message['dst_len']}",
        table=message.get_attr("RTA_TABLE") or message["table"],
        # The kernel shows `lo` on IPv6 blackholes, which is no choice of whoever made them.
        device=name_of(index) if kind == "unicast" and index is not None else None,
        via=gateway,
        mtu_lock=mtu,
        protocol=message["proto"],
        kind=kind,
        source=message.get_attr("RTA_PREFSRC"),
        metric=message.get_attr("RTA_PRIORITY"),
    )


def rule_from(message: Any) -> Rule:
    """A policy rule; parts that we never set (iif, tos, suppress) are not looked at."""
    source, to = message.get_attr("FRA_SRC"), message.get_attr("FRA_DST")
    return Rule(
        family=_family(message["family"]),
        priority=message.get_attr("FRA_PRIORITY") or 0,
        table=message.get_attr("FRA_TABLE") or message["table"],
        source=f"{source}/{message['src_len']}" if source else None,
        fwmark=message.get_attr("FRA_FWMARK"),
        fwmask=message.get_attr("FRA_FWMASK"),
        to=f"{to}/{message['dst_len']}" if to else None,
        protocol=message.get_attr("FRA_PROTOCOL") or 0,
    )


def _family(number: int) -> Family:
    return "ipv6" if number == socket.AF_INET6 else "ipv4"
