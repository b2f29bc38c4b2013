"""One lab: its folders, its machines, its wires; up, down, and one machine at a time for the faults."""

import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bgplb_lab import configs, control, credentials, topology
from bgplb_lab.errors import LabError, MissingPrerequisite, NotFound, RefusedByState
from bgplb_lab.topology import ETCD, FABRIC, ORCHESTRATORS, Auth, Machine, Port, Programs

RUN_ROOT = Path("/run/bgplb-lab")
DISK_ROOT = Path("/var/lib/bgplb-lab")
NEEDED_PROGRAMS = ("ip", "nft", "nsenter", "bird", "birdc", "etcd", "wireguard-go", "wg")
BOOT_TIMEOUT_S = 20.0
BOOTSTRAP_TIMEOUT_S = 60.0
"""For etcd's users and roles: an election first, and etcd takes its time over each password."""

Say = Callable[[str], None]


def check_prerequisites() -> None:
    """Raise MissingPrerequisite naming everything that is absent, at once."""
    if os.geteuid() != 0:
        raise MissingPrerequisite("the lab makes network namespaces and needs root: run it with sudo")
    missing = [name for name in NEEDED_PROGRAMS if shutil.which(name, path=control.SERVICE_PATH) is None]
    if missing:
        raise MissingPrerequisite(f"programs are missing: {', '.join(missing)}; `make setup` installs them")
    if not Path("/dev/net/tun").exists():
        raise MissingPrerequisite("/dev/net/tun is missing: user-space WireGuard needs it (modprobe tun)")


def own_programs() -> Programs:
    """The interpreter and command of the environment that this code runs in."""
    command = Path(sys.executable).parent / "bgplb"
    return Programs(sys.executable, str(command), str(Path(__file__).parent))


def port_name(machine: str, port: Port) -> str:
    """Name of the fabric's end of a link; an interface name has 15 characters at most."""
    return f"{machine}.{port.name}"


