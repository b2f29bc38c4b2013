"""etcd's own command in a lab, logged in as root: for looking at the store past our daemons."""

from bgplb_lab import topology
from bgplb_lab.topology import Auth
from bgplb_lab.world import World


def etcdctl(world: World, *argv: str) -> str:
    """What `etcdctl` prints, run inside the management network; raises LabError with its complaint."""
    machine = next((name for name in topology.ORCHESTRATORS if name in world.pids()), topology.ORCHESTRATORS[0])
    command = ["etcdctl", f"--endpoints={','.join(topology.endpoints(world.auth).values())}"]
    environment = {"ETCDCTL_API": "3"}
    if world.auth is not Auth.NONE:
        command.append("--cacert=/etc/bgplb/ca.pem")
    if world.auth is Auth.CERTIFICATE:
        command += ["--cert=/etc/bgplb/root.pem", "--key=/etc/bgplb/root.key"]
    elif world.auth is Auth.PASSWORD:
        password = world.path_in(machine, "/etc/bgplb/root.password").read_text(encoding="utf-8").strip()
        environment |= {"ETCDCTL_USER": "root", "ETCDCTL_PASSWORD": password}
    return world.inside(machine, *command, *argv, environment=environment)
