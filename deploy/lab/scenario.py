"""The two jobs: the demo, one failover with everything checked, and the bench, many failovers measured."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bgplb_lab import absence, checks, faults, observe, picture, report, topology
from bgplb_lab.absence import Absence, Without
from bgplb_lab.counting import Counts
from bgplb_lab.errors import LabError
from bgplb_lab.probes import INTERVAL_US, Prober, ProbeRun, RouteWatch, RouteWatches
from bgplb_lab.world import Say, World

OWNER = "gw-a"
"""The gateway whose power is cut: the one that also announces the unmanaged prefix which sets the floor."""
EDGE = "edge-1"
READY_TIMEOUT_S = 60.0
MOVE_TIMEOUT_S = 20.0
ADOPT_TIMEOUT_S = 40.0
"""For an adoption after the part of the brain that was missing came back: etcd and a leader have to be elected."""
BASELINE_PROBES = 2_000
BENCH_BASELINE_PROBES = 500
"""Before each cut of a bench, which judges no baseline: enough for the sender to run smoothly."""
AFTER_PROBES = 500
"""How long the probes go on after a move, in numbers, so that a late loss is seen too."""


class Interrupted(BaseException):
    """SIGTERM or SIGHUP arrived: like Ctrl-C, nothing but a teardown may follow."""


def interrupt(number: int, frame: object) -> None:
    """Signal handler: leave through the teardown."""
    raise Interrupted(signal.Signals(number).name)


@contextmanager
def standing(world: World, keep: bool = False) -> Iterator[None]:
    """A lab for the time of the block; removed in any case, also after Ctrl-C, SIGTERM and SIGHUP.

    With `keep` it is left standing, whatever happened, for somebody to look at.
    """
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        try:
            world.up()
            yield
        except LabError:
            if not keep:
                world.say("something did not happen as it should; with --keep the lab is left standing to look at")
            raise
        finally:
            # A second Ctrl-C, of an impatient hand, must not leave half a lab.
            for number in before:
                signal.signal(number, signal.SIG_IGN)
            if keep:
                world.say(f"lab {world.lab_id} is left standing; `bgplb lab down --id {world.lab_id}` removes it")
            elif world.exists():
                world.down()
                world.say(f"lab {world.lab_id} is gone")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def move_pool(world: World, target: str, reason: str) -> None:
    """Ask for a planned move as an operator does, and wait until the pool is ActiveHealthy there."""
    order = ("pool", "move", topology.POOL, "--to", target, "--reason", reason)
    world.inside(topology.ORCHESTRATORS[0], world.programs.bgplb, *order, timeout_s=MOVE_TIMEOUT_S)
    observe.wait_settled(world, MOVE_TIMEOUT_S, target, with_standby=False)


def settled_at_owner(world: World, reason: str) -> dict[str, Any]:
    """The pool ActiveHealthy at OWNER with a ready standby, moved there if placement chose otherwise."""
    machine = observe.wait_settled(world, READY_TIMEOUT_S)
    if machine["owner"] != OWNER:
        move_pool(world, OWNER, reason)
    return observe.wait_settled(world, MOVE_TIMEOUT_S, OWNER)


@dataclass(frozen=True)
class PowerCut:
    """One power cut and the return of the power, with the probes of the whole time."""

    before: dict[str, Any]
    after: dict[str, Any]
    returned: dict[str, Any]
    run: ProbeRun
    t0_ns: int
    settled_ns: int
    power_ns: int
    ready_ns: int
    floor_ms: float | None
    steered_ms: float | None
    steering: observe.Steering
    back_ns: int | None = None
    """When what was missing besides the gateway was started again."""

    @property
    def executed(self) -> int:
        """How often the record says that the edge moved the pool by itself."""
        return absence.executed(self.after, observe.last_seq(self.before))

    @property
    def adopted_s(self) -> float | None:
        """From the start of what was missing to the pool being settled in the record; None if nothing was missing."""
        return None if self.back_ns is None else (self.settled_ns - self.back_ns) / 1e9

    @property
    def target(self) -> str:
        """The new owner."""
        return str(self.after["owner"])

    def numbers(self, begin_ns: int, end_ns: int) -> ProbeRun:
        """The probes due between two stamps."""

        def number(stamp_ns: int) -> int:
            return max(0, -(-(stamp_ns - self.run.start_ns) // (INTERVAL_US * 1000)))

        return self.run.cut(number(begin_ns), number(end_ns))

    @property
    def baseline(self) -> Counts:
        """Before the cut; the last ones are left out, their answers were still under way."""
        return self.numbers(self.run.start_ns, self.t0_ns - 30_000_000).counts

    @property
    def outage(self) -> Counts:
        """From just before the cut until the power came back."""
        return self.numbers(self.t0_ns - 30_000_000, self.power_ns).counts

    @property
    def recovery(self) -> Counts:
        """From the power's return to the end."""
        return self.numbers(self.power_ns, self.run.sent_ns[-1] + 1).counts

    @property
    def return_s(self) -> float:
        """From the power's return to being ready as a standby, the machine's own start included."""
        return (self.ready_ns - self.power_ns) / 1e9


