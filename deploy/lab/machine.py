"""The first process of a lab machine: makes the namespaces, runs the services, reaps orphans, answers commands.

Run as `python -I -S machine.py SPEC`, where SPEC is a JSON file (see `bgplb_lab.world.machine_spec`). It uses the
standard library only and imports nothing of the lab, so that some fifteen of them stay small. It prints the process
id that the machine has outside and returns when the machine is ready; the machine itself lives on, and killing that
process id with SIGKILL takes every process of the machine with it: that is the lab's power cut.
"""

import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTROL_SOCKET = "/run/lab.sock"
WEIGH_EVERY_S = 1.0
HOST_VIEW = "/run/.host"

MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    """Raise OSError naming `what` when a C call answered -1."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount `source` on `target`; raises OSError naming the target."""
    encoded_kind = kind.encode() if kind else None
    encoded_data = data.encode() if data else None
    checked(libc.mount(source.encode(), target.encode(), encoded_kind, flags, encoded_data), f"mount on {target}")


def release_named_namespaces() -> None:
    """Unmount the copies of `ip netns` names: each would keep a foreign namespace alive after its owner removed it."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("nsfs "):
            target = fields.split()[4]
            checked(libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def private_folder(path: str, own: list[str]) -> None:
    """Cover `path` with an empty tmpfs that shows the host's entries by symbolic link, except the names in `own`.

    A mount point that does not exist on the host can't be made there (the lab leaves the host's files alone), and an
    overlay mount is refused in some containers; links work everywhere.
    """
    kept = Path(HOST_VIEW + path)
    kept.mkdir(parents=True)
    mount(path, str(kept), None, MS_BIND | MS_REC)
    mount("lab", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for entry in kept.iterdir():
        if entry.name not in own:
            Path(path, entry.name).symlink_to(entry)
    for name in own:
        Path(path, name).mkdir()


def set_up_mounts(spec: dict[str, Any]) -> None:
    """Give the machine its own /proc, /sys, /run (empty, in memory) and the folders that `spec` binds."""
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make all mounts private")
    release_named_namespaces()
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    try:
        mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError as refused:
        # Only a person who lists /sys/class/net sees the difference; some containers forbid it.
        print(f"the machine sees the host's /sys: {refused}", flush=True)
    mount("lab", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for path, own in spec["private_folders"].items():
        private_folder(path, own)
    for source, target in spec["binds"]:
        Path(target).mkdir(parents=True, exist_ok=True)
        mount(source, target, None, MS_BIND | MS_REC)
    for folder in spec["run_folders"]:
        Path(folder).mkdir(parents=True, exist_ok=True)


def set_sysctls(values: dict[str, str]) -> None:
    """Write each dotted sysctl name; raises OSError when the kernel has no such name."""
    for name, value in values.items():
        Path("/proc/sys", *name.split(".")).write_text(value + "\n")


def set_links(names: list[str], up: bool) -> int:
    """Set interfaces up or down in the order given; answers CLOCK_MONOTONIC in ns just before the first goes.

    One ioctl a link, prepared beforehand: the first link is gone within microseconds of the stamp, which no started
    program could promise.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        wanted = []
        for name in names:
            request = struct.pack("16sH22x", name.encode(), 0)
            (flags,) = struct.unpack_from("H", fcntl.ioctl(handle, SIOCGIFFLAGS, request), 16)
            flags = flags | IFF_UP if up else flags & ~IFF_UP
            wanted.append(struct.pack("16sH22x", name.encode(), flags))
        stamp_ns = time.monotonic_ns()
        for request in wanted:
            fcntl.ioctl(handle, SIOCSIFFLAGS, request)
    return stamp_ns


def stat_of(pid: str) -> tuple[int, int]:
    """Session and nice value of a process, from proc(5); raises OSError when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[3]), int(fields[16])


def weigh_sessions() -> None:
    """Give each session the nice value of its processes.

    Where the kernel shares the processors among sessions (autogroup in sched(7)), a nice value counts only between the
    processes of one session; and each service is a session, as is each process that an agent detaches.
    """
    if not Path("/proc/self/autogroup").exists():
        return
    wanted: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                session, nice = stat_of(entry.name)
                wanted[session] = min(wanted.get(session, (0, "")), (nice, entry.name))
            except OSError:
                continue
    for nice, pid in wanted.values():
        if nice < 0:
            try:
                group = Path(f"/proc/{pid}/autogroup")
                if not group.read_text(encoding="utf-8").rstrip().endswith(f"nice {nice}"):
                    group.write_text(str(nice), encoding="utf-8")
            except OSError:
                continue


@dataclass
class Running:
    """A service and what became of it."""

    name: str
    argv: list[str]
    restart_after_s: float | None
    log: str
    pid: int | None = None
    held: bool = True
    starts: int = 0
    exit_status: int | None = None
    start_at: float | None = None

    def start(self) -> None:
        """Start the process with its output appended to the log; a program that can't start counts as exit 127."""
        self.start_at = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, self.log, flags, 0o640),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        defaults = [signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD]
        self.starts += 1
        try:
            self.pid = os.posix_spawnp(
                self.argv[0], self.argv, os.environ, file_actions=actions, setsid=True, setsigdef=defaults
            )
        except OSError as failed:
            with Path(self.log).open("a", encoding="utf-8") as log:
                log.write(f"{self.argv[0]} does not start: {failed}\n")
            self.ended(127 << 8)

    def ended(self, status: int) -> None:
        """Note the end and, unless it is held down, when it starts again."""
        self.pid = None
        self.exit_status = os.waitstatus_to_exitcode(status)
        if not self.held and self.restart_after_s is not None:
            self.start_at = time.monotonic() + self.restart_after_s

    def send(self, number: int) -> None:
        """Signal the process if there is one."""
        if self.pid is not None:
            os.kill(self.pid, number)


