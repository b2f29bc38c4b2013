"""Each check of the demo is sabotaged and seen to fail; the reports and the picture tell what was found."""

import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace

import pytest
from bgplb_lab import checks, picture, report
from bgplb_lab.checks import CHECKS, Facts
from bgplb_lab.counting import Counts, SchedulingGap
from bgplb_lab.observe import Steering, believed, last_seq, phases_since, states_since
from rich.console import Console

CLEAN = Counts(1.0, 2000, 0, 0, 0.0, None, ())
GOOD = Facts(
    owner="gw-a",
    target="gw-b",
    states=checks.UNPLANNED,
    epoch_before=7,
    epoch_after=8,
    after_cut=Steering(("gw-b",), ("gw-b",), ("gw-b",)),
    baseline=CLEAN,
    outage=replace(CLEAN, lost=131, outage_ms=131.0, outage_first=30, sched_gaps=(SchedulingGap(3.0, 2.5),)),
    floor_ms=126.25,
    return_s=4.2,
    return_states=(),
    return_probe=CLEAN,
    drain=replace(CLEAN, sent=10_000),
    moved_first=2500,
    moved_last=3900,
    left_over=(),
    foreign_before={"rule on gw-b": "10085: from 198.18.99.0/24"},
    foreign_after={"rule on gw-b": "10085: from 198.18.99.0/24"},
)
LOSSY = replace(CLEAN, lost=1, outage_ms=1.0, outage_first=9)

SABOTAGE: dict[str, list[Facts]] = {
    "baseline_is_clean": [replace(GOOD, baseline=LOSSY), replace(GOOD, baseline=replace(CLEAN, sent=0))],
    "fault_was_felt": [replace(GOOD, outage=CLEAN)],
    "states_in_order": [
        replace(GOOD, states=checks.UNPLANNED[1:]),
        replace(GOOD, states=checks.UNPLANNED[::-1]),
        replace(GOOD, states=(*checks.UNPLANNED, "Stranded")),
        replace(GOOD, states=()),
    ],
    "epoch_is_higher": [replace(GOOD, epoch_after=7), replace(GOOD, epoch_after=6)],
    "edge_steers_to_target_only": [
        replace(GOOD, after_cut=Steering(("gw-a",), ("gw-b",), ())),
        replace(GOOD, after_cut=Steering(("gw-a", "gw-b"), ("gw-b",), ())),
        replace(GOOD, after_cut=Steering((), ("gw-b",), ())),
    ],
    "edge_believes_target_only": [
        replace(GOOD, after_cut=Steering(("gw-b",), ("gw-a", "gw-b"), ())),
        replace(GOOD, after_cut=Steering(("gw-b",), (), ())),
    ],
    "floor_is_bfd": [replace(GOOD, floor_ms=value) for value in (3.0, 99.9, 200.1, 15_000.0, None)],
    "return_moves_nothing": [replace(GOOD, return_states=("Draining",))],
    "return_loses_nothing": [replace(GOOD, return_probe=LOSSY), replace(GOOD, return_probe=replace(CLEAN, sent=0))],
    "return_is_quick": [replace(GOOD, return_s=10.1)],
    "drain_moves_in_the_window": [
        replace(GOOD, moved_first=1999),
        replace(GOOD, moved_last=8001),
        replace(GOOD, moved_first=None),
        replace(GOOD, moved_last=None),
        replace(GOOD, moved_first=5000, moved_last=4000),
    ],
    "drain_loses_nothing": [
        replace(GOOD, drain=replace(GOOD.drain, lost=1)),
        replace(GOOD, drain=replace(GOOD.drain, sent=9_999)),
    ],
    "nothing_is_left": [replace(GOOD, left_over=("gw-a's BIRD still has 192.0.2.0/26",))],
    "foreign_is_untouched": [
        replace(GOOD, foreign_after={"rule on gw-b": ""}),
        replace(GOOD, foreign_after={}),
        replace(GOOD, foreign_before={}),
        replace(GOOD, foreign_before={"rule on gw-b": ""}, foreign_after={"rule on gw-b": ""}),
    ],
}


def test_good_facts_pass_every_check() -> None:
    assert [check for check in checks.judge(GOOD) if not check.ok] == []