def cut_and_return(
    world: World,
    watch: RouteWatch | RouteWatches,
    before: dict[str, Any],
    on_return: Callable[[], None],
    missing: Absence | None = None,
    baseline: int = BASELINE_PROBES,
) -> PowerCut:
    """Cut OWNER's power under probes, wait for the move, give the power back, wait for the ready standby.

    `on_return` runs as soon as the machine is on again. `missing` is taken away before the cut and given back after
    the edge moved by itself; `baseline` probes come before all of that. Raises LabError when a step does not happen in
    its time.
    """
    missing = missing or Absence()
    prober = Prober(world)
    prober.wait_until(baseline)
    if missing.part is not None:
        missing.before_cut(world)
        prober.wait_until(prober.due_now() + absence.GONE_PROBES)
        missing.at_cut(world)
    t0_ns = faults.strike(world, "power-cut", OWNER)
    # Asking a replica costs it time: nobody is asked while the move is being measured.
    prober.wait_until(prober.due_now() + world.profile.notice_ms + AFTER_PROBES)
    missing.check_moved_alone(world, other_than(OWNER))
    back_ns = missing.end(world)
    after = wait_for_move(world, OWNER, MOVE_TIMEOUT_S if back_ns is None else ADOPT_TIMEOUT_S)
    settled_ns = time.monotonic_ns()
    seen = observe.steering(world)
    prober.wait_until(prober.due_now() + AFTER_PROBES)
    power_ns = time.monotonic_ns()
    faults.heal(world, "power-cut", OWNER)
    on_return()
    returned = observe.wait_settled(world, MOVE_TIMEOUT_S, str(after["owner"]))
    ready_ns = time.monotonic_ns()
    prober.wait_until(prober.due_now() + AFTER_PROBES)
    run = prober.stop()
    floor_ns = watch.first_after(t0_ns, "del", topology.SIGNAL_TABLE, topology.FLOOR_PREFIX)
    steered = [watch.first_after(t0_ns, "new", 254, prefix) for prefix in topology.POOL_PREFIXES]
    moved = [stamp for stamp in steered if stamp is not None]
    steered_ns = max(moved) if len(moved) == len(steered) else None
    return PowerCut(
        before,
        after,
        returned,
        run,
        t0_ns,
        settled_ns,
        power_ns,
        ready_ns,
        None if floor_ns is None else round((floor_ns - t0_ns) / 1e6, 3),
        None if steered_ns is None else round((steered_ns - t0_ns) / 1e6, 3),
        seen,
        back_ns,
    )


def other_than(gateway: str) -> str:
    """The gateway that takes over from this one."""
    return next(name for name in topology.GATEWAYS if name != gateway)


def wait_for_move(world: World, away_from: str, timeout_s: float = MOVE_TIMEOUT_S) -> dict[str, Any]:
    """Wait until another gateway than `away_from` owns the pool and serves it."""
    return observe.wait_settled(world, timeout_s, other_than(away_from), with_standby=False)


@dataclass(frozen=True)
class Drain:
    """A planned move under probes; numbers of the probes due when it was asked for and when it was settled."""

    counts: Counts
    moved_first: int
    moved_last: int


