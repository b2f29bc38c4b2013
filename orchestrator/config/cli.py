"""The file of the command line: /etc/bgplb/cli.yaml."""

from orchestrator.config.problems import setting
from orchestrator.config.sections import AbsolutePath, Etcd, Section


class CliConfig(Section):
    """Where the commands find the store."""

    etcd: Etcd = setting(..., "The store", allowed="a mapping with at least endpoints")
    manifests: AbsolutePath | None = setting(
        None, "Folder that `manifests apply` writes to", allowed="an absolute path", example="/etc/bgplb/manifests"
    )