def test_every_check_has_a_sabotage() -> None:
    assert set(SABOTAGE) == {check.__name__ for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sabotaged_check_fails_and_no_other(check: Callable[[Facts], checks.Verdict]) -> None:
    for facts in SABOTAGE[check.__name__]:
        failed = [verdict.name for verdict in checks.judge(facts) if not verdict.ok]
        assert failed == [check.__name__.replace("_", " ")]


def demo_document() -> dict[str, object]:
    return report.demo_json(GOOD, checks.judge(GOOD), {"detect": 120.5, "steered": 127.0}, 51.23)


def test_the_demo_record_has_what_it_promises() -> None:
    document = json.loads(json.dumps(demo_document()))
    assert {"schema", "scenario", "from", "to", "probe", "floor_ms", "ratio", "phases_ms", "states", "drain"} <= set(
        document
    )
    assert set(document["probe"]) >= {"interval_ms", "sent", "lost", "late", "outage_ms", "sched_gap_ms"}
    assert (document["schema"], document["from"], document["to"]) == (1, "gw-a", "gw-b")
    assert document["ratio"] == round(131.0 / 126.25, 3)
    assert document["probe"]["sched_gap_ms"] == 2.5
    assert document["drain"]["sent"] == 10_000
    assert all(set(check) == {"name", "ok", "detail"} for check in document["checks"])


def test_without_a_floor_there_is_no_ratio() -> None:
    facts = replace(GOOD, floor_ms=None)
    document = report.demo_json(facts, checks.judge(facts), {}, 1.0)
    assert document["ratio"] is None
    assert [check["name"] for check in document["checks"] if not check["ok"]] == ["floor is bfd"]


def printed(renderable: object) -> str:
    console = Console(width=140, record=True, force_terminal=False, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_people_see_the_figures_and_which_check_failed() -> None:
    facts = replace(GOOD, epoch_after=7)
    text = printed(report.demo_tables(report.demo_json(facts, checks.judge(facts), {"detect": 120.5}, 51.23)))
    assert "131 ms" in text and "126.2 ms" in text and "120.5 ms" in text
    assert text.count("FAILED") == 1
    assert "epoch is higher" in next(line for line in text.splitlines() if "FAILED" in line)


def cut(floor_ms: float, outage_ms: float) -> report.Cut:
    return report.Cut(floor_ms, outage_ms, int(outage_ms), 0, 1.0, 4.0, 0, 0, 0, {"detect": floor_ms})


def test_the_bench_takes_the_median_of_the_ratios_and_the_nearest_rank() -> None:
    document = report.bench_json([cut(100.0, 110.0), cut(200.0, 204.0), cut(100.0, 130.0)], None, "lan")
    assert document["profile"] == "lan" and document["flaps"] == [0, 0, 0]
    assert document["ratio"] == [1.1, 1.02, 1.3]
    assert (document["ratio_median"], document["ratio_p99"], document["ratio_worst"]) == (1.1, 1.3, 1.3)
    assert (document["floor_ms"], document["outage_ms"]) == ([100.0, 200.0, 100.0], [110.0, 204.0, 130.0])
    table = printed(report.bench_table(document))
    assert "outage / floor" in table and "phase: detect (ms)" in table
    with pytest.raises(ValueError):
        report.bench_json([])


def scene(lost: range = range(150, 281)) -> picture.Scene:
    points = [picture.Point(float(n - 150), None if n in lost else 0.6) for n in range(500)]
    return picture.Scene(
        "gw-a & gw-b", "one < two", points, float(len(lost)), 126.0, [("BFD", 0.0, 126.0)], {"moved": 128.0}
    )


def test_the_picture_is_an_svg_with_a_tick_for_each_lost_probe() -> None:
    root = ElementTree.fromstring(picture.draw(scene()))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    red = [line for line in root.iter(f"{space}line") if line.get("stroke") == picture.RED]
    green = [dot for dot in root.iter(f"{space}circle") if dot.get("fill") == picture.GREEN]
    assert (len(red), len(green)) == (131, 369)
    words = [element.text or "" for element in root.iter(f"{space}text")]
    assert "gw-a & gw-b" in words and "outage 131 ms" in words and "floor 126 ms" in words
    for element in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(element.get(name, "0")) <= picture.WIDTH


def test_a_picture_without_a_loss_has_no_outage_band() -> None:
    assert "outage" not in picture.draw(scene(range(0)))
    with pytest.raises(ValueError):
        picture.draw(replace(scene(), points=[]))


MACHINE = {
    "history": [
        {"seq": 4, "from": "StandbyAdvertising", "to": "ActiveHealthy", "phases_ms": {"detect": 1.0}},
        {"seq": 5, "from": "ActiveHealthy", "to": "ActiveHealthy", "phases_ms": {}},
        {"seq": 6, "from": "ActiveHealthy", "to": "FailureDetected", "phases_ms": {"detect": 120.0}},
        {"seq": 7, "from": "FailureDetected", "to": "Withdrawn", "phases_ms": {"withdraw": 0.5}},
    ]
}


def test_only_transitions_after_the_cut_are_told() -> None:
    assert states_since(MACHINE, 4) == ("FailureDetected", "Withdrawn")
    assert phases_since(MACHINE, 4) == {"detect": 120.0, "withdraw": 0.5}
    assert last_seq(MACHINE) == 7
    assert last_seq({"history": []}) == -1


def test_a_parking_peer_is_nobody() -> None:
    dump = "private\tpublic\t51820\toff\n"
    dump += "live\t(none)\t203.0.113.6:4000\t10.77.0.1/32,192.0.2.0/26\t1700000000\t1\t2\t25\n"
    dump += "parking\t(none)\t(none)\t192.0.2.64/26\t0\t0\t0\toff\n"
    assert believed(dump) == [["10.77.0.1/32", "192.0.2.0/26"]]
