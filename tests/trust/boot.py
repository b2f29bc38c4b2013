"""The first process of a machine that systemd runs: a root of its own in memory, then systemd takes the process over.

Run as ``unshare --mount --pid --net --uts --ipc --cgroup --fork python boot.py SPEC``, SPEC being JSON: ``root`` (an
empty folder), ``binds`` (source, target, both absolute; read-only), ``files`` (target -> text), ``modes`` (target ->
octal text). Nothing of the host can be written from inside: /usr is read-only, all else is memory, and so are the
kernel's settings but those of the machine's own network.
"""

import ctypes
import json
import os
import secrets
import shutil
import sys
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
FOLDERS = ("usr", "etc", "dev", "proc", "sys", "run", "tmp", "var/log/journal", "var/lib", "root", "home", "opt", "old")
COPIES = ("passwd", "group", "shadow", "nsswitch.conf", "ld.so.cache", "os-release", "iproute2", "alternatives", "ssl")
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0),
           "net/tun": (10, 200)}  # fmt: skip
MASKED = (
    "apt-daily-upgrade.timer", "apt-daily.timer", "dbus.socket", "dev-hugepages.mount", "dev-mqueue.mount",
    "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer", "man-db.timer", "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount", "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
    "systemd-binfmt.service", "systemd-firstboot.service", "systemd-modules-load.service",
    "systemd-pcrphase-sysinit.service", "systemd-pcrphase.service", "systemd-random-seed.service",
    "systemd-remount-fs.service", "systemd-repart.service", "systemd-sysctl.service", "systemd-udev-trigger.service",
    "systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-udevd.service",
    "systemd-update-utmp.service",
)  # fmt: skip
"""What would look at the machine's hardware or at what machines share, and has nothing to do with a unit of ours."""

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: Path, kind: str | None, flags: int, data: str | None = None) -> None:
    words = (source.encode(), str(target).encode(), kind.encode() if kind else None)
    checked(libc.mount(*words, flags, data.encode() if data else None), f"mount on {target}")


def read_only(source: str, target: Path) -> None:
    """Show a folder of the host at a place in the new root, not to be written."""
    target.mkdir(parents=True, exist_ok=True)
    mount(source, target, None, MS_BIND)
    mount("", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def make_devices(folder: Path) -> None:
    mount("dev", folder, "tmpfs", MS_NOSUID, "mode=755")
    (folder / "net").mkdir()
    for name, numbers in DEVICES.items():
        os.mknod(folder / name, 0o020666, os.makedev(*numbers))
        (folder / name).chmod(0o666)
    (folder / "shm").mkdir()
    mount("shm", folder / "shm", "tmpfs", MS_NOSUID | MS_NODEV)
    (folder / "fd").symlink_to("/proc/self/fd")
    (folder / "pts").mkdir()
    mount("devpts", folder / "pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")
    (folder / "ptmx").symlink_to("pts/ptmx")


def make_root(spec: dict[str, object], root: Path) -> None:
    mount("root", root, "tmpfs", 0, "mode=755")
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    (root / "tmp").chmod(0o1777)
    # An id, or systemd takes this for the first start ever and enables every service of /usr.
    (root / "etc/machine-id").write_text(secrets.token_hex(16) + "\n")
    read_only("/usr", root / "usr")
    mount("local", root / "usr/local/bin", "tmpfs", 0, "mode=755")
    for source, target in spec["binds"]:  # type: ignore[attr-defined]
        read_only(source, root / target.lstrip("/"))
    for name in COPIES:
        host = Path("/etc", name)
        if host.is_dir():
            shutil.copytree(host, root / "etc" / name, symlinks=True)
        elif host.exists():
            shutil.copy2(host, root / "etc" / name)
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    for unit in MASKED:
        (units / unit).symlink_to("/dev/null")
    for target, text in spec["files"].items():  # type: ignore[attr-defined]
        path = root / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(int(spec["modes"].get(target, "644"), 8))  # type: ignore[attr-defined]
    make_devices(root / "dev")
    mount("run", root / "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    (root / "run/netns").mkdir()


def make_kernel_views(root: Path) -> None:
    """/proc and /sys of these namespaces; of the settings only the network's own can be written."""
    mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount(str(root / "proc/sys"), root / "proc/sys", None, MS_BIND)
    mount(str(root / "proc/sys/net"), root / "proc/sys/net", None, MS_BIND)
    mount("", root / "proc/sys", None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    mount("sysfs", root / "sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    mount("cgroup2", root / "sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make all mounts private")
    root = Path(spec["root"])
    make_root(spec, root)
    make_kernel_views(root)
    os.chdir(root)
    checked(libc.syscall(PIVOT_ROOT[os.uname().machine], b".", b"old"), "pivot_root")
    os.chdir("/")
    checked(libc.umount2(b"/old", MNT_DETACH), "let go of the host's root")
    Path("/old").rmdir()
    environment = {"container": "test", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    os.execve("/lib/systemd/systemd", ["/lib/systemd/systemd", "--system", "--unit=basic.target"], environment)


if __name__ == "__main__":
    main()
