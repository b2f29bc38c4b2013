"""Entering a network namespace for the span of a few calls that don't await.

A namespace belongs to a thread, so nothing else of this event loop may run in between: this is a plain context manager
on purpose, and its body must not await. Sockets opened and processes started inside stay in that namespace.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataplane.capabilities import Capability, raised
from dataplane.errors import KernelRefused

NETNS_DIR = Path("/run/netns")
"""Where iproute2 keeps the names of namespaces."""

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def namespace_path(namespace: str) -> Path:
    """The file of a namespace given by name or by path."""
    return Path(namespace) if "/" in namespace else NETNS_DIR / namespace


@contextmanager
def entered(namespace: str | None) -> Iterator[None]:
    """Be in that network namespace (name or path; None: stay) until the block ends.

    Raises KernelRefused when it does not exist or may not be entered.
    """
    if namespace is None:
        yield
        return
    # The thread's own entry, not the process's: another thread may be elsewhere.
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with opened(namespace) as target:
            _setns(target, namespace)
        try:
            yield
        finally:
            _setns(home, "the namespace we came from")
    finally:
        os.close(home)


@contextmanager
def opened(namespace: str) -> Iterator[int]:
    """A descriptor of that namespace. Raises KernelRefused when it does not exist; it is never made."""
    try:
        descriptor = os.open(namespace_path(namespace), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KernelRefused(error.errno or 0, f"to open network namespace {namespace}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _setns(descriptor: int, what: str) -> None:
    with raised(Capability.SYS_ADMIN):
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise KernelRefused(ctypes.get_errno(), f"to enter {what}")
