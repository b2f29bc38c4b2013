"""One agent for each network: two would take each other's tunnels, rules and tables for leftovers of their own."""

import socket

from orchestrator.agents.instance import InstanceError

# A name in the abstract namespace: Linux keeps one such namespace for each network namespace and forgets a name with
# the process that bound it (unix(7)), so it can be neither left behind nor taken from a machine beside this one.
NAME = b"\0bgplb-agent"


def take_network() -> socket.socket:
    """Take this network for the caller, for as long as it keeps what is returned.

    Raises:
        InstanceError: an agent, of whatever role and name, has it.

    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(NAME)
    except OSError as error:
        held.close()
        raise InstanceError(
            "another agent of bgplb looks after this machine's network (one, edge agent or node agent, is all that a "
            "machine can have): stop that one, or start this one on its own machine"
        ) from error
    return held
