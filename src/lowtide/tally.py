"""What many jobs come to: the one accounting, in columns.

`Stretches` are what policies and queues decide for many jobs at once; `tally` pays for them with
the same integral that `accounting.footprint` uses for one schedule. A test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lowtide.accounting import integrate
from lowtide.errors import InvalidInput
from lowtide.grid import Grid, carbon_and_price
from lowtide.profile import Phase, PowerProfile
from lowtide.schedule import Schedule, Stretch
from lowtide.signal import FloatArray, Signal
from lowtide.workload import IntArray, Workload

# So many jobs times phases are laid out at a time.
_CELLS = 1_000_000


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
    """Stretches of constant power of many jobs, in columns.

    Attributes:
        job: Whose each is.
        origin: The instant of the start that it belongs to: what the next two count from, since
            epoch seconds tell times apart to 0.2 µs only.
        begin_s: When it begins.
        end_s: When it ends.
        power_w: What it draws.
    """

    job: IntArray
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


def pieces_of(jobs: Workload, stretches: Stretches) -> Pieces:
    """Return every stretch of constant power of many jobs, pauses that draw nothing left out."""
    if not jobs.profiles:
        ran_s = stretches.work_s + stretches.lost_s
        return Pieces(
            job=stretches.job,
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
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Pieces(
        job=columns[0],
        origin=columns[1],
        begin_s=columns[2],
        end_s=columns[3],
        power_w=columns[4],
    )


def tally(
    jobs: Workload, stretches: Stretches, signal: Signal | Grid, *, pue: float = 1.0
) -> Tally:
    """Account for many jobs."""
    pieces = pieces_of(jobs, stretches)
    count = len(jobs)
    carbon, price = carbon_and_price(signal)

    def charge(what: Signal | None) -> FloatArray | None:
        if what is None:
            return None
        return per_job(
            integrate(
                pieces.power_w * pue, pieces.begin_s, pieces.end_s, what, origin=pieces.origin
            )
        )

    def per_job(amounts: FloatArray) -> FloatArray:
        return np.bincount(pieces.job, weights=amounts, minlength=count).astype(np.float64)

    first = stretches.first
    last = np.append(first[1:], stretches.job.size) - 1
    end = stretches.start[last] + jobs.startup_s + stretches.work_s[last] + stretches.lost_s[last]
    return Tally(
        start=stretches.start[first],
        end=end,
        energy_j=per_job(pieces.power_w * (pieces.end_s - pieces.begin_s)),
        carbon_g=charge(carbon),
        cost=charge(price),
        starts=np.bincount(stretches.job, minlength=count),
    )


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

    everyone = np.arange(rows.size)
    at = in_turn(profile.startup, np.zeros(rows.size), everyone)
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
