"""A table as SVG, with places and bends given as data: the same bytes on every machine, and no program needed.

A state without a place is an error; an arrow without a bend is drawn straight, so that a new row shows up at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from math import hypot
from typing import Any

from fsm.diagram import ordered_arrows
from fsm.events import PoolEvent as E
from fsm.table import Table
from fsm.types import PoolState as S

Point = tuple[float, float]

BOX_WIDTH, BOX_HEIGHT = 170, 44
EVERYWHERE = 9
"""An event that leads from at least this many states to one is drawn once, from a box for all of them."""

LINE_HEIGHT = 14
SAMPLES = 240


@dataclass(frozen=True, slots=True)
class Bend:
    """How an arrow runs: pulled `by` pixels to its left (negative: right), its label at `label` of its way (0 to 1)."""

    by: float = 0.0
    label: float = 0.5


@dataclass(frozen=True, slots=True)
class Layout:
    """Middle of each state's box, and how arrows bend; `anywhere` is the box that stands for all other states."""

    width: int
    height: int
    places: Mapping[str, Point]
    anywhere: Point
    bends: Mapping[tuple[str, str], Bend] = field(default_factory=dict)
    loops_below: frozenset[str] = frozenset()
    colours: Mapping[str, str] = field(default_factory=dict)
    """Of an arrow, by the first of its events."""


TROUBLE, CONFIRMED, ORDERED, PAUSED = "#b3261e", "#1b7f3b", "#1a5fb4", "#5f6368"

POOL_LAYOUT = Layout(
    width=1720,
    height=1010,
    places={
        S.IDLE: (240, 130),
        S.ACTIVE_HEALTHY: (240, 430),
        S.HELD: (240, 920),
        S.DRAINING: (800, 270),
        S.FAILURE_DETECTED: (620, 430),
        S.WITHDRAWN: (960, 430),
        S.PEER_UPDATED: (1280, 430),
        S.STANDBY_ADVERTISING: (1590, 430),
        S.STRANDED: (960, 760),
        S.PENDING: (620, 920),
        S.TERMINATING: (1590, 920),
    },
    anywhere=(1280, 920),
    loops_below=frozenset({S.FAILURE_DETECTED, S.STRANDED, S.HELD}),
    bends={
        (S.HELD, S.IDLE): Bend(180, 0.45),
        (S.IDLE, S.HELD): Bend(-115, 0.22),
        (S.HELD, S.ACTIVE_HEALTHY): Bend(48, 0.45),
        (S.ACTIVE_HEALTHY, S.HELD): Bend(48, 0.45),
        (S.STANDBY_ADVERTISING, S.ACTIVE_HEALTHY): Bend(-390),
        (S.ACTIVE_HEALTHY, S.STANDBY_ADVERTISING): Bend(310, 0.55),
        (S.IDLE, S.STANDBY_ADVERTISING): Bend(130, 0.75),
        (S.IDLE, S.DRAINING): Bend(0, 0.55),
        (S.IDLE, S.FAILURE_DETECTED): Bend(10, 0.6),
        (S.IDLE, S.STRANDED): Bend(-120, 0.72),
        (S.DRAINING, S.ACTIVE_HEALTHY): Bend(10, 0.45),
        (S.ACTIVE_HEALTHY, S.DRAINING): Bend(20, 0.35),
        (S.DRAINING, S.STRANDED): Bend(-6, 0.14),
        (S.FAILURE_DETECTED, S.WITHDRAWN): Bend(16, 0.45),
        (S.WITHDRAWN, S.FAILURE_DETECTED): Bend(36),
        (S.PEER_UPDATED, S.FAILURE_DETECTED): Bend(95, 0.3),
        (S.STANDBY_ADVERTISING, S.FAILURE_DETECTED): Bend(170, 0.6),
        (S.FAILURE_DETECTED, S.STRANDED): Bend(-4, 0.7),
        (S.STRANDED, S.FAILURE_DETECTED): Bend(-60, 0.42),
        (S.WITHDRAWN, S.STRANDED): Bend(-10, 0.72),
        (S.PEER_UPDATED, S.STRANDED): Bend(0, 0.55),
        (S.ACTIVE_HEALTHY, S.STRANDED): Bend(10, 0.22),
        (S.STRANDED, S.ACTIVE_HEALTHY): Bend(50, 0.65),
        (S.PENDING, S.WITHDRAWN): Bend(-20, 0.25),
        (S.HELD, S.FAILURE_DETECTED): Bend(10, 0.25),
        (S.HELD, S.STRANDED): Bend(18, 0.35),
        (S.STRANDED, S.HELD): Bend(18, 0.5),
    },
    colours={
        E.OWNER_UNFIT: TROUBLE,
        E.TARGET_LOST: TROUBLE,
        E.DEADLINE_PASSED: TROUBLE,
        E.PLAN_EXECUTED: TROUBLE,
        E.OLD_PATH_REMOVED: CONFIRMED,
        E.NEW_PATH_INSTALLED: CONFIRMED,
        E.TARGET_PREPARED: CONFIRMED,
        E.ANNOUNCED: CONFIRMED,
        E.CANDIDATE_READY: CONFIRMED,
        E.OWNER_RECOVERED: CONFIRMED,
        E.MOVE_WANTED: ORDERED,
        E.BECAME_EMPTY: ORDERED,
        E.BECAME_USED: ORDERED,
        E.DELETE_REQUESTED: ORDERED,
        E.PATHS_REMOVED: CONFIRMED,
    },
)


