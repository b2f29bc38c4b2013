"""A virtual machine with the stock kernel of this machine's distribution, over this machine's own files.

virtme-ng boots it; nothing is built, fetched or written, but for one folder of results. What runs in it sees the same
paths as outside: the repository, `.venv`, the system's programs.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BOOTED = "the stock kernel is up"
"""What the guest's first words are."""
BOOT_WITHIN_S, TELL_EVERY_S = 300.0, 10.0
MEMORY = "3G"
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "udevadm": "udev",
    "ipvsadm": "ipvsadm",
}
"""What has to be there, and the package that brings it."""
PATH = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MODULES, KVM = Path("/lib/modules"), Path("/dev/kvm")
FIRST = Path(__file__).parent / "first.sh"
# The machine's files once more, by a device of its own: virtme-ng's own mount of them has no cache.
FILES = (
    "-fsdev local,id=files,path=/,security_model=none,readonly=on,multidevs=remap "
    "-device virtio-9p-pci,fsdev=files,mount_tag=bgplb-files"
)

# Emulated, the guest's clock follows the instructions that were executed, one a nanosecond, and real time while it has
# nothing to do: it sees a slow machine of one processor, and not one that stumbles with whatever else this one does.
STEADY_CLOCK = "-icount shift=0,sleep=on"

Say = Callable[[str], None]


class VmError(Exception):
    """The virtual machine can't be used; the text is one sentence that says why and what to do."""


class Missing(VmError):
    """Something that has to be installed first is not there."""


def stock_kernel(folder: Path = Path("/boot")) -> Path:
    """The newest Debian kernel of this machine. Raises Missing."""
    found = [path for path in folder.glob("vmlinuz-*-amd64") if (MODULES / _version(path)).is_dir()]
    if not found:
        raise Missing("no stock kernel: there is no vmlinuz-*-amd64 in /boot; install linux-image-amd64 (make vm does)")
    return max(found, key=lambda path: [int(number) for number in re.findall(r"\d+", _version(path))])


def _version(kernel: Path) -> str:
    return kernel.name.removeprefix("vmlinuz-")


def check(which: Callable[[str], str | None] = lambda name: shutil.which(name, path=PATH)) -> None:
    """Raise Missing naming everything that is absent, at once."""
    absent = sorted(package for name, package in PROGRAMS.items() if which(name) is None)
    if which("vng") is None:
        absent.append("virtme-ng (a Python package, in .venv)")
    if absent:
        raise Missing(f"packages are missing for the virtual machine: {', '.join(absent)}; `make vm` installs them")
    if os.geteuid() != 0:
        raise Missing("the virtual machine reads this machine's own files and needs root: run it as root")


@dataclass(frozen=True)
class Ended:
    """A boot that is over. `booted`: whether the kernel came up at all; `said`: the last lines of output."""

    booted: bool
    said: tuple[str, ...]


def run(program: list[str], results: Path, within_s: float, say: Say) -> None:
    """Boot, run the program to its end, power off. `results` is the one folder that the guest may write to.

    Hardware virtualisation is used where it works, else emulation. Raises Missing before anything is started, VmError
    when the kernel does not come up or the program is not over in time.
    """
    check()
    kernel = stock_kernel()
    results.mkdir(parents=True, exist_ok=True)
    if os.access(KVM, os.R_OK | os.W_OK):
        say(f"booting {_version(kernel)} with hardware virtualisation")
        ended = boot(kernel, program, results, within_s, say, emulate=False)
        if ended.booted:
            return
        say(f"there is /dev/kvm, but the kernel does not come up with it: {' '.join(ended.said[-1:])[:200]}")
    say(f"booting {_version(kernel)} in emulation: half a minute or more, and everything in it is slow")
    ended = boot(kernel, program, results, within_s, say, emulate=True)
    if not ended.booted:
        raise VmError(f"the kernel {_version(kernel)} did not come up: {' / '.join(ended.said[-3:])}")


def boot(kernel: Path, program: list[str], results: Path, within_s: float, say: Say, emulate: bool) -> Ended:
    """One attempt. Raises VmError when the kernel came up and the program did not end in time."""
    guest = ["unshare", "--mount", str(FIRST), str(results), *program]
    how = ["--cpus", "1", "--disable-kvm", f"--qemu-opts={FILES} {STEADY_CLOCK}"]
    command = [
        "vng", "--run", str(kernel), "--memory", MEMORY, "--force-9p", "--disable-microvm", "--rwdir", str(results),
        *(how if emulate else ["--cpus", "2", f"--qemu-opts={FILES}"]), "--exec", " ".join(guest),
    ]  # fmt: skip
    environment = {**os.environ, "PATH": PATH}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        start_new_session=True, text=True, errors="replace",
    )  # fmt: skip
    said: list[str] = []
    up = threading.Event()
    reader = threading.Thread(target=_read, args=(process, said, up, say), daemon=True)
    reader.start()
    began, told_s = time.monotonic(), 0.0
    try:
        while process.poll() is None:
            took_s = time.monotonic() - began
            if not up.is_set() and took_s > told_s + TELL_EVERY_S:
                told_s = took_s
                say("still booting")
            if not up.is_set() and took_s > BOOT_WITHIN_S:
                said.append(f"no word from it in {BOOT_WITHIN_S:.0f} s")
                break
            if took_s > within_s:
                raise VmError(f"what runs in the virtual machine was not over in {within_s:.0f} s: {said[-1:]}")
            time.sleep(0.2)
    finally:
        _end(process)
        reader.join(timeout=5)
    return Ended(up.is_set(), tuple(said))


def _read(process: "subprocess.Popen[str]", said: list[str], up: threading.Event, say: Say) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        text = line.strip()
        if text == BOOTED:
            up.set()
        if text:
            said.append(text)
            if up.is_set():
                say(text)


def _end(process: "subprocess.Popen[str]") -> None:
    """End the virtual machine with all that belongs to it: its own session, so nobody else's."""
    if process.poll() is None:
        os.killpg(process.pid, 15)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
