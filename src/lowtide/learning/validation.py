"""How well phases predict a run that they were not learned from.

Each run is left out in turn. The phases of the others predict it three ways: at absolute time, as
one who starts the program would; at averages over 1, 10 and 30 s, which forgive drift; and
aligned, with the run's own times, which leaves the levels to be judged alone. Beside them stands
the model that knows the mean power only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lowtide.learning.series import RunSeries
from lowtide.signal import FloatArray
from lowtide.steps import Steps

AVERAGES_S = (1.0, 10.0, 30.0)
# With more runs than this, several are left out at a time.
_FOLDS = 10
# A difference of sums that is no more than this share of them is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """What phases say of one run.

    Attributes:
        duration_s: How long each takes.
        power_w: What each draws.
        own_edges_s: Where the run has them, None where that cannot be told.
        lag_s: How much later a meter shows them.
    """

    duration_s: FloatArray
    power_w: FloatArray
    own_edges_s: FloatArray | None = None
    lag_s: float = 0.0


class Fit(Protocol):
    """Phases learned from some runs."""

    def predict(self, series: RunSeries) -> Prediction:
        """Return what they say of another run; its marks may tell how many epochs it has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A figure of merit over the runs that were left out.

    Attributes:
        error: Its standard error, None for one run.
        per_run: The figure of each run.
    """

    value: float
    error: float | None
    per_run: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Score | None:
        """Return the score of some figures, None where there are none."""
        numbers = np.asarray(values, dtype=np.float64)
        if not numbers.size:
            return None
        error = float(numbers.std(ddof=1) / np.sqrt(numbers.size)) if numbers.size > 1 else None
        return cls(value=float(numbers.mean()), error=error, per_run=tuple(numbers.tolist()))

    def __str__(self) -> str:
        return f"{self.value:.1f} ± " + ("---" if self.error is None else f"{self.error:.1f}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorView:
    """Power as predicted against power as measured, looked at in one way.

    Attributes:
        name: The way: `absolute`, `aligned`, `1 s`, `10 s`, `30 s`.
        rmse_w: Root of the mean squared error; None where no run is long enough.
        constant_rmse_w: The same of constant power.
        constant_mae_w: The same of constant power.
    """

    name: str
    rmse_w: Score | None
    mae_w: Score | None
    constant_rmse_w: Score | None
    constant_mae_w: Score | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What leaving one run out at a time showed.

    Attributes:
        runs: The runs that were left out in turn.
        views: Power, looked at in each way.
        energy_error: Predicted less measured energy, as a share of the measured one: the bias. Of
            runs that drew nothing there is no share; None where no run drew anything.
        absolute_energy_error: The same without sign: how far off a single run is.
        duration_error: Predicted less measured duration, as a share of the measured one.
    """

    runs: tuple[str, ...]
    views: tuple[ErrorView, ...]
    energy_error: Score | None
    absolute_energy_error: Score | None
    duration_error: Score | None

    def view(self, name: str) -> ErrorView:
        """Return one way of looking.

        Args:
            name: `absolute`, `aligned`, `1 s`, `10 s` or `30 s`.
        """
        return next(view for view in self.views if view.name == name)

    def energy_text(self) -> str:
        """Return how far off energy is, in words."""
        if self.energy_error is None or self.absolute_energy_error is None:
            return "off by ---, since no run drew anything"
        return (
            f"off by {100 * self.energy_error.value:+.2f} % on average, "
            f"{100 * self.absolute_energy_error.value:.2f} % for a single run"
        )

    def duration_text(self) -> str:
        """Return how far off the duration is, in words."""
        late = self.duration_error
        if late is None:
            return "off by ---"
        size = float(np.abs(late.per_run).mean())
        return f"off by {100 * late.value:+.2f} % on average, {100 * size:.2f} % for a single run"


