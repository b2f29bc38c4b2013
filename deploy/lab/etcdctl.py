"""etcd's own command in a lab, logged in as root: for looking at the store past our daemons."""

from collections.abc import Iterable

from bgplb_lab import topology
from bgplb_lab.topology import Auth
from bgplb_lab.world import World


def etcdctl(world: World, *argv: str, endpoints: Iterable[str] = topology.ETCD) -> str:
    """What `etcdctl` prints, run inside the management network; raises LabError with its complaint.

    `endpoints`: the members that it may ask.
    """
    machine = root_machine(world)
    command, environment = etcdctl_command(world, *argv, endpoints=endpoints)
    return world.inside(machine, *command, environment=environment)


def root_machine(world: World) -> str:
    """A machine that runs and has root's files."""
    return next((name for name in topology.ORCHESTRATORS if name in world.pids()), topology.ORCHESTRATORS[0])


def etcdctl_command(
    world: World, *argv: str, endpoints: Iterable[str] = topology.ETCD
) -> tuple[list[str], dict[str, str]]:
    """The argument list and the environment of an `etcdctl` that `root_machine` runs."""
    addresses = topology.endpoints(world.auth)
    command = ["etcdctl", f"--endpoints={','.join(addresses[name] for name in endpoints)}"]
    environment = {"ETCDCTL_API": "3"}
    if world.auth is not Auth.NONE:
        command.append("--cacert=/etc/bgplb/ca.pem")
    if world.auth is Auth.CERTIFICATE:
        command += ["--cert=/etc/bgplb/root.pem", "--key=/etc/bgplb/root.key"]
    elif world.auth is Auth.PASSWORD:
        secret = world.path_in(root_machine(world), "/etc/bgplb/root.password")
        environment |= {"ETCDCTL_USER": "root", "ETCDCTL_PASSWORD": secret.read_text(encoding="utf-8").strip()}
    return [*command, *argv], environment
