"""What a demo or a bench tells: JSON for programs, tables for people. Pure but for the table's terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bgplb_lab.checks import Check, Facts
from bgplb_lab.counting import Counts, median, nearest_rank
from rich.console import Group
from rich.table import Table
from rich.text import Text

SCHEMA = 1


def ratio(outage_ms: float, floor_ms: float | None) -> float | None:
    """Outage / floor of the same cut; None without a floor."""
    return round(outage_ms / floor_ms, 3) if floor_ms else None


def probe_json(counts: Counts) -> dict[str, Any]:
    """The figures of one run of probes."""
    return {
        "interval_ms": counts.interval_ms,
        "sent": counts.sent,
        "lost": counts.lost,
        "late": counts.late,
        "outage_ms": counts.outage_ms,
        "sched_gap_ms": round(counts.sched_gap_ms, 3),
        **({"families": families_json(counts)} if counts.families else {}),
    }


def families_json(counts: Counts) -> dict[str, Any]:
    """What was lost over each IP version; the figures around it take a number for lost when it is so over any."""
    return {
        version: {"lost": own.lost, "late": own.late, "outage_ms": own.outage_ms}
        for version, own in counts.families.items()
    }


def demo_json(facts: Facts, checks: Sequence[Check], phases_ms: Mapping[str, float], took_s: float) -> dict[str, Any]:
    """The record of a demo, schema 1."""
    return {
        "schema": SCHEMA,
        "scenario": "power-cut",
        "from": facts.owner,
        "to": facts.target,
        "probe": probe_json(facts.outage),
        "floor_ms": facts.floor_ms,
        "ratio": ratio(facts.outage.outage_ms, facts.floor_ms),
        "phases_ms": dict(phases_ms),
        "states": list(facts.states),
        "epoch": {"before": facts.epoch_before, "after": facts.epoch_after},
        "baseline": probe_json(facts.baseline),
        "return": {"ready_after_s": round(facts.return_s, 3), **probe_json(facts.return_probe)},
        "drain": {**probe_json(facts.drain), "moved_first": facts.moved_first, "moved_last": facts.moved_last},
        "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks],
        "took_s": round(took_s, 1),
    }


def numbers(title: str, *columns: str) -> Table:
    """An empty table for people: names in the first column, numbers in the others."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    return table


def medians(title: str, rows: Mapping[str, Sequence[float]]) -> Table:
    """The median and the worst of each row's values; a row without any is left out."""
    table = numbers(title, "figure", "median", "worst")
    for name, values in rows.items():
        if values:
            table.add_row(name, f"{median(values):.4g}", f"{max(values):.4g}")
    return table


def demo_tables(document: Mapping[str, Any]) -> Group:
    """The record of a demo for people."""
    probe = document["probe"]
    figures = Table(title=f"power cut of {document['from']}, taken over by {document['to']}", title_justify="left")
    figures.add_column("figure")
    figures.add_column("value", justify="right")
    figures.add_column("meaning", style="dim")
    rows = [
        ("outage", f"{probe['outage_ms']:.0f} ms", "longest run of lost probes, one a millisecond"),
        *family_rows(probe),
        ("lost", str(probe["lost"]), f"of {probe['sent']} probes around the cut, {probe['late']} late"),
        ("floor", milliseconds(document["floor_ms"]), "what BIRD and BFD alone need, same cut, unmanaged prefix"),
        ("outage / floor", "unknown" if document["ratio"] is None else f"{document['ratio']:.2f}", "1 is perfect"),
        *((f"phase: {name}", f"{value:.1f} ms", "") for name, value in document["phases_ms"].items()),
        ("return", f"{document['return']['ready_after_s']:.1f} s", "old owner ready again as standby, nothing moved"),
        ("drain", f"{document['drain']['lost']} lost", f"of {document['drain']['sent']} probes across a planned move"),
        ("sender's pause", f"{probe['sched_gap_ms']:.1f} ms", "longest of the probes' sender: the machine's own noise"),
    ]
    for row in rows:
        figures.add_row(*row)
    return Group(figures, check_table(document["checks"]), Text(f"took {document['took_s']:.0f} s"))