def validate(
    series: Sequence[RunSeries], learn: Callable[[Sequence[RunSeries]], Fit]
) -> Validation | None:
    """Leave one run out at a time; None where there is one run only."""
    if len(series) < 2:
        return None
    errors: dict[str, list[FloatArray]] = {}
    energy, late = [], []
    folds = min(len(series), _FOLDS)
    for fold in range(folds):
        others = [each for place, each in enumerate(series) if place % folds != fold]
        fit = learn(others)
        mean_w = sum(each.energy_j for each in others) / sum(each.length_s for each in others)
        for left_out in series[fold::folds]:
            said = fit.predict(left_out)
            for name, error_w in _errors(left_out, said, mean_w).items():
                errors.setdefault(name, []).append(error_w)
            predicted_j = float(said.duration_s @ said.power_w)
            error = energy_error(predicted_j, left_out.energy_j, left_out.run.energy_j())
            if error is not None:
                energy.append(error)
            late.append(float(said.duration_s.sum()) / left_out.length_s - 1)
    names = ["absolute", "aligned", *(f"{seconds:g} s" for seconds in AVERAGES_S)]
    return Validation(
        runs=tuple(each.run.id for each in series),
        views=tuple(_view(name, errors) for name in names),
        energy_error=Score.of(energy),
        absolute_energy_error=Score.of([abs(error) for error in energy]),
        duration_error=Score.of(late),
    )


def left_out_ratios(
    seconds: Sequence[FloatArray],
    joules: Sequence[FloatArray],
    inside: Sequence[npt.NDArray[np.bool_]],
    epochs: Sequence[int],
) -> tuple[list[float], list[float]]:
    """Return how many times as long each run took, and drew, as the others say of its epochs.

    Args:
        seconds: How long each run's phases took.
        joules: What they drew.
        inside: Which of them belong to epochs.
        epochs: How many epochs each run has.
    """
    found = []
    for values in (seconds, joules):
        within = np.array([float(own[has].sum()) for own, has in zip(values, inside, strict=True)])
        whole = np.array([float(own.sum()) for own in values])
        count = np.array(epochs, dtype=np.float64)
        others = np.maximum(count.size - 1, 1)
        outside = whole - within
        said = (outside.sum() - outside) / others
        said += count * (within.sum() - within) / np.maximum(count.sum() - count, 1)
        found.append((whole / np.where(said > 0, said, np.nan)).tolist())
    return found[0], found[1]


def energy_error(predicted_j: float, measured_j: float, drawn_j: float) -> float | None:
    """Return how far off a predicted energy is, as a share of what was measured.

    Args:
        measured_j: What was measured, without the baseline if that is left out.

    Returns:
        None where nothing was drawn, or no more than rounding beyond the baseline.
    """
    if measured_j <= _ROUNDING * drawn_j:
        return None
    return predicted_j / measured_j - 1


def predicted_w(duration_s: FloatArray, power_w: FloatArray, times_s: FloatArray) -> FloatArray:
    """Return what phases say is drawn at times; 0 once they are over.

    Args:
        times_s: Seconds after the start.
    """
    edges_s = np.append(0.0, np.cumsum(duration_s))
    return Steps.between(edges_s, power_w).at(times_s)


def rmse(error_w: FloatArray) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(error_w**2)))


def _errors(series: RunSeries, said: Prediction, mean_w: float) -> dict[str, FloatArray]:
    """Return predicted less measured power, by the way of looking."""
    seconds, watts = said.duration_s, said.power_w
    seen_s = np.maximum(series.times_s - said.lag_s, 0.0)
    errors = {
        "absolute": predicted_w(seconds, watts, seen_s) - series.power_w,
        "constant absolute": mean_w - series.power_w,
    }
    if said.own_edges_s is not None:
        own_s = np.diff(said.own_edges_s)
        errors["aligned"] = predicted_w(own_s, watts, series.times_s) - series.power_w
    # Before a late meter shows the first change, it shows the first phase.
    early_s = max(said.lag_s, 0.0)
    edges_s = np.concatenate(([-early_s, 0.0], np.cumsum(seconds)))
    expected = Steps.between(edges_s, np.append(watts[:1], watts))
    for average_s in AVERAGES_S:
        edges_s = np.arange(0.0, series.length_s + 1e-9, average_s)
        if edges_s.size < 2:
            continue
        measured_w = series.mean_w(edges_s)
        model_w = expected.mean(edges_s - said.lag_s)
        errors[f"{average_s:g} s"] = model_w - measured_w
        errors[f"constant {average_s:g} s"] = mean_w - measured_w
    return errors


def _view(name: str, errors: dict[str, list[FloatArray]]) -> ErrorView:
    ours, constant = errors.get(name, []), errors.get(f"constant {name}", [])
    return ErrorView(
        name=name,
        rmse_w=Score.of([rmse(error_w) for error_w in ours]),
        mae_w=Score.of([float(np.abs(error_w).mean()) for error_w in ours]),
        constant_rmse_w=Score.of([rmse(error_w) for error_w in constant]),
        constant_mae_w=Score.of([float(np.abs(error_w).mean()) for error_w in constant]),
    )
