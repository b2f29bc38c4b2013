"""The Debian packages that the product and its lab need, and their installation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from steps import SetupError, run_logged, say

# package -> what it is needed for (shown nowhere else, so kept here)
NEEDED = {
    "bird2": "BGP and BFD",
    "conntrack": "clearing connection tracking entries",
    "etcd-client": "looking into the store by hand",
    "etcd-server": "the store",
    "iproute2": "ip, for bulk changes and the lab's namespaces",
    "libfaketime": "clocks that jump in the lab",
    "nftables": "marks, probe address, MSS",
    "tcpdump": "looking at packets in the lab",
    "util-linux": "nsenter and unshare in the lab",
    "wireguard-go": "WireGuard where the kernel has none",
    "wireguard-tools": "wg, to look at tunnels by hand",
}
# The same for the tests on a stock kernel in a virtual machine: too much for who does not run them.
NEEDED_FOR_VM = {
    "busybox-static": "the virtual machine's first programs",
    "ipvsadm": "a service by IPVS",
    "linux-image-amd64": "the stock kernel; it is booted in the virtual machine only",
    "qemu-system-x86": "the virtual machine",
    "udev": "loading modules for devices in the virtual machine",
}
VENV_PACKAGE = "python3-venv"


def missing_packages(need_venv: bool, for_vm: bool) -> list[str]:
    """Those of the needed packages that are not installed, sorted; `for_vm`: those of the virtual machine too.

    Raises:
        SetupError: this is not a Debian-like system.
    """
    wanted = [*NEEDED, *(NEEDED_FOR_VM if for_vm else [])]
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        raise SetupError("this is not Debian (no dpkg, no apt-get): install these by hand: " + " ".join(sorted(wanted)))
    wanted += [VENV_PACKAGE] if need_venv else []
    return sorted(name for name in wanted if not is_installed(name))


def is_installed(name: str) -> bool:
    """Whether dpkg has the package unpacked and configured."""
    answer = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return answer.returncode == 0 and answer.stdout == b"installed"


def install_packages(names: list[str], log: Path) -> None:
    """Install them with apt-get, without what they merely recommend.

    Raises:
        SetupError: no network, no such package, or the package system is locked or broken.
    """
    say("reading the package lists (apt-get update)")
    # Old lists often still do, so a failure here is told only if the installation then fails too.
    updated = run_logged(["apt-get", "update"], log, "cannot read the package lists", tolerate_failure=True)
    say("installing " + " ".join(names))
    hint = "" if updated else ", and the package lists could not be renewed"
    run_logged(
        ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=60", *names],
        log,
        "cannot install system packages" + hint,
    )
    left = [name for name in names if not is_installed(name)]
    if left:
        raise SetupError("apt-get reported success but these are not installed: " + " ".join(left))
