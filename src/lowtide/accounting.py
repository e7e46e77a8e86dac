"""The one accounting: what schedules draw, emit and cost.

`carbon_g = ∫ power_w(t) · intensity_g_per_kwh(t) · pue(t) dt / 3.6e6`, exact for piecewise
constant power, intensity and PUE: no sampling. What a schedule comes to is computed here and
nowhere else. Planners minimise the same integral with means of their own, and what they decide is
paid here: one schedule phase by phase (`footprint`), or many jobs at once, in columns (`tally`, of
the `Stretches` that policies and queues decide). A test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide.errors import InvalidInput, InvalidSchedule
from lowtide.grid import Grid, carbon_and_price
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import STARTING, Schedule, Span, Stretch
from lowtide.signal import FloatArray, Signal
from lowtide.units import (
    JOULES_PER_KWH,
    DurationLike,
    format_count,
    format_energy,
    format_html,
    format_mass,
    parse_duration,
)
from lowtide.workload import IntArray, Workload

# So many jobs times phases are laid out at a time.
_CELLS = 1_000_000
# So many sums take no time.
_FEW = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFootprint:
    """What one phase of a job came to, over all starts.

    Attributes:
        duration_s: How long it ran.
        energy_j: What the job drew in it.
        carbon_g: What that emitted, None without a carbon signal.
        cost: What that cost, None without a price signal.
    """

    duration_s: float
    energy_j: float
    carbon_g: float | None
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a schedule draws, emits and costs.

    Attributes:
        energy_j: Energy drawn by the job itself, before PUE.
        carbon_g: Operational emissions, PUE included; None without a carbon signal.
        cost: Cost of electricity, PUE included, in the price signal's currency; None without one.
        wait_s: How much later the job is done than if it had run at once.
        starts: How often it was started.
        by_phase: The parts that make up the whole: `work/train`, `startup/import`,
            `restart/import`, `lost/train`, `stop/save`, `suspended`.
        embodied_g: Its share of what making the hardware emitted, None if not asked for;
            never part of carbon_g.
    """

    energy_j: float
    carbon_g: float | None
    cost: float | None
    wait_s: float
    starts: int
    by_phase: Mapping[str, PhaseFootprint]
    embodied_g: float | None = None

    @property
    def amount(self) -> float:
        """What the deciding signal counts: carbon where it is known, else cost."""
        if self.carbon_g is not None:
            return self.carbon_g
        if self.cost is None:
            raise InvalidInput("a footprint without carbon and cost counts nothing")
        return self.cost

    def sci_g(self, units: float = 1.0) -> float:
        """Return the software carbon intensity, ((E·I) + M) / R, of ISO/IEC 21031:2024.

        Args:
            units: R: how many functional units (epochs, simulated days, users) the job served.
        """
        if self.carbon_g is None or self.embodied_g is None:
            raise InvalidInput("SCI needs a carbon signal and embodied= when the footprint is made")
        if not units > 0:
            raise InvalidInput(f"SCI is per functional unit, of which there are more than {units}")
        return (self.carbon_g + self.embodied_g) / units

    def _repr_html_(self) -> str:
        return format_html(str(self))

    def __str__(self) -> str:
        return (
            f"{format_energy(self.energy_j)}, {format_mass(self.carbon_g)} CO2e, "
            f"{format_count(self.starts, 'start')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Embodied:
    """What making the hardware emitted: M = TE · (TiR / EL) · (RR / ToR) of SCI.

    The time reserved (TiR) is the time the job runs; suspended time belongs to others.

    Attributes:
        total_g: TE, embodied emissions of the whole machine.
        lifetime_s: EL, how long it is expected to serve.
        share: RR / ToR, the part of the machine the job reserves.

    >>> server = Embodied(total_g=1_300_000, lifetime_s="1461d", share=0.25)
    >>> round(server.of(86400.0), 1)
    222.5
    """

    total_g: float
    lifetime_s: float
    share: float

    def __init__(self, *, total_g: float, lifetime_s: DurationLike, share: float = 1.0) -> None:
        seconds = parse_duration(lifetime_s)
        if not (0 <= total_g < np.inf and seconds > 0 and 0 <= share <= 1):
            raise InvalidInput(
                "embodied carbon needs total_g ≥ 0, lifetime_s > 0 and a share from 0 to 1, "
                f"not {total_g}, {seconds} and {share}"
            )
        object.__setattr__(self, "total_g", float(total_g))
        object.__setattr__(self, "lifetime_s", seconds)
        object.__setattr__(self, "share", float(share))

    def of(self, reserved_s: float) -> float:
        """Return the grams that so long a reservation is charged with."""
        return self.total_g * reserved_s / self.lifetime_s * self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Starts of many jobs, and what each runs before it stops, in columns.

    Attributes:
        job: Which row of the workload each belongs to, rising; every job has at least one.
        start: The instant at which its startup begins; rising within a job.
        work_s: Work done and kept.
        lost_s: Work done after that and thrown away by the stop.
    """

    job: IntArray
    start: FloatArray
    work_s: FloatArray
    lost_s: FloatArray

    @classmethod
    def one_each(cls, jobs: Workload, start: FloatArray) -> Stretches:
        """Return one start per job, without a stop."""
        return cls(
            job=np.arange(len(jobs)), start=start, work_s=jobs.work_s, lost_s=np.zeros(len(jobs))
        )

    @classmethod
    def of_schedules(cls, jobs: Workload, schedules: Iterable[Schedule]) -> Stretches:
        """Return the starts of schedules, one schedule per job."""
        rows, starts, works, losts = [], [], [], []
        for row, schedule in enumerate(schedules):
            for run in schedule.runs:
                rows.append(row)
                starts.append(run[0].start)
                works.append(sum(span.duration_s for span in run if span.kind == "work"))
                losts.append(sum(span.duration_s for span in run if span.kind == "lost"))
        if not rows or rows[-1] != len(jobs) - 1:
            raise InvalidInput(f"there is not one schedule for each of {len(jobs)} jobs")
        return cls(
            job=np.array(rows, dtype=np.int64),
            start=np.array(starts),
            work_s=np.array(works, dtype=np.float64),
            lost_s=np.array(losts, dtype=np.float64),
        )

    @property
    def first(self) -> IntArray:
        """Where the stretches of each job begin."""
        return np.flatnonzero(np.diff(self.job, prepend=-1))

    def starting_s(self, jobs: Workload) -> FloatArray:
        """Return how long each start takes: a job's first, or one after it."""
        lead_s: FloatArray = jobs.startup_s[self.job]
        if any(each.restart is not None for each in jobs.profiles):
            again = np.diff(self.job, prepend=-1) == 0
            lead_s[again] = jobs.restart_s[self.job[again]]
        return lead_s

    def of(self, row: int) -> list[Stretch]:
        """Return the starts of one job."""
        first, last = np.searchsorted(self.job, [row, row + 1])
        return [
            Stretch(start=start, work_s=work_s, lost_s=lost_s)
            for start, work_s, lost_s in zip(
                self.start[first:last].tolist(),
                self.work_s[first:last].tolist(),
                self.lost_s[first:last].tolist(),
                strict=True,
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What each of many jobs comes to, in columns.

    Attributes:
        start: The instant of the first start.
        end: The instant at which it is done.
        energy_j: What it draws itself, before PUE.
        carbon_g: What that emits, PUE included; None without a carbon signal.
        cost: What that costs, PUE included; None without a price.
        starts: How often it is started.
    """

    start: FloatArray
    end: FloatArray
    energy_j: FloatArray
    carbon_g: FloatArray | None
    cost: FloatArray | None
    starts: IntArray

    @property
    def amount(self) -> FloatArray:
        """What the deciding signal counts: carbon where it is known, else cost."""
        if self.carbon_g is not None:
            return self.carbon_g
        if self.cost is None:
            raise InvalidInput("a tally without carbon and cost counts nothing")
        return self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Stretches of constant power, in columns.

    Attributes:
        of: What each belongs to: a row of a workload, or one of the parts of a single job.
        origin: The instant of the start that it belongs to: what the next two count from, since
            epoch seconds tell times apart to 0.2 µs only.
        begin_s: When it begins.
        end_s: When it ends.
        power_w: What it draws.
    """

    of: IntArray
    origin: FloatArray
    begin_s: FloatArray
    end_s: FloatArray
    power_w: FloatArray

    @property
    def begin(self) -> FloatArray:
        """The instant at which each begins."""
        return self.origin + self.begin_s

    @property
    def end(self) -> FloatArray:
        """The instant at which each ends."""
        return self.origin + self.end_s

    @property
    def duration_s(self) -> FloatArray:
        """How long each lasts."""
        return self.end_s - self.begin_s

    @property
    def energy_j(self) -> FloatArray:
        """What each draws in all."""
        return self.power_w * self.duration_s

    def charge(self, signal: Signal | None, pue: float | FloatArray) -> FloatArray | None:
        """Return what each emits or costs, None without a signal."""
        if signal is None:
            return None
        amounts = integrate(self.power_w, self.begin_s, self.end_s, signal, origin=self.origin)
        amounts *= pue
        return amounts

    def sums(self, amounts: FloatArray, count: int) -> FloatArray:
        """Return amounts of the pieces added up for each of so many that they belong to."""
        # Whether there is nothing to add up is worth a look only where that would take longer.
        if count > _FEW and self.of.size == count and np.all(self.of[1:] > self.of[:-1]):
            return amounts
        sums = np.bincount(self.of, weights=amounts, minlength=count)
        return sums.astype(np.float64, copy=False)


def integrate(
    power_w: FloatArray | float,
    begin: FloatArray,
    end: FloatArray,
    signal: Signal,
    *,
    origin: float | FloatArray = 0.0,
) -> FloatArray:
    """Return what each stretch of constant power comes to: grams, or money for a price.

    Args:
        begin: Where each begins, seconds after the origin.
        origin: What the two count from, or what those of each stretch do; 0 means they are epoch
            seconds.

    >>> flat = Signal.from_values([400], start=0, step_s="1h")
    >>> integrate(500.0, np.array([0.0]), np.array([1800.0]), flat)
    array([100.])
    """
    result = signal.integral(begin, end, origin=origin)
    result *= power_w
    result *= 1.0 / JOULES_PER_KWH
    return result


def footprint(
    schedule: Schedule,
    job: Job,
    signal: Signal | Grid,
    *,
    pue: float | Signal = 1.0,
    price: Signal | None = None,
    embodied: Embodied | None = None,
) -> Footprint:
    """Account for a schedule.

    Args:
        schedule: What the job does when. Whether it keeps the job's rules is not looked at here:
            `Schedule.check` does that.
        job: The job, for what it draws and when it arrived.
        signal: Carbon intensity, a price, or a grid that has both.
        pue: Power usage effectiveness of the site, one number or a series.
        price: What a kWh costs, if the signal does not say.
        embodied: What making the hardware emitted, to be kept beside the operational carbon.

    >>> grid = Signal.from_values([300, 100], start=0, step_s="1h")
    >>> job = Job(id="a", arrival=0, deadline="+2h", profile=PowerProfile.constant(1000, "1h"))
    >>> footprint(Schedule.uninterrupted(job, 1800.0), job, grid).carbon_g
    200.0
    """
    carbon, found_price = carbon_and_price(signal)
    if price is not None and price.kind != "price":
        raise InvalidInput(f"price is a signal of that kind, not {price.kind!r}")
    price = price if price is not None else found_price
    pieces, parts = _pieces(schedule, job.profile)
    factor: FloatArray | float
    if isinstance(pue, Signal):
        if pue.kind != "pue":
            raise InvalidInput(f"pue is a number or a signal of kind 'pue', not {pue.kind!r}")
        pieces, factor = _split_by(pieces, pue)
    else:
        factor = float(pue)
        if not (np.isfinite(factor) and factor >= 1.0):
            raise InvalidInput(
                f"PUE is at least 1: the site's energy over the machines', not {pue}"
            )
    energy_j = pieces.energy_j
    carbon_g, cost = pieces.charge(carbon, factor), pieces.charge(price, factor)

    def per_part(amounts: FloatArray | None) -> list[Any]:
        if amounts is None:
            return [None] * len(parts)
        sums: list[float] = pieces.sums(amounts, len(parts)).tolist()
        return sums

    wait_s = schedule.end - job.arrival - job.profile.run_s
    amounts = (pieces.duration_s, energy_j, carbon_g, cost)
    by_phase = {
        name: PhaseFootprint(duration_s=seconds, energy_j=joules, carbon_g=grams, cost=money)
        for name, seconds, joules, grams, money in zip(parts, *map(per_part, amounts), strict=True)
    }
    return Footprint(
        energy_j=float(energy_j.sum()),
        carbon_g=None if carbon_g is None else float(carbon_g.sum()),
        cost=None if cost is None else float(cost.sum()),
        wait_s=wait_s if wait_s > TIME_TOLERANCE_S else 0.0,
        starts=schedule.starts,
        by_phase=by_phase,
        embodied_g=None if embodied is None else embodied.of(schedule.busy_s),
    )


def amount_of(schedule: Schedule, job: Job, signal: Signal) -> float:
    """Return what a schedule comes to in the signal's unit: the amount of its footprint, alone."""
    pieces, _ = _pieces(schedule, job.profile)
    charged = pieces.charge(signal, 1.0)
    assert charged is not None  # noqa: S101 - there is a signal
    return float(charged.sum())


def tally(
    jobs: Workload, stretches: Stretches, signal: Signal | Grid, *, pue: float = 1.0
) -> Tally:
    """Account for many jobs."""
    pieces, count = pieces_of(jobs, stretches), len(jobs)
    carbon_g, cost = (pieces.charge(what, pue) for what in carbon_and_price(signal))
    # Without stops each job's stretch is its first and last: nothing is to be copied.
    first: IntArray | slice = slice(None)
    last: IntArray | slice = first
    starts = np.ones(count, dtype=np.int64)
    lead_s = jobs.startup_s
    if stretches.job.size > count:
        first = stretches.first
        last = np.append(first[1:], stretches.job.size) - 1
        starts = np.bincount(stretches.job, minlength=count)
        if any(each.restart is not None for each in jobs.profiles):
            lead_s = np.where(starts > 1, jobs.restart_s, lead_s)
    end = stretches.start[last] + lead_s
    end += stretches.work_s[last]
    end += stretches.lost_s[last]
    return Tally(
        start=stretches.start[first],
        end=end,
        energy_j=pieces.sums(pieces.energy_j, count),
        carbon_g=None if carbon_g is None else pieces.sums(carbon_g, count),
        cost=None if cost is None else pieces.sums(cost, count),
        starts=starts,
    )


def power_steps(schedule: Schedule, profile: PowerProfile) -> tuple[FloatArray, FloatArray]:
    """Return the instants at which power changes, and the watts from each one on.

    The last instant is the schedule's end, with 0 W.
    """
    pieces, _ = _pieces(schedule, profile)
    times = np.append(pieces.begin, schedule.end)
    return times, np.append(pieces.power_w, 0.0)


def _pieces(schedule: Schedule, profile: PowerProfile) -> tuple[Pieces, tuple[str, ...]]:
    """Cut a schedule where the power changes; return the pieces, and which parts they are of."""
    origins, begins, ends, powers, parts = [], [], [], [], []
    number: dict[str, int] = {}
    before, origin, into_s = "", 0.0, 0.0
    for span in schedule.spans:
        edges, phases = _cut(span, profile)
        # Counted from its start, as `tally` does: instants within it are rounded to 0.2 µs.
        begins_run = span.kind in STARTING or (span.kind == "work" and before not in STARTING)
        if begins_run or abs(origin + into_s - span.start) > TIME_TOLERANCE_S:
            origin, into_s = span.start, 0.0
        origins.append(np.full(len(phases), origin))
        begins.append(into_s + (edges[:-1] - edges[0]))
        ends.append(into_s + (edges[1:] - edges[0]))
        into_s += span.duration_s
        before = span.kind
        powers.append([phase.power_w for phase in phases])
        for phase in phases:
            name = "suspended" if span.kind == "suspended" else f"{span.kind}/{phase.name}"
            parts.append(number.setdefault(name, len(number)))
    pieces = Pieces(
        of=np.array(parts, dtype=np.intp),
        origin=np.concatenate(origins),
        begin_s=np.concatenate(begins),
        end_s=np.concatenate(ends),
        power_w=np.concatenate(powers),
    )
    return pieces, tuple(number)


def _cut(span: Span, profile: PowerProfile) -> tuple[FloatArray, tuple[Phase, ...]]:
    """Return the phases a span runs through, and the progress at which each is cut."""
    if span.kind == "suspended":
        idle = Phase(name="idle", duration_s=span.duration_s, power_w=profile.suspended_power_w)
        return np.array([0.0, span.duration_s]), (idle,)
    if span.kind in ("work", "lost"):
        phases, edges, first = profile.work, profile.work_edges_s, span.progress_s
    else:
        phases = getattr(profile, span.kind) or ()
        edges = np.concatenate(([0.0], np.cumsum([phase.duration_s for phase in phases])))
        first = 0.0
    last = first + span.duration_s
    if last > edges[-1] + TIME_TOLERANCE_S:
        raise InvalidSchedule(
            f"a {span.kind} span runs to {last:g} s, but the profile's {span.kind} phases "
            f"end at {edges[-1]:g} s: the schedule belongs to another profile"
        )
    i = max(int(np.searchsorted(edges, first, side="right")) - 1, 0)
    j = max(int(np.searchsorted(edges, last, side="left")), i + 1)
    cuts = edges[i : min(j, len(phases)) + 1].copy()
    cuts[0], cuts[-1] = first, last
    return cuts, phases[i : min(j, len(phases))]


def _split_by(pieces: Pieces, steps: Signal) -> tuple[Pieces, FloatArray]:
    """Cut pieces where another signal steps, and return that signal's value in each."""
    begin_s, end_s = pieces.begin_s, pieces.end_s
    begin, end = float(pieces.origin.min()), float(pieces.end.max())
    steps.require(begin, end, what="the PUE series")
    shift = pieces.origin - steps.start
    first = np.floor((begin_s + shift) / steps.step_s).astype(np.intp)
    last = np.ceil((end_s + shift) / steps.step_s).astype(np.intp)
    counts = np.maximum(last - first, 1)
    which = np.repeat(np.arange(begin_s.size), counts)
    within = np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)
    step = first[which] + within
    low = np.maximum(step * steps.step_s - shift[which], begin_s[which])
    high = np.minimum((step + 1) * steps.step_s - shift[which], end_s[which])
    cut = Pieces(
        of=pieces.of[which],
        origin=pieces.origin[which],
        begin_s=low,
        end_s=np.maximum(high, low),
        power_w=pieces.power_w[which],
    )
    return cut, steps.values[np.clip(step, 0, len(steps) - 1)]


def pieces_of(jobs: Workload, stretches: Stretches) -> Pieces:
    """Return every stretch of constant power of many jobs, pauses that draw nothing left out."""
    if not jobs.profiles:
        ran_s = stretches.work_s + stretches.lost_s
        return Pieces(
            of=stretches.job,
            origin=stretches.start,
            begin_s=np.zeros(ran_s.size),
            end_s=ran_s,
            power_w=jobs.power[stretches.job],
        )
    place = jobs.profile[stretches.job]
    parts = []
    plain = place < 0
    if plain.any():
        which = stretches.job[plain]
        start = stretches.start[plain]
        ran_s = stretches.work_s[plain] + stretches.lost_s[plain]
        parts.append((which, start, np.zeros(start.size), ran_s, jobs.power[which]))
    last = np.append(np.diff(stretches.job) != 0, True)
    done_s = _done_before(stretches)
    # Sorted once: looking for the rows of each of many profiles would take their number squared.
    order = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[order], np.arange(len(jobs.profiles) + 1))
    for profile, begin, end in zip(jobs.profiles, bounds[:-1], bounds[1:], strict=True):
        rows = order[begin:end]
        if rows.size:
            parts += _phased(jobs, stretches, profile, rows, done_s[rows], last[rows])
    of, origin, begin_s, end_s, power_w = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return Pieces(of=of, origin=origin, begin_s=begin_s, end_s=end_s, power_w=power_w)


def _done_before(stretches: Stretches) -> FloatArray:
    """Return the work that each stretch's job had done and kept before it."""
    total = np.cumsum(stretches.work_s) - stretches.work_s
    return total - total[stretches.first][stretches.job]


def _phased(
    jobs: Workload,
    stretches: Stretches,
    profile: PowerProfile,
    rows: IntArray,
    done_s: FloatArray,
    last: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> list[tuple[IntArray, FloatArray, FloatArray, FloatArray, FloatArray]]:
    """Return the pieces of the stretches of jobs that share a profile, a part per phase."""
    which, start = stretches.job[rows], stretches.start[rows]
    power = jobs.power[which]
    parts = []

    def add(begin: FloatArray, end: FloatArray, watts: float, some: IntArray) -> None:
        if some.size:
            parts.append((which[some], start[some], begin[some], end[some], watts * power[some]))

    def in_turn(phases: tuple[Phase, ...], at: FloatArray, some: IntArray) -> FloatArray:
        for phase in phases:
            add(at, at + phase.duration_s, phase.power_w, some)
            at = at + phase.duration_s
        return at

    at = np.zeros(rows.size)
    if profile.restart is None:
        at = in_turn(profile.startup, at, np.arange(rows.size))
    else:
        # Rows of a job lie side by side.
        again = np.append(False, which[1:] == which[:-1])
        first_s = in_turn(profile.startup, at, np.flatnonzero(~again))
        at = np.where(again, in_turn(profile.restart, at, np.flatnonzero(again)), first_s)
    ran_s = stretches.work_s[rows] + stretches.lost_s[rows]
    watts = np.array([phase.power_w for phase in profile.work])
    # As many phases at once as the jobs leave room for: where few share a profile, all of them.
    at_once = max(_CELLS // rows.size, 1)
    for first in range(0, watts.size, at_once):
        edges_s = profile.work_edges_s[first : first + at_once + 1, None]
        reached_s = np.minimum(np.maximum(edges_s - done_s, 0.0), ran_s)
        phase, some = np.nonzero(reached_s[1:] > reached_s[:-1])
        if some.size:
            parts.append(
                (
                    which[some],
                    start[some],
                    at[some] + reached_s[phase, some],
                    at[some] + reached_s[phase + 1, some],
                    watts[first + phase] * power[some],
                )
            )
    stopped = np.flatnonzero(~last)
    idle_from = in_turn(profile.stop, at + ran_s, stopped)
    if profile.suspended_power_w and stopped.size:
        # A job that is stopped goes on in the next row: rows of a job lie side by side.
        until = np.append(start[1:] - start[:-1], 0.0)
        add(idle_from, until, profile.suspended_power_w, stopped)
    return parts