def family_rows(probe: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The outage over each IP version, where both were asked."""
    return [
        (f"outage, IPv{version}", f"{own['outage_ms']:.0f} ms", f"{own['lost']} lost, {own['late']} late")
        for version, own in probe.get("families", {}).items()
    ]


def milliseconds(value: float | None) -> str:
    """A time, or that it is unknown."""
    return "unknown" if value is None else f"{value:.1f} ms"


def check_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """The checks for people."""
    table = Table(title="checks", title_justify="left")
    table.add_column("")
    table.add_column("check")
    table.add_column("detail", style="dim")
    for check in checks:
        verdict = Text("ok", style="green") if check["ok"] else Text("FAILED", style="bold red")
        table.add_row(verdict, str(check["name"]), Text(str(check["detail"])))
    return table


def scenario_tables(document: Mapping[str, Any]) -> Group:
    """The record of a scenario for people."""
    probe = document["probe"]
    summary = (
        f"{document['scenario']}: {' -> '.join(document['owners'])}; {probe['lost']} of {probe['sent']} probes lost, "
        f"longest outage {probe['outage_ms']:.0f} ms, floor {milliseconds(document['floor_ms'])}"
    )
    return Group(Text(summary), check_table(document["checks"]))


@dataclass(frozen=True)
class Cut:
    """One measured power cut of a bench."""

    floor_ms: float
    outage_ms: float
    lost: int
    late: int
    sched_gap_ms: float
    return_s: float
    return_lost: int
    return_transitions: int
    drain_lost: int
    phases_ms: Mapping[str, float]
    executed: int = 0
    adopted_s: float | None = None
    outage_by_family: Mapping[str, float] = field(default_factory=dict)
    flaps: int = 0


def bench_json(cuts: Sequence[Cut], without: str | None = None, profile: str = "fast") -> dict[str, Any]:
    """The record of a bench, schema 1; raises ValueError for no runs.

    `profile`: the manifests' word for how soon a dead gateway is noticed; `without`: the part that was missing at each
    cut; `plan_executed`: how often each run's record says that the edge moved the pool by itself; `adopted_s`: from the
    missing part's start to the settled record; `flaps`: sessions lost with the gateway that nothing was done to.
    """
    ratios = [cut.outage_ms / cut.floor_ms for cut in cuts]
    return {
        "schema": SCHEMA,
        "bench": "failover",
        "profile": profile,
        "without": without,
        "runs": len(cuts),
        "floor_ms": [round(cut.floor_ms, 3) for cut in cuts],
        "outage_ms": [cut.outage_ms for cut in cuts],
        "outage_ms_by_family": {
            version: [cut.outage_by_family[version] for cut in cuts]
            for version in sorted({version for cut in cuts for version in cut.outage_by_family})
        },
        "ratio": [round(value, 4) for value in ratios],
        "ratio_median": round(median(ratios), 4),
        "ratio_p99": round(nearest_rank(ratios, 99), 4),
        "ratio_worst": round(max(ratios), 4),
        "lost": [cut.lost for cut in cuts],
        "late": [cut.late for cut in cuts],
        "sched_gap_ms": [round(cut.sched_gap_ms, 3) for cut in cuts],
        "return_s": [round(cut.return_s, 3) for cut in cuts],
        "return_lost": [cut.return_lost for cut in cuts],
        "return_transitions": [cut.return_transitions for cut in cuts],
        "drain_lost": [cut.drain_lost for cut in cuts],
        "plan_executed": [cut.executed for cut in cuts],
        "flaps": [cut.flaps for cut in cuts],
        "adopted_s": [None if cut.adopted_s is None else round(cut.adopted_s, 3) for cut in cuts],
        "phases_ms": [dict(cut.phases_ms) for cut in cuts],
    }


def bench_table(document: Mapping[str, Any]) -> Table:
    """The record of a bench for people."""
    missing = f" without {document['without']}" if document["without"] else ""
    title = f"failover{missing}, profile {document['profile']}, {document['runs']} power cuts"
    named = {
        "floor (ms)": "floor_ms",
        "outage (ms)": "outage_ms",
        "outage / floor": "ratio",
        "late": "late",
        "sender's pause (ms)": "sched_gap_ms",
        "old owner ready again (s)": "return_s",
        "lost on its return": "return_lost",
        "transitions on its return": "return_transitions",
        "lost in the drain back": "drain_lost",
        "moves by the edge itself": "plan_executed",
        "sessions lost without a cause": "flaps",
        "adopted after (s)": "adopted_s",
    }
    rows = {name: [value for value in document[key] if value is not None] for name, key in named.items()}
    rows |= {f"outage, IPv{version} (ms)": values for version, values in document["outage_ms_by_family"].items()}
    for phase in sorted({name for phases in document["phases_ms"] for name in phases}):
        rows[f"phase: {phase} (ms)"] = [phases[phase] for phases in document["phases_ms"] if phase in phases]
    return medians(title, rows)
