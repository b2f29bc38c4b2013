"""Names of BIRD protocols that are ours.

BIRD 2.0.12 takes symbols of at most 63 characters, [A-Za-z_][A-Za-z0-9_]* unless quoted. A pool is a
DNS label or name of up to 63 characters with `-` and `.`, so names are mapped, injectively: lower
case letters and digits stand for themselves, `-` becomes `_`, any other character `X` and its bytes
in hex. What would not fit is cut and ends with `H` and a 80-bit digest; `H` appears nowhere else.
The fixed beginning keeps a name from being one of BIRD's keywords (`exp`, `other`).
"""

import hashlib
import re
import string
from functools import lru_cache

MAX_SYMBOL = 63
"""Characters in a BIRD symbol, measured with 2.0.12: 64 are refused as too long."""

PREFIX = "bgplb_"
LOCAL_PREFIX = "local_"
"""Static protocols of the operator whose names begin so are exported by the gateway."""

_PLAIN = frozenset(string.ascii_lowercase + string.digits)
_DIGEST_CHARS = 20
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTABLE = re.compile(r"[A-Za-z0-9_.:-]+")


@lru_cache(maxsize=8192)
def symbol(kind: str, name: str) -> str:
    """`bgplb_KIND_NAME` with NAME mapped. Raises ValueError for an empty name."""
    if not name:
        raise ValueError(f"a {kind} without a name cannot be named in BIRD")
    mapped = "".join(_mapped(char) for char in name)
    head = f"{PREFIX}{kind}_"
    if len(head) + len(mapped) <= MAX_SYMBOL:
        return head + mapped
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    room = MAX_SYMBOL - len(head) - len(digest) - 1
    return f"{head}{mapped[:room]}H{digest}"


def pool_protocol(pool: str, version: int) -> str:
    """The static protocol of a pool's prefixes of one IP version (4 or 6): one of BIRD's channels each."""
    return symbol(_by_version("pool", version), pool)


def session_protocol(peer: str) -> str:
    """The BGP protocol of the session with this gateway or edge."""
    return symbol("bgp", peer)


def import_filter(peer: str, version: int) -> str:
    """The edge's import filter of one session and IP version."""
    return symbol(_by_version("in", version), peer)


def probe_protocol(version: int) -> str:
    """The gateway's static protocol of its probe addresses."""
    return PREFIX + _by_version("probe", version)


def signal_protocol(version: int) -> str:
    """The edge's kernel protocol that fills the signal table."""
    return PREFIX + _by_version("signal", version)


def reference(name: str) -> str:
    """A protocol's name as a command takes it, quoted when it must be. Raises ValueError when it cannot be a name."""
    if _SYMBOL.fullmatch(name):
        return name
    if _QUOTABLE.fullmatch(name):
        return f"'{name}'"
    raise ValueError(f"not the name of a BIRD protocol: {name!r}")


def _by_version(kind: str, version: int) -> str:
    if version not in (4, 6):
        raise ValueError(f"IP version must be 4 or 6, not {version}")
    return kind if version == 4 else f"{kind}6"


def _mapped(char: str) -> str:
    if char in _PLAIN:
        return char
    if char == "-":
        return "_"
    return "".join(f"X{byte:02x}" for byte in char.encode())
