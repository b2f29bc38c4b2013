"""rtnetlink messages, as pyroute2 parses them, to our values: pure, and the only place that knows attribute names."""

import socket
from collections.abc import Mapping
from typing import Any

from dataplane.model import Address, Family, Link, Rule

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
