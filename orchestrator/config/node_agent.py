"""The file of a node agent: /etc/bgplb/node-agent.yaml."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orchestrator.config.problems import setting
from orchestrator.config.sections import Agent, IpAddress, Section


class Lan(Section):
    """The cluster LAN: a gateway that reaches nobody there while others do is unfit."""

    address: IpAddress = setting(
        ..., "Our own address on the cluster LAN", allowed="an IPv4 or IPv6 address", example="10.10.0.11"
    )
    interface: str | None = setting(
        None,
        "Interface of the cluster LAN; found by `address` unless given",
        allowed="the name of an interface, 1 to 15 characters",
        pattern=r"^[^\s/]{1,15}$",
    )
    targets: Annotated[tuple[IpAddress, ...], Field(strict=False)] = setting(
        (),
        "Addresses to reach on the LAN, beside the other gateways: nodes that are always there",
        allowed="a list of IPv4 or IPv6 addresses",
        example=["10.10.0.21"],
    )


class NodeAgentConfig(Agent):
    """A node agent makes its machine a gateway: tunnel, announcement, answers."""

    LISTEN: ClassVar[str] = "127.0.0.1:9179"

    lan: Lan = setting(..., "The cluster LAN", allowed="a mapping with at least address")
    shutdown: Literal["drain", "leave"] = setting(
        "drain",
        "On SIGTERM: hand the pools to a ready standby first, for 10 s at most, or go at once",
        allowed="drain or leave",
    )
