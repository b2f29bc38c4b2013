"""Scenario files: what happens to the lab, step by step, and what must come of it. Pure but for reading the file.

A file is one YAML mapping: `scenario` (its name), `teaches` (a sentence), `steps`, and `expect`. A step has one verb:

| verb | more fields | what |
|---|---|---|
| `fault: NAME` | `on`, `value` | break something |
| `heal: NAME` | `on`, `value` | mend what an earlier step broke |
| `pause_ms: N` | | wait |
| `move: MACHINE` | | an operator's order to move the pool there |
| `settled: MACHINE` | `with_standby`, `within_s` | wait until the pool is served there (`any`: anywhere) |
| `repeat: N` | `steps` | do these so many times |

`on` is a machine, or what one is: `active` and `standby` as they were at the start, `leader` and `etcd-leader` as they
are when the fault strikes. `heal` means the machine that was struck.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from bgplb_lab import topology
from bgplb_lab.errors import BadInput
from bgplb_lab.faults import FAULTS, Fault

LIBRARY = Path(__file__).parent / "scenarios"
ROLES = {
    "active": topology.GATEWAYS,
    "standby": topology.GATEWAYS,
    "leader": topology.ORCHESTRATORS,
    "etcd-leader": tuple(topology.ETCD),
}
"""What a machine may be, and which machines can be that."""
GATEWAYS = ("active", "standby", *topology.GATEWAYS)
FIELDS = {
    "fault": ("on", "value"),
    "heal": ("on", "value"),
    "pause_ms": (),
    "move": (),
    "settled": ("with_standby", "within_s"),
    "repeat": ("steps",),
}
LONGEST_PAUSE_MS = 600_000
LONGEST_WAIT_S = 120
MOST_STEPS = 500
EXPECT = (
    "owner",
    "moves",
    "moves_max",
    "executed",
    "lost_max",
    "outage_per_floor_max",
    "outage_per_detection_max",
    "outage_s_max",
)


class Loader(yaml.SafeLoader):
    """YAML whose only truth values are `true` and `false`, as in YAML 1.2: 1.1 reads the field `on` as one too."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), ["t", "f"])


@dataclass(frozen=True)
class Step:
    """One thing to do; `where` is its place in the file, for people. What a verb does not need is empty."""

    where: str
    verb: str
    what: str = ""
    on: str = ""
    value: str | None = None
    pause_ms: int = 0
    within_s: int = 20
    with_standby: bool = False


@dataclass(frozen=True)
class Expect:
    """What must be so at the end; None asks nothing.

    `moves`: changes of the owner in the record; `executed`: those that the edge made by itself; `lost_max`: probes of
    the whole run; `outage_per_floor_max`: the longest outage as a multiple of what BFD needed in this run;
    `outage_per_detection_max`: as a multiple of BFD's detection time, for what no session dies of; `outage_s_max`: a
    coarse bound for what no plan covers.
    """

    owner: str | None = None
    moves: int | None = None
    moves_max: int | None = None
    executed: int | None = None
    lost_max: int | None = None
    outage_per_floor_max: float | None = None
    outage_per_detection_max: float | None = None
    outage_s_max: float | None = None


@dataclass(frozen=True)
class Script:
    """A scenario as it will be played: repetitions are written out."""

    name: str
    teaches: str
    steps: tuple[Step, ...]
    expect: Expect


