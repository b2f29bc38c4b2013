"""Conversations: commands to a model world, what the core made of each one below it.

A file is a sequence of blocks: one or more commands, a line of four dashes, the expected output, an empty line.
Commands: `world`, `gateway NAME FAULT`, `edge NAME FAULT [GATEWAY]`, `think`, `obey [AGENT ...]`, `act [EDGE ...]`
(edges do what their plans say), `run SECONDS`, `tick SECONDS`, `hold REASON`, `release`, `addresses PREFIX ...`,
`delete`, `move TARGET REASON`, `leader NAME`, `status`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fsm.desired import Key
from fsm.effects import AppendHistory, Effect, ForgetMachine, SaveMachine, TakeEpoch
from fsm.events import Event, PoolEvent
from fsm.records import EdgePool, NodePool
from tests.fsm.world import POOL, ModelWorld

SEPARATOR = "----"


@dataclass(frozen=True, slots=True)
class Block:
    """Commands with the output that they shall have; `comment` is kept when a file is rewritten."""

    comment: str
    commands: tuple[str, ...]
    expected: str


def read(path: Path) -> Iterator[Block]:
    """The blocks of a file. Raises ValueError for one without its separator."""
    for number, text in enumerate(path.read_text(encoding="utf-8").strip().split("\n\n"), start=1):
        lines = text.splitlines()
        comment = "".join(f"{line}\n" for line in lines if line.startswith("#"))
        lines = [line for line in lines if not line.startswith("#")]
        if SEPARATOR not in lines:
            if lines:
                raise ValueError(f"{path.name}: block {number} has no line {SEPARATOR}")
            yield Block(comment, (), "")
            continue
        at = lines.index(SEPARATOR)
        yield Block(comment, tuple(lines[:at]), "".join(f"{line}\n" for line in lines[at + 1 :]))


def written(block: Block, output: str) -> str:
    """The block as a file holds it, with that output."""
    if not block.commands:
        return block.comment
    return block.comment + "".join(f"{c}\n" for c in block.commands) + f"{SEPARATOR}\n{output}"


class Conversation:
    """Speaks for one file; each command answers with lines."""

    def __init__(self) -> None:
        self._world = ModelWorld()
        self._told: dict[Key, EdgePool | NodePool] = {}
        self._seen = 0
        self._verbs: dict[str, Callable[[list[str]], list[str]]] = {
            "world": self._new_world,
            "gateway": self._gateway,
            "edge": self._edge,
            "think": self._think,
            "obey": self._obey,
            "act": self._act,
            "run": self._run,
            "tick": self._tick,
            "hold": self._hold,
            "release": self._release,
            "addresses": self._addresses,
            "delete": self._delete,
            "move": self._move,
            "leader": self._leader,
            "status": self._status,
        }

    def say(self, command: str) -> list[str]:
        """Carry one command out. Raises ValueError for one that there is not."""
        verb, *words = command.split()
        if verb not in self._verbs:
            raise ValueError(f"no command {verb!r}; there are: {', '.join(sorted(self._verbs))}")
        answer = self._verbs[verb](words)
        violations = [f"VIOLATION {text}" for text in self._world.violations()]
        return [*answer, *violations]

    # ---- settings and faults ---------------------------------------------------------------------------------------

    def _new_world(self, words: list[str]) -> list[str]:
        """world [gateways=A,B] [edges=E] [slow]: `slow` edges confirm a move in two reports."""
        settings = dict(word.split("=") for word in words if "=" in word)
        gateways = tuple(settings.get("gateways", "gw-a,gw-b").split(","))
        edges = tuple(settings.get("edges", "edge-1").split(","))
        self._world, self._told, self._seen = ModelWorld(gateways, edges), {}, 0
        for edge in self._world.edges.values():
            edge.at_once = "slow" not in words
        return []

    def _gateway(self, words: list[str]) -> list[str]:
        name, fault = words
        world = self._world
        simple: dict[str, Callable[[str], None]] = {
            "power-cut": world.power_cut,
            "power-on": world.power_on,
            "bird-kill": world.bird_kill,
            "bird-start": world.bird_start,
            "path-cut": world.path_cut,
            "path-heal": world.path_heal,
            "agent-kill": world.agent_kill,
            "agent-start": world.agent_start,
            "drain": world.drain,
            "undrain": world.undrain,
        }
        if fault in ("deaf", "obedient"):
            world.gateways[name].obedient = fault == "obedient"
        elif fault in simple:
            simple[fault](name)
        else:
            raise ValueError(f"no fault {fault!r}; there are: {', '.join(sorted([*simple, 'deaf', 'obedient']))}")
        return []

    def _edge(self, words: list[str]) -> list[str]:
        name, fault, *gateway = words
        faults: dict[str, Callable[[str], None]] = {"lost": self._world.edge_lost, "back": self._world.edge_back}
        if fault in ("stuck", "unstuck"):
            self._world.edges[name].stuck = fault == "stuck"
        elif fault in ("cut-off", "joined"):
            (self._world.link_cut if fault == "cut-off" else self._world.link_heal)(name, gateway[0])
        else:
            faults[fault](name)
        return []

    def _tick(self, words: list[str]) -> list[str]:
        self._world.tick(float(words[0]))
        return []

    def _leader(self, words: list[str]) -> list[str]:
        """Another leader takes over what the store holds."""
        self._world.another_leads(words[0])
        return []

    # ---- orders ----------------------------------------------------------------------------------------------------

    def _hold(self, words: list[str]) -> list[str]:
        self._world.hold("hold: " + " ".join(words))
        return []

    def _release(self, _: list[str]) -> list[str]:
        self._world.release()
        return []

    def _addresses(self, words: list[str]) -> list[str]:
        self._world.spec = replace(self._world.spec, addresses=tuple(words))
        return []

    def _delete(self, _: list[str]) -> list[str]:
        self._world.delete()
        return []

    def _move(self, words: list[str]) -> list[str]:
        return self._looked(Event(PoolEvent.MOVE_WANTED, "move: " + " ".join(words[1:]), target=words[0]))

    # ---- turns -----------------------------------------------------------------------------------------------------

    def _think(self, _: list[str]) -> list[str]:
        return self._looked(None)

    def _looked(self, first: Event | None) -> list[str]:
        step = self._world.think(first)
        lines = [*self._transitions(), *(text for effect in step.effects if (text := self._effect(effect)))]
        return [*lines, *self._changes()] or ["nothing"]

    def _obey(self, words: list[str]) -> list[str]:
        self._world.obey(*words)
        return []

    def _act(self, words: list[str]) -> list[str]:
        """act [EDGE ...]: tells what they did, whether the leader can know of it yet or not."""
        edges = self._world.edges.values()
        before = {edge.name: len(edge.executed) for edge in edges}
        self._world.act(*words)
        return [
            f"  {edge.name} by itself: point at {edge.points_at}, epoch {', '.join(map(str, done))}"
            for edge in edges
            if (done := edge.executed[before[edge.name] :])
        ] or ["nothing"]

    def _run(self, words: list[str]) -> list[str]:
        """run SECONDS: leader and agents take turns; only transitions and the state at the end are told."""
        self._world.run(float(words[0]))
        self._told = dict(self._world.desired)
        return [*self._transitions(), *self._status([])]

    def _status(self, _: list[str]) -> list[str]:
        world = self._world
        if world.forgotten:
            return ["forgotten"]
        record = world.machine
        way = f"{record.owner or '-'}" + (f" -> {record.target}" if record.target else "")
        edges = ", ".join(f"{edge.name} points at {edge.points_at or 'nobody'}" for edge in world.edges.values())
        announcing = ", ".join(g.name for g in world.gateways.values() if g.announcing) or "nobody"
        conditions = ", ".join(c.type for c in record.conditions) or "none"
        return [
            f"= {record.state} {way} epoch {record.epoch} standby {record.standby or '-'}; conditions: {conditions}",
            f"  {edges}; announcing: {announcing}",
        ]

    # ---- answers ---------------------------------------------------------------------------------------------------

    def _transitions(self) -> list[str]:
        new, self._seen = self._world.history[self._seen :], len(self._world.history)
        return [
            f"{e.from_state} -> {e.to_state} by {e.event} ({e.cause}): {e.owner or '-'}"
            f"{f' -> {e.target}' if e.target else ''} epoch {e.epoch}"
            for e in new
        ]

    def _changes(self) -> list[str]:
        """Desired state that is different now."""
        before, now = self._told, self._world.desired
        self._told = dict(now)
        lines = [f"  {key[1]}: {_wanted(value)}" for key, value in now.items() if before.get(key) != value]
        return [*lines, *(f"  {key[1]}: dropped" for key in before if key not in now)]

    def _effect(self, effect: Effect) -> str:
        match effect:
            case TakeEpoch(epoch):
                return f"  take epoch {epoch}"
            case ForgetMachine():
                return f"  forget {POOL}"
            case SaveMachine(record=record):
                left_s = None if record.deadline_s is None else record.deadline_s - self._world.now_s
                return f"  save {POOL}" + ("" if left_s is None else f", {left_s:g} s until its deadline")
            case AppendHistory():
                return ""
            case _:
                raise AssertionError(f"a step of the core has no effect {effect}")


def _wanted(value: EdgePool | NodePool) -> str:
    if isinstance(value, NodePool):
        return f"{'announce' if value.announce else 'be silent'}, epoch {value.epoch}"
    if value.deleted:
        return f"remove, epoch {value.epoch}"
    gently = ", gently" if value.planned else ""
    plan = "".join(f", then {plan.target} as {plan.epoch}" for plan in value.plan)
    return f"point at {value.owner}, epoch {value.epoch}{gently}, {' '.join(value.prefixes)}{plan}"


def converse(blocks: list[Block]) -> Iterator[tuple[Block, str]]:
    """Each block with the output that it has now."""
    conversation = Conversation()
    for block in blocks:
        lines = [line for command in block.commands for line in conversation.say(command)]
        yield block, "".join(f"{line}\n" for line in lines)