class Supervisor:
    """Process 1: services, orphans and the control socket in one loop."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.services: dict[str, Running] = {}
        self.log_folder = spec["log_folder"]
        for service in spec["services"]:
            self.add(service)
        self.selector = selectors.DefaultSelector()
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(CONTROL_SOCKET)
        self.listener.listen(8)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.wake_read, selectors.EVENT_READ)

    def add(self, service: dict[str, Any]) -> Running:
        """Know a service; it stays down until it is started."""
        name = service["name"]
        if name in self.services and self.services[name].pid is not None:
            raise ValueError(f"service {name} runs already")
        running = Running(name, service["argv"], service["restart_after_s"], f"{self.log_folder}/{name}.log")
        self.services[name] = running
        return running

    def run(self) -> None:
        """Serve until killed."""
        while True:
            weigh_sessions()
            due = [service.start_at for service in self.services.values() if service.start_at is not None]
            timeout = max(0.0, min([*due, time.monotonic() + WEIGH_EVERY_S]) - time.monotonic())
            for key, _ in self.selector.select(timeout):
                if key.fileobj is self.listener:
                    self.serve_one()
                else:
                    os.read(self.wake_read, 4096)
            self.reap()
            now = time.monotonic()
            for service in self.services.values():
                if service.start_at is not None and service.start_at <= now:
                    service.start()

    def reap(self) -> None:
        """Collect every dead child: our services, and what agents started detached."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for service in self.services.values():
                if service.pid == pid:
                    service.ended(status)

    def serve_one(self) -> None:
        """Answer one command of one connection: a line of JSON in, a line of JSON out."""
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(2.0)
            try:
                line = connection.makefile("rb").readline(1 << 16)
                answer: dict[str, Any] = {"ok": True, **self.command(json.loads(line))}
            except (KeyError, ValueError, OSError) as refused:
                answer = {"ok": False, "error": f"{type(refused).__name__}: {refused}"}
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError as gone:
                print(f"the asker went away: {gone}", flush=True)

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Perform one command; raises KeyError for an unknown service, ValueError for an unknown verb."""
        verb = request["cmd"]
        if verb == "status":
            return {"services": [self.state(service) for service in self.services.values()]}
        if verb == "links":
            return {"stamp_ns": set_links(request["names"], request["up"])}
        service = self.add(request["service"]) if verb == "add" else self.services[request["name"]]
        if verb in ("start", "add"):
            service.held = False
            if service.pid is None:
                service.start()
        elif verb == "stop":
            service.held, service.start_at = True, None
            service.send(signal.SIGTERM)
        elif verb == "kill":
            service.held = service.held or request["hold"]
            service.start_at = None if service.held else service.start_at
            stamp_ns = time.monotonic_ns()
            service.send(signal.SIGKILL)
            return {"stamp_ns": stamp_ns}
        elif verb == "signal":
            service.send(request["number"])
        else:
            raise ValueError(f"unknown command {verb}")
        return self.state(service)

    @staticmethod
    def state(service: Running) -> dict[str, Any]:
        """What is known of one service; the process id is the one inside the machine."""
        return {
            "name": service.name,
            "pid": service.pid,
            "held": service.held,
            "starts": service.starts,
            "exit_status": service.exit_status,
        }


def become_machine(spec: dict[str, Any], ready: int) -> None:
    """Process 1 of the new machine: set it up, say so on the pipe `ready`, serve for ever."""
    os.setsid()
    os.chdir("/")
    log = os.open(f"{spec['log_folder']}/machine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(spec["environment"])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    socket.sethostname(spec["name"])
    set_up_mounts(spec)
    set_sysctls(spec["sysctls"])
    set_links(["lo"], True)
    supervisor = Supervisor(spec)
    os.write(ready, b"ready")
    os.close(ready)
    supervisor.run()


def main() -> int:
    """Make the machine of the spec file named on the command line; 0 when it is ready, 1 when it did not come up."""
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    checked(libc.unshare(flags), "make namespaces (needs root)")
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready_read)
        become_machine(spec, ready_write)
        return 1
    os.close(ready_write)
    if os.read(ready_read, 16) != b"ready":
        print(f"machine {spec['name']} did not come up, see {spec['log_folder']}/machine.log", file=sys.stderr)
        return 1
    print(pid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
