"""What jobs draw: each kind takes its parameters and returns what turns lengths into columns.

Jobs with phases need a profile for every distinct length. So their lengths are rounded to whole
periods or epochs, at least one, and a hundred thousand jobs share a few hundred profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from lowtide.workloads.checks import number, seconds

# A job of a month in phases of a second is a slip; so many phases take a second to set up.
_MOST_PHASES = 2_000_000


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
        """Return the lengths, which jobs of this kind need.

        Args:
            kind: The kind, for the message.
        """
        if self.length_s is None:
            raise InvalidInput(
                f"{kind} jobs need lengths, such as lengths = {{kind = 'lognormal', "
                "median = '2h', sigma = 1}"
            )
        return self.length_s


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
        power_w: What every job draws.
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
    startup_w: float | None = None,
    checkpoint: bool = False,
) -> Kind:
    """Return jobs whose power alternates between high and low, beginning with high.

    Lengths are rounded to whole periods of high and low, at least one.

    Args:
        high_w: Watts of the high phase.
        low_w: Watts of the low phase.
        high_s: How long the high phase takes.
        low_s: How long the low phase takes.
        startup_s: How long a start takes, on top of the length.
        startup_w: Watts of a start, where it takes time.
        checkpoint: Whether every period ends in a checkpoint.
    """
    period = [
        Phase(name="high", duration_s=seconds(high_s, "high_s"), power_w=number(high_w, "high_w")),
        Phase(
            name="low",
            duration_s=seconds(low_s, "low_s"),
            power_w=number(low_w, "low_w"),
            checkpoint=checkpoint,
        ),
    ]
    startup = _phase("startup", startup_s, startup_w)
    return partial(_repeated, kind="phased", period=period, startup=startup)


def ml(
    *,
    epoch_s: DurationLike,
    train_w: float,
    evaluate_share: float = 0.0,
    evaluate_w: float | None = None,
    save_s: DurationLike = 0.0,
    save_w: float | None = None,
    startup_s: DurationLike = 0.0,
    startup_w: float | None = None,
) -> Kind:
    """Return training jobs: epochs that train, evaluate and save, each ending in a checkpoint.

    Lengths are rounded to whole epochs with their saving, at least one.

    Args:
        epoch_s: How long an epoch trains and evaluates.
        train_w: Watts while it trains.
        evaluate_share: Which share of the epoch it evaluates.
        evaluate_w: Watts while it evaluates, where it does.
        save_s: How long writing its checkpoint takes, on top.
        save_w: Watts while it writes, where that takes time.
        startup_s: How long a start takes, on top of the length.
        startup_w: Watts of a start, where it takes time.
    """
    whole_s = seconds(epoch_s, "epoch_s")
    share = number(evaluate_share, "evaluate_share", most=1)
    if share == 1:
        raise InvalidInput("evaluate_share is below 1: an epoch trains as well")
    train = [
        Phase(name="train", duration_s=(1 - share) * whole_s, power_w=number(train_w, "train_w"))
    ]
    period = [
        *train,
        *_phase("evaluate", share * whole_s, evaluate_w),
        *_phase("save", save_s, save_w),
    ]
    period[-1] = replace(period[-1], checkpoint=True)
    startup = _phase("startup", startup_s, startup_w)
    return partial(_repeated, kind="ml", period=period, startup=startup)


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


def _repeated(
    sizes: Sizes, *, kind: str, period: Sequence[Phase], startup: Sequence[Phase]
) -> Shapes:
    length_s = sizes.lengths(kind)
    period_s = sum(phase.duration_s for phase in period)
    times, places = np.unique(
        np.maximum(np.rint(length_s * sizes.part / period_s), 1.0), return_inverse=True
    )
    phases = float(times.sum()) * len(period)
    if phases > _MOST_PHASES:
        raise InvalidInput(
            f"{kind} jobs of up to {format_hours(float(length_s.max()))} in periods of "
            f"{format_hours(period_s)} have {phases:.3g} phases: lengthen the period, or limit the "
            "lengths with high"
        )
    profiles = tuple(PowerProfile(startup=startup, work=list(period) * int(each)) for each in times)
    startup_s = sum(phase.duration_s for phase in startup)
    work_s = np.array([each.work_s for each in profiles])[places]
    planned_s = np.maximum(np.rint(length_s / period_s), 1.0) * period_s
    return Shapes(
        work_s=work_s,
        power=np.ones(length_s.size),
        profile=places.astype(np.int64),
        profiles=profiles,
        # Adding up phases and multiplying periods round differently.
        planned_s=startup_s + np.maximum(planned_s, work_s),
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
