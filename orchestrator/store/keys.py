"""Every key that the program uses, built and taken apart in one place."""

from dataclasses import dataclass

_SEQ_DIGITS = 10


@dataclass(frozen=True, slots=True)
class MetaKey:
    """Store generation and schema."""


@dataclass(frozen=True, slots=True)
class LeaderKey:
    """Who leads."""


@dataclass(frozen=True, slots=True)
class EpochCounterKey:
    """The last epoch handed out."""


@dataclass(frozen=True, slots=True)
class AgentKey:
    """An agent's or orchestrator's registration."""

    role: str
    name: str


@dataclass(frozen=True, slots=True)
class HeartbeatKey:
    """An agent's or orchestrator's sign of life."""

    role: str
    name: str


@dataclass(frozen=True, slots=True)
class SpecKey:
    """Accepted intent."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class MachineKey:
    """An FSM record."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class HistoryKey:
    """One transition record of a machine."""

    type: str
    name: str
    seq: int


@dataclass(frozen=True, slots=True)
class DesiredBaseKey:
    """What an agent shall make true apart from machines."""

    role: str
    agent: str


@dataclass(frozen=True, slots=True)
class DesiredKey:
    """What an agent shall make true for one machine."""

    role: str
    agent: str
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class ObservedBaseKey:
    """What an agent sees apart from machines."""

    role: str
    agent: str


@dataclass(frozen=True, slots=True)
class ObservedKey:
    """What an agent sees of one machine."""

    role: str
    agent: str
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A command that waits for the leader's answer."""

    id: str


Key = (
    MetaKey
    | LeaderKey
    | EpochCounterKey
    | AgentKey
    | HeartbeatKey
    | SpecKey
    | MachineKey
    | HistoryKey
    | DesiredBaseKey
    | DesiredKey
    | ObservedBaseKey
    | ObservedKey
    | RequestKey
)


