"""What the manifests amount to: the intent, or everything that is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass

from fsm.records import EdgeGatewaySpec, PoolSpec
from orchestrator.config.problems import Problem


@dataclass(frozen=True, slots=True)
class Intent:
    """Pools and edge gateways of a whole folder. With any problem both are empty: the folder is refused whole."""

    pools: tuple[PoolSpec, ...] = ()
    edge_gateways: tuple[EdgeGatewaySpec, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it may be acted upon."""
        return not self.problems


def read_intent(files: Mapping[str, bytes], folder: str, lease_ttl_ms: int = 3000) -> Intent:
    """The intent that the files of a folder state, by file name. `folder` names it where it is empty."""
    raise NotImplementedError