def svg(table: Table[Any], layout: Layout, highlight: Iterable[str] = ()) -> str:
    """The picture; states in `highlight` are filled. Raises KeyError for a state that the layout does not place."""
    marked = set(highlight)
    everywhere = _everywhere(table)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width} {layout.height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>The {table.name} table</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    labels: list[str] = []
    for source, dest, events in ordered_arrows(table):
        shown = [event for event in events if (event, dest) not in everywhere]
        if shown:
            path, label = _arrow(table, layout, source, dest, shown)
            lines += path
            labels += label
    for event, dest in sorted(everywhere):
        path, label = _line(layout, layout.anywhere, layout.places[dest], Bend(), [event])
        lines += path
        labels += label
    if everywhere:
        lines += _box(layout.anywhere, "any other state", dashed=True)
    for name in table.states:
        lines += _box(layout.places[name], name, fill="#ffd54d" if name in marked else "#f4f6f8")
    return "\n".join([*lines, *labels, "</svg>"]) + "\n"


def _everywhere(table: Table[Any]) -> set[tuple[str, str]]:
    return {(row.event, row.dest) for row in table.rows if len(row.sources) >= EVERYWHERE}


def _arrow(table: Table[Any], layout: Layout, source: str, dest: str, events: list[str]) -> tuple[list[str], list[str]]:
    start, end = layout.places[source], layout.places[dest]
    if source == dest:
        return _loop(layout, start, events, -1 if source in layout.loops_below else 1)
    back = any(row.dest == source and dest in row.sources for row in table.rows)
    return _line(layout, start, end, layout.bends.get((source, dest), Bend(18 if back else 0)), events)


def _line(layout: Layout, start: Point, end: Point, bend: Bend, events: list[str]) -> tuple[list[str], list[str]]:
    """A quadratic Bézier curve, cut at the borders of both boxes."""
    length = hypot(end[0] - start[0], end[1] - start[1])
    left = ((end[1] - start[1]) / length, (start[0] - end[0]) / length)
    pull = ((start[0] + end[0]) / 2 + 2 * bend.by * left[0], (start[1] + end[1]) / 2 + 2 * bend.by * left[1])
    points = [_bezier(start, pull, end, n / SAMPLES) for n in range(SAMPLES + 1)]
    first = next(n for n, point in enumerate(points) if not _inside(point, start))
    last = next(n for n in range(SAMPLES, -1, -1) if not _inside(points[n], end))
    visible = points[first : last + 1]
    label_at = visible[min(len(visible) - 1, int(bend.label * len(visible)))]
    return _stroke(visible, _colour(layout, events)), _text(label_at, events, _colour(layout, events))


def _loop(layout: Layout, at: Point, events: list[str], up: int) -> tuple[list[str], list[str]]:
    """From one long side of a box back to it: the upper one, or the lower where `up` is -1."""
    x, side = at[0], at[1] - up * BOX_HEIGHT / 2
    start, end, reach = (x - 30, side), (x + 30, side), side - up * 56
    points = [_cubic(start, (x - 44, reach), (x + 44, reach), end, n / SAMPLES) for n in range(SAMPLES + 1)]
    label = (x, side - up * (44 + LINE_HEIGHT * (len(events) - 1) / 2))
    return _stroke(points, _colour(layout, events)), _text(label, events, _colour(layout, events))


def _bezier(a: Point, b: Point, c: Point, t: float) -> Point:
    u = 1 - t
    return (u * u * a[0] + 2 * u * t * b[0] + t * t * c[0], u * u * a[1] + 2 * u * t * b[1] + t * t * c[1])


def _cubic(a: Point, b: Point, c: Point, d: Point, t: float) -> Point:
    first, second = _bezier(a, b, c, t), _bezier(b, c, d, t)
    return (first[0] + (second[0] - first[0]) * t, first[1] + (second[1] - first[1]) * t)


def _inside(point: Point, box: Point) -> bool:
    return abs(point[0] - box[0]) <= BOX_WIDTH / 2 + 2 and abs(point[1] - box[1]) <= BOX_HEIGHT / 2 + 2


def _colour(layout: Layout, events: list[str]) -> str:
    return layout.colours.get(events[0], PAUSED)


def _stroke(points: list[Point], colour: str) -> list[str]:
    thinned = [*points[:-1:6], points[-1]]
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in thinned)
    tip, tail = thinned[-1], points[-4] if len(points) > 4 else thinned[0]
    length = hypot(tip[0] - tail[0], tip[1] - tail[1]) or 1.0
    dx, dy = (tip[0] - tail[0]) / length, (tip[1] - tail[1]) / length
    wings = [(tip[0] - 9 * dx + side * 4 * dy, tip[1] - 9 * dy - side * 4 * dx) for side in (1, -1)]
    head = " ".join(f"{x:.1f},{y:.1f}" for x, y in (tip, *wings))
    return [
        f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.4"/>',
        f'<polygon points="{head}" fill="{colour}"/>',
    ]


def _text(at: Point, lines: list[str], colour: str) -> list[str]:
    top = at[1] - LINE_HEIGHT * (len(lines) - 1) / 2 + 4
    return [
        f'<text x="{at[0]:.1f}" y="{top + n * LINE_HEIGHT:.1f}" text-anchor="middle" fill="{colour}" '
        f'stroke="#ffffff" stroke-width="4" paint-order="stroke">{escape(line)}</text>'
        for n, line in enumerate(lines)
    ]


def _box(at: Point, name: str, fill: str = "#ffffff", dashed: bool = False) -> list[str]:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return [
        f'<rect x="{at[0] - BOX_WIDTH / 2:.1f}" y="{at[1] - BOX_HEIGHT / 2:.1f}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="8" fill="{fill}" stroke="#202124" stroke-width="1.5"{dash}/>',
        f'<text x="{at[0]:.1f}" y="{at[1] + 5:.1f}" text-anchor="middle" font-size="14" font-weight="bold" '
        f'fill="#202124">{escape(name)}</text>',
    ]
