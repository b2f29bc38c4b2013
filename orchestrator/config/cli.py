"""The file of the command line: /etc/bgplb/cli.yaml."""

from orchestrator.config.problems import setting
from orchestrator.config.sections import Etcd, Section


class CliConfig(Section):
    """Where the commands find the store."""

    name: str | None = setting(
        None,
        "Name under which requests are recorded; the login name unless given",
        allowed="a text of 1 to 64 characters",
        min_length=1,
        max_length=64,
    )
    etcd: Etcd = setting(..., "The store", allowed="a mapping with at least endpoints")
