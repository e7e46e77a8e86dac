"""What jobs draw: each kind takes its parameters and returns what turns lengths into columns.

Phases that repeat are laid out once for the longest job, and cut to the length of each. Lengths are
kept: the last phase is cut where the work ends, never stretched. Checkpoints fall where they fall,
also inside a phase, which is then two phases of the same power. A workload may mix kinds, each with
its share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.profile import Phase, PowerProfile
from lowtide.samples import load_profile
from lowtide.signal import FloatArray
from lowtide.units import DurationLike, format_hours
from lowtide.workload import IntArray
from lowtide.workloads.checks import number, optional_seconds, seconds
from lowtide.workloads.draws import Draw

# A job of a month in phases of a second is a slip; so many phases take a few seconds to set up.
_MOST_PHASES = 10_000_000
# Instants closer than this, relative to the longest job, are the same but for rounding.
_ROUNDING = 1e-9
# What a kind may say for its own jobs. Their order is part of what a seed means: only ever add
# at the end.
OWN_KEYS = ("lengths", "cpus", "gpus", "nodes", "interruptible", "memory", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How big the jobs are, in columns: what a kind starts from.

    Attributes:
        length_s: How much work each would be, None where the kind says it.
        part: Which part of it each does: 1, or less for those that fail.
        cpus: CPU cores each holds.
        gpus: GPUs each holds.
    """

    length_s: FloatArray | None
    part: FloatArray
    cpus: FloatArray
    gpus: FloatArray

    def lengths(self, kind: str) -> FloatArray:
        """Return the lengths, which jobs of this kind need."""
        if self.length_s is None:
            raise InvalidInput(
                f"{kind} jobs need lengths, such as lengths = {{kind = 'lognormal', "
                "median = '2h', sigma = 1}"
            )
        return self.length_s

    def take(self, rows: IntArray) -> Sizes:
        """Return the sizes of some of the jobs."""
        return Sizes(
            length_s=None if self.length_s is None else self.length_s[rows],
            part=self.part[rows],
            cpus=self.cpus[rows],
            gpus=self.gpus[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What the jobs draw, in columns of a `Workload`.

    Attributes:
        work_s: How much work each does.
        power: Watts, or what its profile is multiplied by.
        profile: Its place in `profiles`, −1 for constant power.
        profiles: What jobs with phases draw.
        planned_s: How long each would run, startup included, if it did not fail.
    """

    work_s: FloatArray
    power: FloatArray
    profile: IntArray
    profiles: tuple[PowerProfile, ...]
    planned_s: FloatArray


Kind = Callable[[Sizes], Shapes]


def constant(
    *,
    power_w: float | None = None,
    power_w_per_cpu: float | None = None,
    power_w_per_gpu: float | None = None,
) -> Kind:
    """Return jobs of constant power: the sum of what is given, at least one.

    Args:
        power_w_per_cpu: What it draws per CPU it holds.
        power_w_per_gpu: What it draws per GPU it holds.

    >>> sizes = Sizes(length_s=np.array([60.0]), part=np.ones(1), cpus=np.full(1, 4.0),
    ...               gpus=np.zeros(1))
    >>> constant(power_w=50, power_w_per_cpu=10)(sizes).power.tolist()
    [90.0]
    """
    given = {
        "power_w": power_w,
        "power_w_per_cpu": power_w_per_cpu,
        "power_w_per_gpu": power_w_per_gpu,
    }
    watts = [None if value is None else number(value, name) for name, value in given.items()]
    if watts == [None, None, None]:
        raise InvalidInput(f"constant jobs need what they draw: {', '.join(given)}, or several")
    return partial(
        _constant, fixed_w=watts[0], per_cpu_w=watts[1] or 0.0, per_gpu_w=watts[2] or 0.0
    )


def phased(
    *,
    high_w: float,
    low_w: float,
    high_s: DurationLike,
    low_s: DurationLike,
    startup_s: DurationLike = 0.0,
    startup_share: float = 0.0,
    startup_w: float | None = None,
    checkpoint_every_s: DurationLike | None = None,
    restart_s: DurationLike | None = None,
    restart_share: float | None = None,
    restart_w: float | None = None,
) -> Kind:
    """Return jobs whose power alternates between high and low, beginning with high.

    Lengths are kept: the last phase is cut where the work ends.

    Args:
        startup_s: How long a start takes, on top of the length; or
        startup_share: which share of the length it takes, likewise on top.
        startup_w: Watts of a start, where it takes time.
        checkpoint_every_s: How much work lies between checkpoints, wherever that is in a phase;
            None for no checkpoints.
        restart_s: How long a start after the first takes, None for as long as the first; or
        restart_share: which share of the length it takes.
        restart_w: Watts of such a start, None for those of the first.
    """
    period = Period(
        kind="phased",
        phases=[
            Phase(
                name="high", duration_s=seconds(high_s, "high_s"), power_w=number(high_w, "high_w")
            ),
            Phase(name="low", duration_s=seconds(low_s, "low_s"), power_w=number(low_w, "low_w")),
        ],
        checkpoint_every_s=optional_seconds(checkpoint_every_s, "checkpoint_every_s"),
    )
    starts = _read_starts(
        (startup_s, startup_share, startup_w), (restart_s, restart_share, restart_w)
    )
    return partial(_repeated, period=period, starts=starts)


def ml(
    *,
    epoch_s: DurationLike,
    train_w: float,
    evaluate_share: float = 0.0,
    evaluate_w: float | None = None,
    save_s: DurationLike = 0.0,
    save_w: float | None = None,
    startup_s: DurationLike = 0.0,
    startup_share: float = 0.0,
    startup_w: float | None = None,
    checkpoint_every_s: DurationLike | None = None,
    restart_s: DurationLike | None = None,
    restart_share: float | None = None,
    restart_w: float | None = None,
) -> Kind:
    """Return training jobs: epochs that train and evaluate, and checkpoints that are saved.

    Lengths are kept, saving included: the last epoch is cut where the work ends.

    Args:
        evaluate_w: Watts while it evaluates, where it does.
        save_w: Watts while it writes, where that takes time.
        startup_s: How long a start takes, on top of the length; or
        startup_share: which share of the length it takes, likewise on top.
        startup_w: Watts of a start, where it takes time.
        checkpoint_every_s: How much training and evaluating lies between checkpoints, wherever
            that is in an epoch; None for one at the end of every epoch.
        restart_s: How long a start after the first takes, None for as long as the first; or
        restart_share: which share of the length it takes.
        restart_w: Watts of such a start, None for those of the first.
    """
    whole_s = seconds(epoch_s, "epoch_s")
    share = number(evaluate_share, "evaluate_share", most=1)
    if share == 1:
        raise InvalidInput("evaluate_share is below 1: an epoch trains as well")
    train = Phase(
        name="train", duration_s=(1 - share) * whole_s, power_w=number(train_w, "train_w")
    )
    every_s = optional_seconds(checkpoint_every_s, "checkpoint_every_s")
    period = Period(
        kind="ml",
        phases=[train, *_phase("evaluate", share * whole_s, evaluate_w)],
        checkpoint_every_s=whole_s if every_s is None else every_s,
        save=_phase("save", save_s, save_w),
    )
    starts = _read_starts(
        (startup_s, startup_share, startup_w), (restart_s, restart_share, restart_w)
    )
    return partial(_repeated, period=period, starts=starts)


def profile(*, profile: PowerProfile | Path | str) -> Kind:
    """Return jobs that all draw what a profile says, as long as it says.

    One that fails does so at the end of a phase of its work.

    Args:
        profile: The profile, its file (`.toml` or `.json`), or the name of a sample profile.
    """
    return partial(_profiled, whole=load_profile(profile))


KINDS: Mapping[str, Callable[..., Kind]] = {
    "constant": constant,
    "phased": phased,
    "ml": ml,
    "profile": profile,
}


def _phase(name: str, duration: DurationLike, power_w: float | None) -> list[Phase]:
    """Return a phase in a list, which is empty where it takes no time."""
    duration_s = seconds(duration, f"{name}_s", positive=False)
    if not duration_s:
        return []
    if power_w is None:
        raise InvalidInput(f"{name} takes {format_hours(duration_s)}, so it needs {name}_w")
    return [Phase(name=name, duration_s=duration_s, power_w=number(power_w, f"{name}_w"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What a start does: always the same, or a share of the job's length."""

    name: str
    phases: tuple[Phase, ...]
    share: float = 0.0
    power_w: float = 0.0

    def of(self, length_s: float) -> tuple[Phase, ...]:
        """Return the phases of a start of a job of some length."""
        if not self.share:
            return self.phases
        return (Phase(name=self.name, duration_s=self.share * length_s, power_w=self.power_w),)


def _read_starts(
    first: tuple[DurationLike, float, float | None],
    again: tuple[DurationLike | None, float | None, float | None],
) -> tuple[_Start, _Start | None]:
    """Return the first start of jobs and those after it, None where these are the same.

    Args:
        first: Duration, or share of the length, and watts.
        again: The same of the others, None for what is as of the first.
    """
    if again == (None, None, None):
        return _read_start("startup", *first), None
    duration, share, watts = again
    if duration is None and share is None:
        duration, share, _ = first
    watts = first[2] if watts is None else watts
    restart = _read_start("restart", 0.0 if duration is None else duration, share or 0.0, watts)
    return _read_start("startup", *first), restart


def _read_start(
    name: str, duration: DurationLike, share_of_length: float, watts: float | None
) -> _Start:
    """Read `startup_s`, `startup_share` and `startup_w`, or those of a restart."""
    phases = tuple(_phase(name, duration, watts))
    share = number(share_of_length, f"{name}_share")
    if phases and share:
        raise InvalidInput(f"a start takes {name}_s, or {name}_share of the length: give one")
    if share and watts is None:
        raise InvalidInput(f"{name} takes {share:g} of the length, so it needs {name}_w")
    power_w = number(watts, f"{name}_w") if share else 0.0
    return _Start(name=name, phases=phases, share=share, power_w=power_w)


def _constant(sizes: Sizes, *, fixed_w: float | None, per_cpu_w: float, per_gpu_w: float) -> Shapes:
    if fixed_w is None and np.any(sizes.cpus + sizes.gpus <= 0):
        raise InvalidInput("a job without CPUs and GPUs draws nothing per CPU or GPU: give power_w")
    length_s = sizes.lengths("constant")
    return Shapes(
        work_s=length_s * sizes.part,
        power=(fixed_w or 0.0) + per_cpu_w * sizes.cpus + per_gpu_w * sizes.gpus,
        profile=np.full(length_s.size, -1),
        profiles=(),
        planned_s=length_s,
    )


def _repeated(sizes: Sizes, *, period: Period, starts: tuple[_Start, _Start | None]) -> Shapes:
    length_s = sizes.lengths(period.kind)
    done_s = length_s * sizes.part
    startup, restart = starts
    if startup.share or (restart is not None and restart.share):
        # A job that fails starts as long as one that does not: profiles differ by both lengths.
        (done_s, whole_s), places = np.unique([done_s, length_s], axis=1, return_inverse=True)
    else:
        done_s, places = np.unique(done_s, return_inverse=True)
        whole_s = done_s
    made = [
        (startup.of(each), None if restart is None else restart.of(each))
        for each in whole_s.tolist()
    ]
    profiles = period.profiles(done_s, made)
    work_s = np.array([each.work_s for each in profiles])[places]
    startup_s = np.array([each.startup_s for each in profiles])[places]
    return Shapes(
        work_s=work_s,
        power=np.ones(length_s.size),
        profile=places.astype(np.int64),
        profiles=profiles,
        # Adding up phases rounds differently than the length does.
        planned_s=startup_s + np.maximum(length_s, work_s),
    )


def _profiled(sizes: Sizes, *, whole: PowerProfile) -> Shapes:
    if sizes.length_s is not None:
        raise InvalidInput(
            f"a profile says how long its jobs are, here {format_hours(whole.work_s)}: leave "
            "lengths out"
        )
    ends_s = whole.work_edges_s[1:]
    last, places = np.unique(np.searchsorted(ends_s, sizes.part * ends_s[-1]), return_inverse=True)
    return Shapes(
        work_s=ends_s[last[places]],
        power=np.ones(sizes.part.size),
        profile=places.astype(np.int64),
        profiles=tuple(
            whole if each + 1 == len(whole.work) else replace(whole, work=whole.work[: each + 1])
            for each in last.tolist()
        ),
        planned_s=np.full(sizes.part.size, whole.run_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Phases that a job goes through again and again, and where it can be resumed.

    Attributes:
        kind: What jobs like this are called in messages.
        phases: One round.
        checkpoint_every_s: How much of the rounds lies between checkpoints; None for none.
        save: Phases that come before every checkpoint, on top of the rounds.
    """

    kind: str
    phases: Sequence[Phase]
    checkpoint_every_s: float | None = None
    save: Sequence[Phase] = ()

    def profiles(
        self,
        works_s: FloatArray,
        starts: Sequence[tuple[Sequence[Phase], Sequence[Phase] | None]],
    ) -> tuple[PowerProfile, ...]:
        """Return the profiles of jobs of given lengths.

        Args:
            starts: Startup and restart of each.
        """
        if not works_s.size:
            return ()
        longest_s = float(works_s.max())
        self._check_number(works_s)
        phases = self._laid_out(longest_s)
        ends_s = np.cumsum([phase.duration_s for phase in phases])
        # The phase in which each ends; what ends within rounding of a phase's end ends there.
        lasts = np.searchsorted(ends_s, works_s - _ROUNDING * longest_s)
        begins_s = np.concatenate(([0.0], ends_s))[lasts]
        made = []
        for work_s, last, begin_s, (startup, restart) in zip(
            works_s.tolist(), lasts.tolist(), begins_s.tolist(), starts, strict=True
        ):
            work, left_s = phases[: last + 1], work_s - begin_s
            if left_s < phases[last].duration_s - _ROUNDING * longest_s:
                work[-1] = replace(phases[last], duration_s=left_s, checkpoint=False)
            made.append(PowerProfile(startup=startup, restart=restart, work=work))
        return tuple(made)

    def _check_number(self, works_s: FloatArray) -> None:
        round_s = sum(phase.duration_s for phase in self.phases)
        per_s = len(self.phases) / round_s
        if self.checkpoint_every_s is not None:
            per_s += (1 + len(self.save)) / self.checkpoint_every_s
        number = per_s * float(works_s.sum())
        if number > _MOST_PHASES:
            raise InvalidInput(
                f"{self.kind} jobs of up to {format_hours(float(works_s.max()))} in periods of "
                f"{format_hours(round_s)} have {number:.3g} phases: lengthen the period or the "
                "time between checkpoints, limit the lengths with high, or draw fewer jobs"
            )

    def _laid_out(self, longest_s: float) -> list[Phase]:
        """Return the phases of a job that is at least so long."""
        offsets_s = np.cumsum([phase.duration_s for phase in self.phases])
        rounds = int(np.ceil(longest_s / offsets_s[-1]))
        ends_s = (offsets_s[-1] * np.arange(rounds)[:, None] + offsets_s).ravel()
        if self.checkpoint_every_s is None:
            return list(self.phases) * rounds
        every_s, same_s = self.checkpoint_every_s, _ROUNDING * longest_s
        marks_s = every_s * np.arange(1, int(ends_s[-1] / every_s + _ROUNDING) + 1)
        # A checkpoint at the end of a phase, but for rounding, is there.
        after = np.searchsorted(ends_s, marks_s - same_s).clip(max=ends_s.size - 1)
        marks_s = np.where(np.abs(ends_s[after] - marks_s) <= same_s, ends_s[after], marks_s)
        cuts_s = np.union1d(ends_s, marks_s)
        known: dict[tuple[int, float, bool], Phase] = {}
        laid: list[Phase] = []
        for place, length_s, mark in zip(
            (np.searchsorted(ends_s, cuts_s) % len(self.phases)).tolist(),
            np.diff(cuts_s, prepend=0.0).tolist(),
            np.isin(cuts_s, marks_s).tolist(),
            strict=True,
        ):
            phase = self.phases[place]
            uncut = abs(length_s - phase.duration_s) <= same_s
            key = (place, phase.duration_s if uncut else length_s, mark and not self.save)
            if key not in known:
                known[key] = replace(phase, duration_s=key[1], checkpoint=key[2])
            laid.append(known[key])
            if mark:
                laid += self._saving
        return laid

    @property
    def _saving(self) -> list[Phase]:
        return [*self.save[:-1], *(replace(each, checkpoint=True) for each in self.save[-1:])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of a mix.

    Attributes:
        jobs: What its jobs draw; see `workloads.kinds`.
        share: How many of all jobs are of this kind, beside the shares of the others.
        own: What it says for its jobs instead of the workload, by key.
        has_length: Whether the kind itself says how long its jobs are.
    """

    jobs: Kind
    share: float = 1.0
    own: Mapping[str, Draw] = field(default_factory=dict)
    has_length: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mix:
    """Which job is of which kind, and the chance that each kind draws its own columns from.

    Attributes:
        parts: The kinds.
        which: The place in them of each job.
        streams: For each kind, a generator of random numbers for each key of its own.
    """

    parts: Sequence[Part]
    which: IntArray
    streams: Sequence[Mapping[str, np.random.Generator]]

    @classmethod
    def drawn(cls, parts: Sequence[Part], count: int, rng: np.random.Generator) -> Mix:
        """Draw the kind of every job."""
        # A generator for each kind and key: a change to one leaves the others as they were.
        streams = [
            dict(zip(OWN_KEYS, each.spawn(len(OWN_KEYS)), strict=True))
            for each in rng.spawn(len(parts))
        ]
        shares = np.array([part.share for part in parts])
        bounds = np.cumsum(shares)[:-1] / shares.sum()
        which = np.searchsorted(bounds, rng.random(count), side="right")
        return cls(parts=parts, which=which.astype(np.int64), streams=streams)

    def column(self, key: str, shared: FloatArray) -> FloatArray:
        """Return a column with what kinds say themselves in place of what all share.

        Args:
            shared: What jobs have whose kind does not say it.
        """
        column = shared
        for place, part in enumerate(self.parts):
            if key in part.own:
                own = part.own[key](shared.size, self.streams[place][key])
                column = np.where(self.which == place, own, column)
        return column

    def shapes(self, sizes: Sizes, *, has_lengths: bool) -> Shapes:
        """Return what the jobs draw, each as its kind says.

        Args:
            has_lengths: Whether the workload says how long jobs are whose kind does not.
        """
        made = []
        for place, part in enumerate(self.parts):
            mine = sizes.take(np.flatnonzero(self.which == place))
            if part.has_length or not (has_lengths or "lengths" in part.own):
                mine = replace(mine, length_s=None)
            made.append(part.jobs(mine))
        if len(made) == 1:
            return made[0]
        # Jobs lie side by side by kind; each goes back to its place.
        order = np.argsort(np.argsort(self.which, kind="stable"), kind="stable")
        before = np.cumsum([0, *(len(each.profiles) for each in made)])
        return Shapes(
            work_s=np.concatenate([each.work_s for each in made])[order],
            power=np.concatenate([each.power for each in made])[order],
            profile=np.concatenate(
                [
                    np.where(each.profile < 0, -1, each.profile + first)
                    for each, (first, _) in zip(made, pairwise(before.tolist()), strict=True)
                ]
            )[order],
            profiles=tuple(profile for each in made for profile in each.profiles),
            planned_s=np.concatenate([each.planned_s for each in made])[order],
        )