def drain_back(world: World, count: int, ask_at: int) -> Drain:
    """Move the pool back to OWNER under `count` probes, asked for at probe `ask_at`."""
    prober = Prober(world, count=count)
    prober.wait_until(ask_at)
    first = prober.due_now()
    move_pool(world, OWNER, "drain back after the power cut")
    last = prober.due_now()
    counts = prober.result().counts
    observe.wait_settled(world, MOVE_TIMEOUT_S, OWNER)
    return Drain(counts, first, last)


def link_cut_and_return(world: World) -> tuple[str, ...]:
    """Cut OWNER's links, wait for the move, plug them in again, wait; answers what OWNER still has of the pool."""
    faults.strike(world, "link-cut", OWNER)
    target = wait_for_move(world, OWNER)["owner"]
    faults.heal(world, "link-cut", OWNER)
    observe.wait_settled(world, MOVE_TIMEOUT_S, str(target))
    return observe.left_on(world, OWNER, str(target))


@dataclass(frozen=True)
class DemoResult:
    """What a demo found."""

    document: dict[str, Any]
    svg: str

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check["ok"] for check in self.document["checks"])


def demo(world: World, keep: bool = False) -> DemoResult:
    """One power cut, one return, one drain back, one link cut: everything counted and checked.

    Raises LabError when a step does not happen in its time; the lab is removed in any case, unless `keep` is true.
    """
    began = time.monotonic()
    say: Say = lambda line: world.say(f"{time.monotonic() - began:5.1f} s  {line}")  # noqa: E731
    machines = (*world.edge_names, *topology.GATEWAYS)
    with standing(world, keep):
        observe.plant_foreign(world, machines)
        foreign = observe.foreign(world, machines)
        say("waiting for a healthy pool with a ready standby")
        before = settled_at_owner(world, "the demo cuts the power of this gateway")
        watch = RouteWatches(world)
        say(f"the pool is at {OWNER}, {before['standby']} stands by; 2 s of probes, then the power of {OWNER} is cut")
        cut = cut_and_return(world, watch, before, lambda: observe.plant_foreign(world, (OWNER,)))
        say(f"outage {cut.outage.outage_ms:.0f} ms, floor {report.milliseconds(cut.floor_ms)}; {OWNER} is back")
        say(f"draining the pool back to {OWNER} under {checks.DRAIN_PROBES} probes")
        drain = drain_back(world, checks.DRAIN_PROBES, checks.DRAIN_WINDOW[0] + 200)
        say(f"{drain.counts.lost} lost; cutting {OWNER}'s links, and plugging them in again")
        left = link_cut_and_return(world)
        facts = facts_of(cut, drain, left, foreign, observe.foreign(world, machines))
    took_s = time.monotonic() - began
    document = report.demo_json(facts, checks.judge(facts), phases_of(cut), took_s)
    return DemoResult(document, picture.draw(scene_of(cut)))


def facts_of(
    cut: PowerCut, drain: Drain, left: tuple[str, ...], foreign_before: dict[str, str], foreign_after: dict[str, str]
) -> checks.Facts:
    """Gather what the checks judge."""
    return checks.Facts(
        owner=OWNER,
        target=cut.target,
        states=observe.states_since(cut.after, observe.last_seq(cut.before)),
        epoch_before=int(cut.before["epoch"]),
        epoch_after=int(cut.after["epoch"]),
        after_cut=cut.steering,
        baseline=cut.baseline,
        outage=cut.outage,
        floor_ms=cut.floor_ms,
        return_s=cut.return_s,
        return_states=observe.states_since(cut.returned, observe.last_seq(cut.after)),
        return_probe=cut.recovery,
        drain=drain.counts,
        moved_first=drain.moved_first,
        moved_last=drain.moved_last,
        left_over=left,
        foreign_before=foreign_before,
        foreign_after=foreign_after,
    )


def phases_of(cut: PowerCut) -> dict[str, float]:
    """Times from the daemons' own record, and `steered`: T0 to the last route's replacement, by the edge's kernel."""
    phases = observe.phases_since(cut.after, observe.last_seq(cut.before))
    return phases if cut.steered_ms is None else {**phases, "steered": cut.steered_ms}


