"""The picture of a failover: one SVG, drawn by hand. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 960, 430
LEFT, RIGHT = 70, 930
DOTS_TOP, DOTS_BOTTOM = 96, 226
LOST_TOP, LOST_BOTTOM = 238, 258
BARS_TOP, BAR_HEIGHT = 282, 15
AXIS_Y = 360
GREEN, RED, AMBER, BLUE, INK, PALE = "#2f855a", "#c53030", "#b7791f", "#2b6cb0", "#1a202c", "#a0aec0"
LATE_MS = 20.0

Axis = Callable[[float], float]


@dataclass(frozen=True)
class Point:
    """One probe: ms after T0 at which it was sent, and its round trip in ms, None when it was never answered."""

    at_ms: float
    rtt_ms: float | None


@dataclass(frozen=True)
class Scene:
    """What is drawn. `phases` are (name, from, to) and `marks` (name -> at), all in ms after T0."""

    title: str
    subtitle: str
    points: Sequence[Point]
    outage_ms: float
    floor_ms: float | None
    phases: Sequence[tuple[str, float, float]] = ()
    marks: Mapping[str, float] = field(default_factory=dict)


def draw(scene: Scene) -> str:
    """The SVG text; raises ValueError without points."""
    if not scene.points:
        raise ValueError("no probes to draw")
    first = min(point.at_ms for point in scene.points)
    last = max(max(point.at_ms for point in scene.points), first + 1.0)

    def x(at_ms: float) -> float:
        return LEFT + (min(max(at_ms, first), last) - first) / (last - first) * (RIGHT - LEFT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="system-ui, sans-serif" role="img">',
        f"<title>{escape(scene.title)}</title><desc>{escape(scene.subtitle)}</desc>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT, 34, scene.title, 19, INK, weight="600"),
        text(LEFT, 56, scene.subtitle, 13, "#4a5568"),
        *outage_band(scene, x),
        *dots(scene.points, x),
        *phase_bars(scene.phases, x),
        *axis(first, last, x),
        *marks(scene, x),
        *legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def text(
    at_x: float, at_y: float, words: str, size: int, colour: str, anchor: str = "start", weight: str = "400"
) -> str:
    """A line of text."""
    return (
        f'<text x="{at_x:.1f}" y="{at_y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
        f' font-weight="{weight}">{escape(words)}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float, dash: str = "") -> str:
    """A straight line."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"'
        f' stroke-width="{width:g}"{dashed}/>'
    )


def outage_band(scene: Scene, x: Axis) -> list[str]:
    """The span of lost probes as a pale band behind everything."""
    lost = [point.at_ms for point in scene.points if point.rtt_ms is None]
    if not lost:
        return []
    left, right = x(min(lost)), x(max(lost))
    words = f"outage {scene.outage_ms:.0f} ms"
    return [
        f'<rect x="{left:.1f}" y="{DOTS_TOP - 18}" width="{max(1.0, right - left):.1f}"'
        f' height="{AXIS_Y - DOTS_TOP + 18}" fill="#fff5f5"/>',
        text((left + right) / 2, DOTS_TOP + 50, words, 15, RED, "middle", "600"),
    ]


def dots(points: Sequence[Point], x: Axis) -> list[str]:
    """Answered probes by round trip (clipped at the late mark), lost ones as ticks in a row of their own."""
    answered = [point.rtt_ms for point in points if point.rtt_ms is not None]
    top_ms = min(LATE_MS, max(2.0, *answered)) if answered else 2.0
    parts = [text(LEFT - 8, DOTS_TOP + 4, f"{top_ms:.0f} ms", 11, PALE, "end")]
    parts += [
        text(LEFT - 8, DOTS_BOTTOM + 4, "0", 11, PALE, "end"),
        text(LEFT - 8, LOST_BOTTOM - 5, "lost", 11, RED, "end"),
    ]
    parts.append(line(LEFT, DOTS_BOTTOM, RIGHT, DOTS_BOTTOM, "#e2e8f0", 1))
    for point in points:
        at = x(point.at_ms)
        if point.rtt_ms is None:
            parts.append(line(at, LOST_TOP, at, LOST_BOTTOM, RED, 1))
            continue
        height = min(point.rtt_ms, top_ms) / top_ms * (DOTS_BOTTOM - DOTS_TOP)
        colour = AMBER if point.rtt_ms > LATE_MS else GREEN
        parts.append(f'<circle cx="{at:.1f}" cy="{DOTS_BOTTOM - height:.1f}" r="1.6" fill="{colour}"/>')
    return parts


def phase_bars(phases: Sequence[tuple[str, float, float]], x: Axis) -> list[str]:
    """What the edge did when, a bar each."""
    parts = []
    for place, (name, begin, end) in enumerate(phases[:4]):
        top = BARS_TOP + place * (BAR_HEIGHT + 4)
        left, width = x(begin), max(2.0, x(end) - x(begin))
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2" fill="{BLUE}"'
            ' opacity="0.75"/>'
        )
        words = f"{name} {end - begin:.1f} ms"
        room = left + width + 6 + 7 * len(words) < RIGHT
        parts.append(text(left + width + 6 if room else left - 6, top + 12, words, 12, INK, "start" if room else "end"))
    return parts


def axis(first: float, last: float, x: Axis) -> list[str]:
    """Time in ms after the cut, some eight ticks at round numbers."""
    step = next(
        step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e9) if (last - first) / step <= 9
    )
    parts = [line(LEFT, AXIS_Y, RIGHT, AXIS_Y, INK, 1)]
    tick = -(-first // step) * step
    while tick <= last:
        at = x(tick)
        parts += [line(at, AXIS_Y, at, AXIS_Y + 5, INK, 1), text(at, AXIS_Y + 18, f"{tick:g}", 11, INK, "middle")]
        tick += step
    parts.append(text(RIGHT, AXIS_Y + 34, "ms after the cut", 11, "#4a5568", "end"))
    return parts


def marks(scene: Scene, x: Axis) -> list[str]:
    """The cut, the floor and whatever else has a moment, as vertical lines."""
    parts = [
        line(x(0), DOTS_TOP - 18, x(0), AXIS_Y, INK, 1.5),
        text(x(0) - 5, DOTS_TOP - 8, "power cut", 12, INK, "end"),
    ]
    if scene.floor_ms is not None:
        at = x(scene.floor_ms)
        parts.append(line(at, DOTS_TOP - 18, at, AXIS_Y, AMBER, 1.5, "5 3"))
        parts.append(text(at - 5, DOTS_TOP - 8, f"floor {scene.floor_ms:.0f} ms", 12, AMBER, "end"))
    for name, at_ms in scene.marks.items():
        at = x(at_ms)
        parts += [line(at, DOTS_TOP + 8, at, AXIS_Y, BLUE, 1.2, "2 3"), text(at + 5, DOTS_TOP + 18, name, 12, BLUE)]
    return parts


def legend() -> list[str]:
    """What the colours mean."""
    entries = [
        (GREEN, "answered (height: round trip)"),
        (AMBER, "late, or the floor"),
        (RED, "lost"),
        (BLUE, "steps on the edge"),
    ]
    parts, at = [], float(LEFT)
    for colour, words in entries:
        parts.append(f'<rect x="{at:.1f}" y="{HEIGHT - 26}" width="11" height="11" rx="2" fill="{colour}"/>')
        parts.append(text(at + 16, HEIGHT - 16, words, 12, INK))
        at += 36 + 7 * len(words)
    return parts