def _part(text: str) -> str:
    """One segment of a key; ValueError if it is empty or would change the key's shape."""
    if not text or "/" in text:
        raise ValueError(f"{text!r} can't be part of a store key: it must not be empty nor hold a '/'")
    return text


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds and parses the keys below one prefix. Names with a slash and empty names raise ValueError."""

    prefix: str = "/bgplb/v1/"
    """Must start and end with a slash."""

    def __post_init__(self) -> None:
        if not (self.prefix.startswith("/") and self.prefix.endswith("/")) or "//" in self.prefix:
            raise ValueError(f"store prefix {self.prefix!r} must start and end with a single '/'")

    @property
    def meta(self) -> str:
        """Store generation, schema."""
        return f"{self.prefix}meta"

    @property
    def leader(self) -> str:
        """The leader; carries the leader's lease."""
        return f"{self.prefix}leader"

    @property
    def epoch_counter(self) -> str:
        """The last epoch handed out."""
        return f"{self.prefix}counter/epoch"

    @property
    def agents_prefix(self) -> str:
        """All registrations."""
        return f"{self.prefix}agents/"

    def agent(self, role: str, name: str) -> str:
        """Registration of one agent (role edge or node) or orchestrator."""
        return f"{self.agents_prefix}{_part(role)}/{_part(name)}"

    @property
    def heartbeats_prefix(self) -> str:
        """All heartbeats."""
        return f"{self.prefix}heartbeats/"

    def heartbeats(self, role: str) -> str:
        """Prefix of the heartbeats of one role."""
        return f"{self.heartbeats_prefix}{_part(role)}/"

    def heartbeat(self, role: str, name: str) -> str:
        """Heartbeat of one agent or orchestrator."""
        return f"{self.heartbeats(role)}{_part(name)}"

    @property
    def specs_prefix(self) -> str:
        """All accepted intent."""
        return f"{self.prefix}spec/"

    def spec(self, kind: str, name: str) -> str:
        """Accepted intent of one object."""
        return f"{self.specs_prefix}{_part(kind)}/{_part(name)}"

    @property
    def machines_prefix(self) -> str:
        """All machine records."""
        return f"{self.prefix}machines/"

    def machine(self, type: str, name: str) -> str:
        """Record of one machine (type pool or egress)."""
        return f"{self.machines_prefix}{_part(type)}/{_part(name)}"

    @property
    def histories_prefix(self) -> str:
        """All transition records of all machines."""
        return f"{self.prefix}history/"

    def history_prefix(self, type: str, name: str) -> str:
        """All transition records of one machine, which sort by sequence."""
        return f"{self.histories_prefix}{_part(type)}/{_part(name)}/"

    def history(self, type: str, name: str, seq: int) -> str:
        """One transition record; the number is padded with zeros so that keys sort as numbers do."""
        if not 0 <= seq < 10**_SEQ_DIGITS:
            raise ValueError(f"history sequence {seq} is outside 0..{10**_SEQ_DIGITS - 1}")
        return f"{self.history_prefix(type, name)}{seq:0{_SEQ_DIGITS}d}"

    @property
    def desired_all_prefix(self) -> str:
        """Desired state of all agents."""
        return f"{self.prefix}desired/"

    def desired_prefix(self, role: str, agent: str) -> str:
        """All that one agent shall make true."""
        return f"{self.desired_all_prefix}{_part(role)}/{_part(agent)}/"

    def desired_base(self, role: str, agent: str) -> str:
        """What an agent shall make true apart from machines."""
        return f"{self.desired_prefix(role, agent)}base"

    def desired(self, role: str, agent: str, type: str, name: str) -> str:
        """What an agent shall make true for one machine."""
        return f"{self.desired_prefix(role, agent)}{_part(type)}/{_part(name)}"

    @property
    def observed_all_prefix(self) -> str:
        """Observations of all agents."""
        return f"{self.prefix}observed/"

    def observed_prefix(self, role: str, agent: str) -> str:
        """All that one agent reports."""
        return f"{self.observed_all_prefix}{_part(role)}/{_part(agent)}/"

    def observed_base(self, role: str, agent: str) -> str:
        """What an agent sees apart from machines."""
        return f"{self.observed_prefix(role, agent)}base"

    def observed(self, role: str, agent: str, type: str, name: str) -> str:
        """What an agent sees of one machine."""
        return f"{self.observed_prefix(role, agent)}{_part(type)}/{_part(name)}"

    @property
    def requests_prefix(self) -> str:
        """All requests."""
        return f"{self.prefix}requests/"

    def request(self, id: str) -> str:
        """One request, later with its answer."""
        return f"{self.requests_prefix}{_part(id)}"

    def parse(self, key: str) -> Key:
        """What a key stands for; ValueError for one that is not ours or not known to this version."""
        if not key.startswith(self.prefix):
            raise ValueError(f"key {key!r} is not below {self.prefix!r}")
        parts = key[len(self.prefix) :].split("/")
        parsed = _parse(parts) if all(parts) else None
        if parsed is None:
            raise ValueError(f"key {key!r} is of no known kind")
        return parsed


def _parse(parts: list[str]) -> Key | None:
    """The typed key for the segments below the prefix, or None."""
    match parts:
        case ["meta"]:
            return MetaKey()
        case ["leader"]:
            return LeaderKey()
        case ["counter", "epoch"]:
            return EpochCounterKey()
        case ["agents", role, name]:
            return AgentKey(role, name)
        case ["heartbeats", role, name]:
            return HeartbeatKey(role, name)
        case ["spec", kind, name]:
            return SpecKey(kind, name)
        case ["machines", type_, name]:
            return MachineKey(type_, name)
        case ["history", type_, name, seq] if len(seq) == _SEQ_DIGITS and seq.isascii() and seq.isdigit():
            return HistoryKey(type_, name, int(seq))
        case ["desired", role, agent, "base"]:
            return DesiredBaseKey(role, agent)
        case ["desired", role, agent, type_, name]:
            return DesiredKey(role, agent, type_, name)
        case ["observed", role, agent, "base"]:
            return ObservedBaseKey(role, agent)
        case ["observed", role, agent, type_, name]:
            return ObservedKey(role, agent, type_, name)
        case ["requests", id_]:
            return RequestKey(id_)
    return None