def scene_of(cut: PowerCut) -> picture.Scene:
    """The picture's data: a window around the outage."""
    outage_ms = cut.outage.outage_ms
    window = cut.numbers(cut.t0_ns - 150_000_000, cut.t0_ns + int((outage_ms + 250) * 1e6))
    points = [
        picture.Point((sent - cut.t0_ns) / 1e6, None if arrived is None else (arrived - sent) / 1e6)
        for sent, arrived in zip(window.sent_ns, window.arrived_ns, strict=True)
    ]
    bars = [("BFD notices (floor)", 0.0, cut.floor_ms)] if cut.floor_ms is not None else []
    if cut.floor_ms is not None and cut.steered_ms is not None:
        bars.append(("the edge is told, decides and steers", cut.floor_ms, max(cut.floor_ms, cut.steered_ms)))
    floor = report.milliseconds(cut.floor_ms)
    services = topology.Family.BOTH.services(len(topology.EDGES))
    asked = " and ".join(services[version] for version in cut.run.arrived_by)
    return picture.Scene(
        title=f"{OWNER} loses its power, {cut.target} takes over",
        subtitle=f"one probe a millisecond to {asked}; outage {outage_ms:.0f} ms, of which {floor}"
        " is what BIRD and BFD need",
        points=points,
        outage_ms=outage_ms,
        floor_ms=cut.floor_ms,
        phases=bars,
        marks={} if cut.steered_ms is None else {"route moved": cut.steered_ms},
    )


def bench_failover(world: World, runs: int, keep: bool = False, without: Without | None = None) -> dict[str, Any]:
    """`runs` power cuts of the same gateway in one lab, each with its return and the drain back.

    No run is left out: one in which something did not happen in its time, or that has no floor, ends the bench with
    LabError. So does one `without` a part of the brain in which the edge did not move by itself, or whose move was
    not adopted exactly once.
    """
    cuts: list[report.Cut] = []
    with standing(world, keep):
        settled_at_owner(world, "the bench cuts the power of this gateway")
        watch = RouteWatches(world)
        for number in range(1, runs + 1):
            before = observe.wait_armed(world, MOVE_TIMEOUT_S, OWNER)
            began_ns = time.monotonic_ns()
            cut = cut_and_return(world, watch, before, lambda: None, Absence(without), BENCH_BASELINE_PROBES)
            if cut.floor_ms is None:
                raise LabError(f"run {number}: the edge never dropped the unmanaged prefix {topology.FLOOR_PREFIX}")
            Absence(without).check_adopted(cut.executed)
            drain = drain_back(world, 2_500, 500)
            cuts.append(cut_of(cut, cut.floor_ms, drain, watch.sessions_lost(began_ns, other_than(OWNER))))
            ratio = cut.outage.outage_ms / cut.floor_ms
            world.say(
                f"run {number} of {runs}: outage {cut.outage.outage_ms:.0f} ms, floor {cut.floor_ms:.1f} ms, "
                f"ratio {ratio:.3f}; {OWNER} ready again after {cut.return_s:.1f} s, "
                f"{drain.counts.lost} lost going back"
            )
    return report.bench_json(cuts, without, world.profile)


def cut_of(cut: PowerCut, floor_ms: float, drain: Drain, flaps: int) -> report.Cut:
    """The figures of one run of the bench. `flaps`: sessions lost with the gateway that nothing was done to."""
    outage = cut.outage
    return report.Cut(
        floor_ms=floor_ms,
        outage_ms=outage.outage_ms,
        outage_by_family={version: counts.outage_ms for version, counts in outage.families.items()},
        lost=outage.lost,
        late=outage.late,
        sched_gap_ms=outage.sched_gap_ms,
        return_s=cut.return_s,
        return_lost=cut.recovery.lost,
        return_transitions=len(observe.states_since(cut.returned, observe.last_seq(cut.after))),
        drain_lost=drain.counts.lost,
        phases_ms=phases_of(cut),
        executed=cut.executed,
        adopted_s=cut.adopted_s,
        flaps=flaps,
    )