class World:
    """A lab by its id. Every method may be called by a process that did not make the lab."""

    def __init__(self, lab_id: str, say: Say) -> None:
        self.lab_id = lab_id
        self.say = say
        self.run_folder = RUN_ROOT / lab_id
        self.disk_folder = DISK_ROOT / lab_id
        self.specs_folder = self.run_folder / "nodes"
        self.programs = own_programs()
        self.auth = self.auth_of_the_standing()
        """How daemons log in to etcd; to be set before `up`."""
        self.edges = self.edges_of_the_standing()
        """How many edges it has; to be set before `up`."""
        self.family = topology.Family.BOTH
        """What probes ask over, unless they are told otherwise."""
        self.outside = topology.Family.IPV4
        """What tunnels travel over; of interest to `up` alone."""
        self.profile = topology.Profile.FAST
        """How soon its manifests want a dead gateway to be noticed; to be set before `up`."""

    @property
    def machines(self) -> dict[str, Machine]:
        """Every machine's description by name."""
        return topology.machines(self.programs, self.auth, self.edges)

    # What exists

    def auth_of_the_standing(self) -> Auth:
        """What the lab was made with; without a lab nothing."""
        return Auth(self.made_with().get("auth", Auth.NONE))

    def edges_of_the_standing(self) -> int:
        """How many it was made with; without a lab one."""
        return int(self.made_with().get("edges", 1))

    def made_with(self) -> dict[str, Any]:
        """The note that `up` left; empty without a lab."""
        path = self.run_folder / "state.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def exists(self) -> bool:
        """Whether anything of this lab is left, running or not."""
        return self.run_folder.exists() or self.disk_folder.exists() or bool(self.pids())

    def pids(self) -> dict[str, int]:
        """Running machines: name -> process id of their first process."""
        return control.machine_pids(self.specs_folder)

    def machine(self, name: str) -> Machine:
        """The machine's description; raises NotFound with the names that exist."""
        if name not in self.machines:
            raise NotFound(f"no machine {name} in the lab; there are {', '.join(self.machines)}")
        return self.machines[name]

    def pid(self, name: str) -> int:
        """Process id of a running machine; raises NotFound or RefusedByState."""
        self.machine(name)
        pid = self.pids().get(name)
        if pid is None:
            hint = "heal its power cut" if self.run_folder.exists() else f"`bgplb lab up --id {self.lab_id}` first"
            raise RefusedByState(f"machine {name} of lab {self.lab_id} is not running: {hint}")
        return pid

    def command(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """One command to a machine's first process."""
        return control.command(self.pid(name), request)

    def inside(
        self,
        name: str,
        *argv: str,
        stdin: str = "",
        timeout_s: float = control.COMMAND_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program inside a machine and answer its output; raises LabError with its complaint."""
        return control.run(control.enter(self.pid(name), argv, whole=True), stdin, timeout_s, environment)

    def path_in(self, name: str, path: str) -> Path:
        """Where a file of a running machine is seen from outside."""
        return Path(f"/proc/{self.pid(name)}/root{path}")

    def log_folder(self, name: str) -> Path:
        """Where the logs of a machine's services are; they outlive its power cuts."""
        return self.disk_folder / name / "log"

    # State that outlives one command

    @contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        """The lab's note of active faults and the like, under a lock; what is changed inside is written at the end."""
        path = self.run_folder / "state.json"
        if not self.run_folder.exists():
            raise NotFound(f"no lab {self.lab_id}; `bgplb lab up --id {self.lab_id}` makes it")
        with (self.run_folder / "lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"schema": 1, "faults": []}
            yield state
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(state), encoding="utf-8")
            fresh.replace(path)

    @property
    def edge_names(self) -> tuple[str, ...]:
        """Its edges."""
        return topology.EDGES[: self.edges]

    # Up and down

    def up(self, daemons: bool = True) -> None:
        """Make the lab and start everything; raises RefusedByState when it is there already.

        Without `daemons`, our own services (orchestrators, agents, their BIRD) stay down: the network alone.
        """
        check_prerequisites()
        if self.exists():
            raise RefusedByState(f"lab {self.lab_id} exists already: `bgplb lab down --id {self.lab_id}` removes it")
        self.say(f"lab {self.lab_id}: {len(self.machines) - 1} machines, three etcd members among them")
        try:
            self.build(daemons)
        except BaseException:
            self.say(f"lab {self.lab_id} did not come up: removing what was made")
            self.down()
            raise

    def build(self, daemons: bool) -> None:
        """The work of `up`; what it leaves behind when it fails, `down` removes."""
        for folder in (self.specs_folder, self.disk_folder):
            folder.mkdir(parents=True, mode=0o750)
        with self.state() as state:
            state |= {"daemons": daemons, "auth": self.auth, "edges": self.edges}
        self.write_manifests()
        issuer = credentials.Issuer(self.auth)
        for name in self.machines:
            self.make_disk(name, issuer)
        began = time.monotonic()
        launched = [self.launch(machine) for machine in self.machines.values()]
        for machine, process in launched:
            self.finish_launch(machine, process)
        self.make_bridges()
        for machine in self.machines.values():
            self.wire(machine)
        self.say(f"namespaces and wires are there after {time.monotonic() - began:.1f} s; starting services")
        members = [machine for machine in self.machines.values() if machine.name in ETCD]
        for machine in members:
            self.start_services(machine, daemons)
        if self.auth is not Auth.NONE:
            words = credentials.bootstrap_words(self.auth)
            self.inside(ORCHESTRATORS[0], self.programs.bgplb, *words, timeout_s=BOOTSTRAP_TIMEOUT_S)
            self.say(f"etcd wants a log-in by {self.auth} from now on")
        for machine in self.machines.values():
            if machine not in members:
                self.start_services(machine, daemons)

    def down(self) -> None:
        """Remove everything of this lab, whatever state it is in; raises NotFound when there is nothing."""
        if not self.exists():
            raise NotFound(f"no lab {self.lab_id}")
        # Again until none is seen: an `up` that was killed may have left some that were just starting.
        while found := control.processes_of(self.specs_folder):
            for pid, name in found.items():
                control.kill_machine(name, pid)
        for folder in (self.run_folder, self.disk_folder):
            shutil.rmtree(folder, ignore_errors=False) if folder.exists() else None
        for root in (RUN_ROOT, DISK_ROOT):
            if root.exists() and not any(root.iterdir()):
                root.rmdir()

    def write_manifests(self) -> None:
        """The folder of manifests that the orchestrators share."""
        folder = self.disk_folder / "manifests"
        folder.mkdir()
        for name, text in configs.manifests(self.outside, self.edges, self.profile).items():
            (folder / name).write_text(text, encoding="utf-8")

    # One machine

    def power_on(self, name: str) -> None:
        """Start a machine that is off, with the same disk and an empty /run, wire it and start its services."""
        machine = self.machine(name)
        if name in self.pids():
            raise RefusedByState(f"machine {name} is running")
        with self.state() as state:
            daemons = bool(state["daemons"])
        self.remove_ports(machine)
        self.finish_launch(*self.launch(machine))
        self.wire(machine)
        self.start_services(machine, daemons)

    def launch(self, machine: Machine) -> tuple[Machine, "subprocess.Popen[str]"]:
        """Start a machine's first process; `finish_launch` waits for it."""
        spec = self.specs_folder / f"{machine.name}.json"
        spec.write_text(json.dumps(self.machine_spec(machine)), encoding="utf-8")
        argv = [*self.programs.script("machine"), str(spec)]
        return machine, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def finish_launch(self, machine: Machine, process: "subprocess.Popen[str]") -> None:
        """Wait until the machine is ready; raises LabError naming its log when it did not come up."""
        try:
            process.communicate(timeout=BOOT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        if process.returncode != 0:
            log = self.log_folder(machine.name) / "machine.log"
            tail = log.read_text(encoding="utf-8").strip().splitlines()[-1:] if log.exists() else []
            raise LabError(f"machine {machine.name} did not come up: {' '.join(tail) or 'no word'} (log: {log})")

    def make_disk(self, name: str, issuer: credentials.Issuer) -> None:
        """Make a machine's disk, with the files that an operator would have put there; each start finds it as left."""
        disk = self.disk_folder / name
        for folder in ("lib", "log", "etc/bgplb", "etc/bird"):
            (disk / folder).mkdir(parents=True)
        for relative, text in configs.files(name, self.auth, self.edges).items():
            (disk / "etc" / relative).write_text(text, encoding="utf-8")
        for relative, text in issuer.files(name):
            credentials.write(disk / "etc/bgplb", relative, text)

    def machine_spec(self, machine: Machine) -> dict[str, Any]:
        """What the machine's first process needs to know, see `machine.py`."""
        disk = self.disk_folder / machine.name
        binds = [
            [str(disk / "lib"), "/var/lib/bgplb"],
            [str(disk / "etc/bgplb"), "/etc/bgplb"],
            [str(disk / "etc/bird"), "/etc/bird"],
        ]
        if machine.name in topology.ORCHESTRATORS:
            binds.append([str(self.disk_folder / "manifests"), "/etc/bgplb/manifests"])
        return {
            "name": machine.name,
            "log_folder": str(self.log_folder(machine.name)),
            "environment": {
                "PATH": control.SERVICE_PATH,
                "LC_ALL": "C.UTF-8",
                "HOME": "/root",
                "PYTHONUNBUFFERED": "1",
                "BGPLB_LAB": self.lab_id,
            },
            "private_folders": {"/etc": ["bgplb", "bird"], "/var/lib": ["bgplb"]},
            "binds": binds,
            "run_folders": ["/run/bird", "/run/lock", "/run/lab"],
            "sysctls": machine.sysctls,
            "services": [
                {"name": service.name, "argv": service.command, "restart_after_s": service.restart_after_s}
                for service in machine.services
            ],
        }

    def batch(self, name: str, lines: list[str]) -> None:
        """Run lines of `ip` commands in a machine's network, all in one process."""
        if lines:
            argv = control.enter(self.pid(name), ["ip", "-batch", "-"], whole=False)
            control.run(argv, "".join(f"{line}\n" for line in lines))

    def make_bridges(self) -> None:
        """A bridge for each link, so that a cut takes no carrier from the neighbour: real networks don't either."""
        lines = []
        for bridge in topology.bridges(self.machines.values()):
            lines.append(f"link add {bridge} type bridge forward_delay 0 mcast_snooping 0")
            lines.append(f"link set {bridge} up")
        self.batch(FABRIC, lines)

    def wire(self, machine: Machine) -> None:
        """Give a running machine its interfaces, addresses, routes and NAT."""
        pid = self.pid(machine.name)
        fabric, inside = [], []
        for port in machine.ports:
            end = port_name(machine.name, port)
            fabric.append(f"link add {end} type veth peer name {port.name} netns {pid}")
            fabric.append(f"link set {end} master {port.bridge} up")
            inside.append(f"link set {port.name} up")
            inside += [f"addr add {address} dev {port.name}" for address in port.addresses]
        inside += [f"addr add {address} dev lo" for address in machine.extra_addresses]
        inside += [f"route add {route}" for route in machine.routes]
        self.batch(FABRIC, fabric)
        self.batch(machine.name, inside)
        if machine.nft:
            control.run(control.enter(pid, ["nft", "-f", "-"], whole=False), machine.nft)

    def remove_ports(self, machine: Machine) -> None:
        """Take the fabric's ends away; the kernel removes those of a dead machine too, but in its own time."""
        names = {port_name(machine.name, port) for port in machine.ports}
        argv = control.enter(self.pid(FABRIC), ["ip", "-j", "link"], whole=False)
        present = {link["ifname"] for link in json.loads(control.run(argv))}
        self.batch(FABRIC, [f"link del {name}" for name in sorted(names & present)])

    def start_services(self, machine: Machine, daemons: bool) -> None:
        """Start a machine's services, ours only when `daemons` is true."""
        for service in machine.services:
            if daemons or not service.daemon_of_ours:
                self.command(machine.name, {"cmd": "start", "name": service.name})


def new_lab_id() -> str:
    """A short random id, so that two labs can stand side by side."""
    return secrets.token_hex(2)


def existing_labs() -> list[str]:
    """Ids of all labs of which something is left on this machine."""
    return sorted({entry.name for root in (RUN_ROOT, DISK_ROOT) if root.exists() for entry in root.iterdir()})
