"""Which pools have a prefix that overlaps a given one, among thousands: pure."""

from bisect import bisect_left
from collections.abc import Mapping, Set
from functools import lru_cache
from ipaddress import ip_network

_Span = tuple[int, int, int]
"""(version, first address, last address)"""


class PrefixIndex:
    """Prefixes with the pools that have them. Two prefixes are either apart or one is inside the other."""

    def __init__(self, pools: Mapping[str, Set[str]]) -> None:
        """`pools`: by prefix."""
        self._pools: dict[_Span, Set[str]] = {_span(prefix): names for prefix, names in pools.items()}
        self._order = sorted(self._pools)

    def pools(self, prefix: str) -> set[str]:
        """Pools that have this prefix, one around it or one inside it."""
        version, first, last = _span(prefix)
        found: set[str] = set()
        at = bisect_left(self._order, (version, first, first))
        while at < len(self._order) and self._order[at][:1] == (version,) and self._order[at][1] <= last:
            found |= self._pools[self._order[at]]
            at += 1
        size = last - first + 1
        while size <= 1 << (32 if version == 4 else 128):
            outer_first = first & ~(size - 1)
            found |= self._pools.get((version, outer_first, outer_first + size - 1), set())
            size *= 2
        return found


@lru_cache(maxsize=65536)
def _span(prefix: str) -> _Span:
    network = ip_network(prefix)
    return network.version, int(network.network_address), int(network.broadcast_address)
