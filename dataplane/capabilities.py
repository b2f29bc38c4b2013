"""Capabilities of the calling thread (capabilities(7)): giving up what is not needed, raising what is for a moment.

Done before any other thread is started, a drop holds for the whole process and for every program that it starts: those
take what the bounding set leaves.
"""

import ctypes
import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dataplane.errors import KernelRefused

_VERSION_3 = 0x20080522
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_LAST = Path("/proc/sys/kernel/cap_last_cap")
_libc = ctypes.CDLL(None, use_errno=True)


class Capability(enum.IntEnum):
    """Those that a part of this package needs; numbers of linux/capability.h."""

    SETPCAP = 8
    """To drop others from the bounding set."""
    NET_ADMIN = 12
    """Interfaces, routes, rules, nft, conntrack, WireGuard, sysctls below net."""
    NET_RAW = 13
    """The probe's ICMP socket."""
    SYS_ADMIN = 21
    """To make and enter network namespaces (setns(2)): the probe's responder on a gateway."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@dataclass(frozen=True, slots=True)
class Sets:
    """The three sets as bit masks."""

    effective: int
    permitted: int
    inheritable: int = 0


def read() -> Sets:
    """The calling thread's sets."""
    data = (_Data * 2)()
    _check(_libc.capget(ctypes.byref(_Header(_VERSION_3, 0)), data), "to read capabilities")
    low, high = data
    return Sets(
        low.effective | high.effective << 32,
        low.permitted | high.permitted << 32,
        low.inheritable | high.inheritable << 32,
    )


def write(sets: Sets) -> None:
    """Replace the calling thread's sets. Raises KernelRefused for what is not permitted to it."""
    data = (_Data * 2)()
    for half, shift in zip(data, (0, 32), strict=True):
        half.effective = sets.effective >> shift & 0xFFFF_FFFF
        half.permitted = sets.permitted >> shift & 0xFFFF_FFFF
        half.inheritable = sets.inheritable >> shift & 0xFFFF_FFFF
    _check(_libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), data), "to set capabilities")


def drop_all_but(kept: Iterable[Capability], at_hand: Iterable[Capability]) -> None:
    """Give up for good, for this process and what it starts, every capability that is not in `kept`.

    Of those only `at_hand` stay in effect; the others `raised` puts in effect for a moment. What we never had is not
    gained. Without SETPCAP the bounding set stays: nothing can be gained from it once no_new_privs is set.
    """
    keep, ready = _mask(kept), _mask(at_hand)
    now = read()
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "to clear ambient capabilities")
    if now.effective & 1 << Capability.SETPCAP:
        for number in range(int(_LAST.read_text()) + 1):
            if not keep >> number & 1 and _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
                _check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), f"to drop capability {number}")
    permitted = now.permitted & keep
    write(Sets(permitted & ready, permitted))


@contextmanager
def raised(capability: Capability) -> Iterator[None]:
    """Have it in effect until the block ends, if it is permitted; the block must not await.

    Without it the kernel says what it refuses, in the block.
    """
    before, bit = read(), 1 << capability
    if before.effective & bit or not before.permitted & bit:
        yield
        return
    write(replace(before, effective=before.effective | bit))
    try:
        yield
    finally:
        write(before)


def _mask(capabilities: Iterable[Capability]) -> int:
    return sum(1 << capability for capability in set(capabilities))


def _check(result: int, what: str) -> None:
    if result != 0:
        raise KernelRefused(ctypes.get_errno(), what)
