"""What jobs draw: each kind takes its parameters and returns what turns lengths into columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from lowtide.errors import InvalidInput, UnknownName
from lowtide.profile import Phase, PowerProfile
from lowtide.samples import sample_names, sample_profile
from lowtide.signal import FloatArray
from lowtide.units import DurationLike, format_hours
from lowtide.workload import IntArray
from lowtide.workloads.checks import number, optional_seconds, seconds
from lowtide.workloads.periods import Period


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
) -> Kind:
    """Return jobs whose power alternates between high and low, beginning with high.

    Lengths are kept: the last phase is cut where the work ends.

    Args:
        startup_s: How long a start takes, on top of the length; or
        startup_share: which share of the length it takes, likewise on top.
        startup_w: Watts of a start, where it takes time.
        checkpoint_every_s: How much work lies between checkpoints, wherever that is in a phase;
            None for no checkpoints.
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
    startup = _read_startup(startup_s, startup_share, startup_w)
    return partial(_repeated, period=period, startup=startup)


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
    startup = _read_startup(startup_s, startup_share, startup_w)
    return partial(_repeated, period=period, startup=startup)


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


def load_profile(given: object) -> PowerProfile:
    """Return a profile that was given as such, as a file, or by the name of a sample.

    Args:
        given: A profile, a file ending in `.toml` or `.json`, or a sample's name.
    """
    if isinstance(given, PowerProfile):
        return given
    if not isinstance(given, str | Path):
        raise InvalidInput(f"a profile is a file or a sample's name, not {given!r}")
    if Path(given).suffix in (".toml", ".json"):
        return PowerProfile.load(given)
    if str(given) not in sample_names():
        hint = "; files end in .toml or .json"
        raise UnknownName("sample profile", str(given), sample_names(), hint)
    return sample_profile(str(given))


def _phase(name: str, duration: DurationLike, power_w: float | None) -> list[Phase]:
    """Return a phase in a list, which is empty where it takes no time."""
    duration_s = seconds(duration, f"{name}_s", positive=False)
    if not duration_s:
        return []
    if power_w is None:
        raise InvalidInput(f"{name} takes {format_hours(duration_s)}, so it needs {name}_w")
    return [Phase(name=name, duration_s=duration_s, power_w=number(power_w, f"{name}_w"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Startup:
    """What every start does: always the same, or a share of the job's length."""

    phases: tuple[Phase, ...]
    share: float = 0.0
    power_w: float = 0.0

    def of(self, length_s: float) -> tuple[Phase, ...]:
        """Return the phases of a start of a job of some length."""
        if not self.share:
            return self.phases
        return (Phase(name="startup", duration_s=self.share * length_s, power_w=self.power_w),)


def _read_startup(
    startup_s: DurationLike, startup_share: float, startup_w: float | None
) -> _Startup:
    phases = tuple(_phase("startup", startup_s, startup_w))
    share = number(startup_share, "startup_share")
    if phases and share:
        raise InvalidInput("a start takes startup_s, or startup_share of the length: give one")
    if share and startup_w is None:
        raise InvalidInput(f"startup takes {share:g} of the length, so it needs startup_w")
    return _Startup(
        phases=phases, share=share, power_w=number(startup_w, "startup_w") if share else 0.0
    )


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


def _repeated(sizes: Sizes, *, period: Period, startup: _Startup) -> Shapes:
    length_s = sizes.lengths(period.kind)
    done_s = length_s * sizes.part
    if startup.share:
        # A job that fails starts as long as one that does not: profiles differ by both lengths.
        (done_s, whole_s), places = np.unique([done_s, length_s], axis=1, return_inverse=True)
        startups = [startup.of(each) for each in whole_s.tolist()]
    else:
        done_s, places = np.unique(done_s, return_inverse=True)
        startups = [startup.phases] * done_s.size
    profiles = period.profiles(done_s, startups)
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
