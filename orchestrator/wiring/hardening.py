"""What every daemon gives up before it does anything else."""

import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from dataplane.capabilities import Capability, drop_all_but
from dataplane.errors import KernelRefused

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Privileges:
    """The capabilities that a daemon keeps: `always` in effect, or only `at_times`, while it enters a namespace."""

    always: frozenset[Capability] = frozenset()
    at_times: frozenset[Capability] = frozenset()


ORCHESTRATOR = Privileges()
"""It writes to etcd, its state and a socket: no capability at all."""

EDGE = Privileges(frozenset({Capability.NET_ADMIN, Capability.NET_RAW}))

NODE = Privileges(EDGE.always, frozenset({Capability.SYS_ADMIN}))
"""The probes' responder lives in a network namespace, which is made anew whenever it is found missing."""


def harden(privileges: Privileges) -> None:
    """Give up what the daemon does not need. Call it while the process has one thread.

    - no core file and no reading of its memory by others of the same user (PR_SET_DUMPABLE, RLIMIT_CORE): keys and
      passwords are in it;
    - files that it makes are for its own user, unless it says otherwise for one that holds no secret;
    - nothing it starts gains a right by a set-user-id bit or file capability (PR_SET_NO_NEW_PRIVS);
    - capabilities as in `privileges`, for itself and what it starts.

    Raises KernelRefused.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "to set no_new_privs")
    drop_all_but(privileges.always | privileges.at_times, privileges.always)
    _prctl(_PR_SET_DUMPABLE, 0, "to forbid core files")  # last: a change of capabilities may reset it


def make_folder(path: Path) -> None:
    """Make a folder that others may enter, with those above it: BIRD, or an operator who may use a socket in it."""
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)


def _prctl(option: int, value: int, what: str) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise KernelRefused(ctypes.get_errno(), what)
