"""The file of an orchestrator: /etc/bgplb/orchestrator.yaml."""

from typing import ClassVar

from orchestrator.config.problems import setting
from orchestrator.config.sections import AbsolutePath, Root


class OrchestratorConfig(Root):
    """An orchestrator decides; several run, one leads."""

    LISTEN: ClassVar[str] = "127.0.0.1:9177"

    manifests: AbsolutePath | None = setting(
        None,
        "Folder of the manifests that state the intent; every replica reads it, the leader acts on it",
        allowed="an absolute path",
        example="/etc/bgplb/manifests",
    )
    reconcile_every_ms: int = setting(
        10_000,
        "Time between two complete comparisons of what is with what should be, in milliseconds",
        allowed="1000 to 600000 milliseconds",
        ge=1000,
        le=600_000,
    )
