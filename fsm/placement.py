"""Which gateway takes a pool: the same answer for the same set, whoever computes it."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b


def rank(subject: str, gateways: Iterable[str]) -> tuple[str, ...]:
    """Gateways from first to last choice, by rendezvous hashing.

    A gateway that joins takes only what it now ranks first for, one that leaves gives away only what it had
    (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998).
    """
    return tuple(sorted(gateways, key=lambda gateway: (_weight(subject, gateway), gateway), reverse=True))


@lru_cache(maxsize=65536)
def _weight(subject: str, gateway: str) -> bytes:
    return blake2b(f"{subject}\0{gateway}".encode(), digest_size=8).digest()
