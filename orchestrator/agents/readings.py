"""What is measured on an edge and on a gateway, for metrics: values of one instant."""

from collections.abc import Mapping
from dataclasses import dataclass

from dataplane.probe import ProbeState
from fsm.fence import FenceState


@dataclass(frozen=True, slots=True)
class EdgeReadings:
    """`probes` by gateway; `overruns`: times that the kernel's word on routes got lost and was read anew."""

    fence: FenceState
    probes: Mapping[str, ProbeState | None]
    overruns: int


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """`handshakes`: Unix seconds of the last one, by the edge's name; `revived`: tunnels that were begun anew."""

    handshakes: Mapping[str, float | None]
    revived: int
