"""Scenario files: what is read, and that each kind of bad input is one sentence with file, field, value and choice."""

from pathlib import Path

import pytest
import yaml
from bgplb_lab import script, stage
from bgplb_lab.counting import Counts
from bgplb_lab.errors import BadInput
from bgplb_lab.script import Expect, Script

GOOD = """\
scenario: a-name
teaches: a sentence
steps:
  - fault: partition
    on: active
    value: etcd
  - repeat: 2
    steps:
      - fault: link-cut
        on: standby
      - pause_ms: 10
      - heal: link-cut
        on: standby
  - heal: partition
    on: active
    value: etcd
  - move: gw-b
  - settled: any
    with_standby: true
expect:
  owner: standby
  moves: 1
"""


def read(tmp_path: Path, text: str) -> Script:
    path = tmp_path / "night.yaml"
    path.write_text(text, encoding="utf-8")
    return script.load(path)


def test_a_good_file_is_read_with_its_repetitions_written_out(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert [step.verb for step in found.steps] == [
        "fault", *["fault", "pause_ms", "heal"] * 2, "heal", "move", "settled"
    ]  # fmt: skip
    assert found.steps[0].value == "etcd"
    assert (found.steps[-1].on, found.steps[-1].with_standby, found.steps[-1].within_s) == ("any", True, 20)
    assert found.expect == Expect(owner="standby", moves=1)


@pytest.mark.parametrize(
    ("old", "new", "field", "allowed"),
    [
        ("teaches: a sentence", "teachs: x", "the file: 'teachs'", "teaches"),
        ("teaches: a sentence", "teaches: ''", "teaches: ''", "a text"),
        ("fault: partition", "fault: earthquake", "steps[0].fault: 'earthquake'", "power-cut"),
        ("on: active\n    value: etcd\n  - repeat", "on: gw-z\n    value: etcd\n  - repeat", "'gw-z'", "active"),
        ("value: etcd\n  - repeat", "value: moon\n  - repeat", "steps[0].value: 'moon'", "etcd-1"),
        ("value: etcd\n  - repeat", "vlaue: etcd\n  - repeat", "steps[0]: 'vlaue'", "value"),
        ("repeat: 2", "repeat: 0", "steps[1].repeat: 0", "from 1 to 100"),
        ("repeat: 2", "repeat: true", "steps[1].repeat: True", "from 1 to 100"),
        ("pause_ms: 10", "pause_ms: soon", "steps[1].steps[1].pause_ms: 'soon'", "a whole number"),
        ("heal: link-cut", "heal: power-cut", "steps[1].steps[2].heal: 'power-cut on standby'", "link-cut on standby"),
        ("- heal: link-cut\n        on: standby", "- pause_ms: 1", "heal it first", "not in force already"),
        ("move: gw-b", "move: worker-1", "steps[3].move: 'worker-1'", "gw-a"),
        ("move: gw-b", "dance: gw-b", "steps[3]", "settled"),
        ("with_standby: true", "with_standby: perhaps", "steps[4].with_standby: 'perhaps'", "true, false"),
        ("with_standby: true", "within_s: 9999", "steps[4].within_s: 9999", "from 1 to 120"),
        ("moves: 1", "movs: 1", "expect: 'movs'", "moves_max"),
        ("moves: 1", "outage_per_floor_max: -1", "expect.outage_per_floor_max: -1", "above 0"),
        ("  owner: standby\n  moves: 1\n", "  {}\n", "expect: {}", "at least one of"),
        ("steps:", "steps: [\n", "is no YAML", "line"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, old: str, new: str, field: str, allowed: str) -> None:
    assert old in GOOD
    with pytest.raises(BadInput) as refused:
        read(tmp_path, GOOD.replace(old, new, 1))
    text = str(refused.value)
    assert text.startswith(str(tmp_path / "night.yaml"))
    assert "\n" not in text
    assert field in text
    assert allowed in text
    assert refused.value.exit_code == 3


def test_a_folder_a_missing_file_and_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="can't be read"):
        script.load(tmp_path)
    with pytest.raises(BadInput, match="flapping-active"):
        script.find("no-such-scenario")
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"can't be read|no YAML"):
        script.load(tmp_path / "x.yaml")


def test_too_many_steps_are_refused(tmp_path: Path) -> None:
    steps: object = [{"pause_ms": 0}]
    for _ in range(2):
        steps = [{"repeat": 100, "steps": steps}]
    document = {"scenario": "a", "teaches": "b", "steps": steps, "expect": {"moves": 0}}
    with pytest.raises(BadInput, match="500 steps at most"):
        read(tmp_path, yaml.safe_dump(document))


@pytest.mark.parametrize("path", sorted(script.LIBRARY.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_of_the_library_can_be_read(path: Path) -> None:
    found = script.load(path)
    assert found.name == path.stem
    assert script.find(path.stem) == path


def outcome(owners: tuple[str, ...] = ("gw-a", "gw-b"), floor_ms: float | None = 100.0) -> stage.Outcome:
    counts = Counts(1.0, 1000, 110, 0, 110.0, 500, ())
    return stage.Outcome(owners[-1], owners, 1, (), counts, floor_ms)


FULL = Expect("standby", 1, 1, 1, 110, 1.1, 0.74, 0.2)


def failed(expect: Expect, seen: stage.Outcome) -> list[str]:
    checks = stage.judge(Script("a", "b", (), expect), seen, {"active": "gw-a", "standby": "gw-b"})
    return [check.name for check in checks if not check.ok]


def test_what_is_expected_and_so_passes() -> None:
    assert failed(FULL, outcome()) == []
    assert len(stage.judge(Script("a", "b", (), FULL), outcome(), {"standby": "gw-b"})) == len(script.EXPECT)


@pytest.mark.parametrize(
    ("expect", "seen", "name"),
    [
        (Expect(owner="active"), outcome(), "owner"),
        (Expect(moves=0), outcome(), "moves"),
        (Expect(moves_max=0), outcome(), "moves_max"),
        (Expect(executed=0), outcome(), "executed"),
        (Expect(lost_max=109), outcome(), "lost_max"),
        (Expect(outage_per_floor_max=1.09), outcome(), "outage_per_floor_max"),
        (Expect(outage_per_floor_max=9.0), outcome(floor_ms=None), "outage_per_floor_max"),
        (Expect(outage_per_detection_max=0.73), outcome(floor_ms=None), "outage_per_detection_max"),
        (Expect(outage_s_max=0.1), outcome(), "outage_s_max"),
    ],
)
def test_what_is_not_as_expected_fails_its_check(expect: Expect, seen: stage.Outcome, name: str) -> None:
    assert failed(expect, seen) == [name]


def test_owners_are_told_in_turn() -> None:
    history = [{"seq": number, "owner": owner} for number, owner in enumerate(["gw-a", "gw-b", "gw-b", None, "gw-a"])]
    assert stage.owners({"history": history}, 0, "gw-a") == ("gw-a", "gw-b", "gw-a")
    assert stage.owners({"history": history}, 4, "gw-a") == ("gw-a",)