class Reader:
    """Turns one file's document into a Script; every complaint names file, field, value and what is allowed."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.broken: list[tuple[str, str, str | None]] = []
        """What the steps so far have broken and not mended."""

    def complain(self, field: str, value: object, allowed: str) -> BadInput:
        """The one sentence."""
        return BadInput(f"{self.file}: {field}: {value!r} is not possible; allowed: {allowed}")

    def mapping(self, field: str, value: object, fields: Sequence[str]) -> Mapping[str, Any]:
        """A mapping that has none but these fields."""
        if not isinstance(value, dict):
            raise self.complain(field, value, f"a mapping with {', '.join(fields)}")
        for key in value:
            if key not in fields:
                raise self.complain(field, key, ", ".join(fields))
        return value

    def word(self, field: str, value: object, words: Sequence[str]) -> str:
        """One of some words."""
        if not isinstance(value, str) or value not in words:
            raise self.complain(field, value, ", ".join(words))
        return value

    def text(self, field: str, value: object) -> str:
        """A text that is not empty."""
        if not isinstance(value, str) or not value.strip():
            raise self.complain(field, value, "a text")
        return value.strip()

    def whole(self, field: str, value: object, low: int, high: int) -> int:
        """A whole number within bounds."""
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.complain(field, value, f"a whole number from {low} to {high}")
        return value

    def number(self, field: str, value: object) -> float:
        """A number above 0."""
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.complain(field, value, "a number above 0")
        return float(value)

    def script(self, document: object) -> Script:
        """The whole file."""
        top = self.mapping("the file", document, ("scenario", "teaches", "steps", "expect"))
        name, teaches = self.text("scenario", top.get("scenario")), self.text("teaches", top.get("teaches"))
        steps = tuple(self.steps("steps", top.get("steps")))
        return Script(name, teaches, steps, self.expect(top.get("expect")))

    def expect(self, value: object) -> Expect:
        """What is expected; something must be."""
        found = self.mapping("expect", value, EXPECT)
        if not found:
            raise self.complain("expect", value, f"at least one of {', '.join(EXPECT)}")
        read: dict[str, Any] = {}
        for key, wanted in found.items():
            field = f"expect.{key}"
            if key == "owner":
                read[key] = self.word(field, wanted, GATEWAYS)
            elif key.startswith("outage"):
                read[key] = self.number(field, wanted)
            else:
                read[key] = self.whole(field, wanted, 0, 1_000_000)
        return Expect(**read)

    def steps(self, field: str, value: object) -> Iterator[Step]:
        """A list of steps, repetitions written out."""
        if not isinstance(value, list) or not value:
            raise self.complain(field, value, "a list of steps")
        count = 0
        for number, item in enumerate(value):
            for step in self.step(f"{field}[{number}]", item):
                count += 1
                if count > MOST_STEPS:
                    raise self.complain(field, f"more than {MOST_STEPS} steps", f"{MOST_STEPS} steps at most")
                yield step

    def step(self, field: str, item: object) -> Iterator[Step]:
        """One step of the file: one step, or those that it repeats."""
        verbs = [key for key in item if key in FIELDS] if isinstance(item, dict) else []
        if len(verbs) != 1:
            raise self.complain(field, item, f"a mapping with one of {', '.join(FIELDS)}")
        verb = verbs[0]
        found = self.mapping(field, item, (verb, *FIELDS[verb]))
        where = f"{field}.{verb}"
        if verb == "repeat":
            for _ in range(self.whole(where, found[verb], 1, 100)):
                yield from self.steps(f"{field}.steps", found.get("steps"))
        elif verb == "pause_ms":
            yield Step(where, verb, pause_ms=self.whole(where, found[verb], 0, LONGEST_PAUSE_MS))
        elif verb == "move":
            yield Step(where, verb, on=self.word(where, found[verb], GATEWAYS))
        elif verb == "settled":
            yield self.settled(field, where, found)
        else:
            yield self.fault(field, verb, found)

    def settled(self, field: str, where: str, found: Mapping[str, Any]) -> Step:
        """A wait for a healthy pool."""
        with_standby = found.get("with_standby", False)
        if not isinstance(with_standby, bool):
            raise self.complain(f"{field}.with_standby", with_standby, "true, false")
        within_s = self.whole(f"{field}.within_s", found.get("within_s", 20), 1, LONGEST_WAIT_S)
        on = self.word(where, found["settled"], ("any", *GATEWAYS))
        return Step(where, "settled", on=on, within_s=within_s, with_standby=with_standby)

    def fault(self, field: str, verb: str, found: Mapping[str, Any]) -> Step:
        """A fault or its cure; a cure needs a fault before it."""
        fault = FAULTS[self.word(f"{field}.{verb}", found[verb], tuple(FAULTS))]
        on = self.word(f"{field}.on", found.get("on", "all"), places(fault))
        value = found.get("value")
        text = None if value is None else str(value)
        if fault.value is None and text is not None:
            raise self.complain(f"{field}.value", value, f"none: {fault.name} takes no value")
        if fault.value is not None and (text is None or not fault.value.fits(text)):
            raise self.complain(f"{field}.value", value, fault.value.allowed)
        noted = (fault.name, on, text)
        if verb == "fault" and fault.lasts:
            if noted in self.broken:
                raise self.complain(f"{field}.fault", fault.name, "a fault that is not in force already: heal it first")
            self.broken.append(noted)
        if verb == "heal":
            if noted not in self.broken:
                lasting = ", ".join(f"{name} on {node}" for name, node, _ in self.broken) or "none is in force here"
                raise self.complain(f"{field}.heal", f"{fault.name} on {on}", lasting)
            self.broken.remove(noted)
        return Step(f"{field}.{verb}", verb, fault.name, on, text)


def places(fault: Fault) -> tuple[str, ...]:
    """Where a fault can strike, roles included."""
    roles = [role for role, machines in ROLES.items() if set(machines) <= set(fault.targets)]
    return (*roles, *fault.targets)


def find(name: str) -> Path:
    """The file of that name, or the one of the library; raises BadInput with what the library has."""
    path = Path(name)
    if path.is_file():
        return path
    shelf = {entry.stem: entry for entry in sorted(LIBRARY.glob("*.yaml"))}
    if name in shelf:
        return shelf[name]
    raise BadInput(f"{name}: no such file, and not in the library; allowed: a file, or {', '.join(shelf)}")


def load(path: Path) -> Script:
    """Read a scenario; raises BadInput naming file, field, value and what is allowed."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, UnicodeDecodeError) as unreadable:
        raise BadInput(f"{path}: can't be read: {unreadable}") from unreadable
    except yaml.YAMLError as broken:
        raise BadInput(f"{path}: is no YAML: {' '.join(str(broken).split())}") from broken
    return Reader(str(path)).script(document)
