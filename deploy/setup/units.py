"""Install packages without starting or enabling the services they bring.

Debian starts a new package's service and enables it for the next boot. The first is prevented by
a `policy-rc.d` that refuses (invoke-rc.d(8), exit 101), put there for the time of the installation; the second is
undone afterwards, by comparing the links that enable services before and after. What an administrator
had enabled before stays enabled.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from steps import say

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_ASIDE = Path("/usr/sbin/policy-rc.d.before-bgplb-setup")
OURS = "#!/bin/sh\n# Written by bgplb's set-up for the time of one installation; safe to delete.\nexit 101\n"
SYSTEMD = Path("/etc/systemd/system")
RUNLEVELS = Path("/etc")


@contextlib.contextmanager
def disable_newly_enabled(record: Path) -> Iterator[None]:
    """Around an installation: nothing starts, and what it enabled is disabled again, also after a failure.

    `record` keeps the state before on disk, so that a set-up that was killed in between
    is put right by the next one.
    """
    restore_policy()
    if not record.exists():
        record.parent.mkdir(exist_ok=True)
        record.write_text(json.dumps(sorted(enabling_links())))
    before = set(json.loads(record.read_text()))
    refuse_starts()
    try:
        yield
    finally:
        restore_policy()
        undo(sorted(enabling_links() - before))
        record.unlink()


def enabling_links() -> set[str]:
    """Every link that makes a service start at boot: systemd's, its aliases, and the run levels' S links."""
    found = {str(path) for path in SYSTEMD.glob("**/*") if path.is_symlink()}
    # A masked unit is a link to /dev/null: it enables nothing.
    found = {path for path in found if str(Path(path).readlink()) != "/dev/null"}
    return found | {str(path) for path in RUNLEVELS.glob("rc[2-5S].d/S*")}


def undo(links: list[str]) -> None:
    """Disable what these links enable."""
    services = set()
    for name in links:
        path = Path(name)
        if path.is_relative_to(SYSTEMD):
            path.unlink(missing_ok=True)  # one tool may have taken the other's links away too
            services.add(path.name)
        else:
            # S01etcd: insserv keeps the numbers, so its own tool has to do it.
            script = path.name[3:]
            subprocess.run(["update-rc.d", script, "disable"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            services.add(script)
    if services:
        say("left disabled: " + " ".join(sorted(services)))


def refuse_starts() -> None:
    """Make invoke-rc.d refuse, unless it does so already."""
    if POLICY.exists():
        answer = subprocess.run([str(POLICY), "bird", "start"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if answer.returncode == 101:
            return
        POLICY.rename(POLICY_ASIDE)
    POLICY.write_text(OURS)
    POLICY.chmod(0o755)


def restore_policy() -> None:
    """Take our policy away and put the one before back, if ours is there (also one of a killed set-up)."""
    if POLICY.exists() and not POLICY.is_symlink() and POLICY.read_text(errors="replace") == OURS:
        POLICY.unlink()
    if POLICY_ASIDE.exists():
        POLICY_ASIDE.rename(POLICY)
