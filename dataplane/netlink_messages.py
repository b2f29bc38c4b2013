"""rtnetlink messages, as pyroute2 parses them, to our values: pure, and the only place that knows attribute names."""

from collections.abc import Mapping
from typing import Any

from dataplane.model import Address, Link

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
