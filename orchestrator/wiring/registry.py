"""A registry whose metrics are made when they are asked for."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric


class Collected:
    """A collector that makes its metrics when it is asked."""

    def __init__(self, make: Callable[[], Iterable[Metric]]) -> None:
        self._make = make

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._make()


def registry_of(make: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """A registry with these metrics alone."""
    registry = CollectorRegistry()
    registry.register(Collected(make))
    return registry
