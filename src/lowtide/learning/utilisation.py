"""Power from utilisation: climb the ladder as far as what was left out says it is worth.

Each run is left out in turn (or a tenth of them, where there are many), every rung is fitted to the
others and predicts it. Where there are several loads, so is each load, with all runs of it: what a
model makes of loads that it has not seen decides then. The simplest rung that is within one
standard error of the best is taken, one beyond a straight line only if it clearly beats that
without being clearly worse on runs, and any only if it clearly beats the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import files
from lowtide.errors import InvalidInput, UnknownName
from lowtide.learning.intervals import Coverage, coverage, half_width_w, quantile, supported_level
from lowtide.learning.ladder import RUNGS, Fitted, library
from lowtide.learning.observations import IntArray, Observations, Usage, observe
from lowtide.learning.validation import Score
from lowtide.meters.power_model import Band, Feature, UtilisationModel
from lowtide.recording import Recording
from lowtide.signal import FloatArray
from lowtide.units import format_count

UNSUPPORTED = "these data do not support a model"
_MOST_FOLDS = 10
# The mean is beaten if chance would do it this seldom (one-sided).
_CHANCE = 0.05
# Intervals depend on use in so many steps at most, of so many windows each, and are nowhere
# narrower than this share of what they are on average.
_MOST_BINS, _LEAST_OF_BIN, _LEAST_SCALE = 5, 30, 0.2
# What the plain computation of a model may differ by from the library's, as a share of the power.
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A rung and how it fared on runs that it had not seen.

    Attributes:
        name: The rung, `mean` for knowing the mean power only.
        rmse_w: Root of the mean squared error of each run left out, mean and standard error.
        gain_w: By how much that is less than the best before it, run by run; None for the mean.
        within: Whether its error is within one standard error of the least, by what decides.
        mae_w: The mean absolute error of each run left out.
        unseen_w: Root of the mean squared error of each load left out; None where there are too few
            loads.
    """

    name: str
    means: str
    rmse_w: Score
    gain_w: Score | None
    within: bool
    mae_w: Score
    unseen_w: Score | None = None

    @property
    def judged_w(self) -> Score:
        """The error that decides: on loads left out, where there are any, else on runs."""
        return self.unseen_w or self.rmse_w

    @property
    def better(self) -> bool:
        """Whether it beats the rungs before it by more than one standard error."""
        return self.gain_w is not None and self.gain_w.error is not None and _is_clear(self.gain_w)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnedUtilisation:
    """What was learned about a machine's power.

    Attributes:
        tried: The mean and every rung, in order.
        chosen: The rung that was taken; None where the data do not support any.
        model: The model; None where none was taken.
        coverage: How often its intervals held; None where there are fewer than three runs.
        held_out_w: What the taken rung (else the best) said about each window without its run.
    """

    data: Observations
    tried: tuple[Tried, ...]
    chosen: str | None
    why: str
    model: UtilisationModel | None
    coverage: Coverage | None
    held_out_w: FloatArray
    seed: int

    def document(self) -> dict[str, Any]:
        """Return everything that was learned as plain lists and numbers."""
        return {
            "chosen": self.chosen,
            "why": self.why,
            "runs": list(self.data.runs),
            "windows": len(self.data),
            "average_s": self.data.average_s,
            "lag_s": self.data.lag_s,
            "loads": list(self.data.loads),
            "features": list(self.data.features),
            "tried": [{**asdict(each), "better": each.better} for each in self.tried],
            "coverage": None if self.coverage is None else asdict(self.coverage),
            "notes": list(self.data.notes),
            "machine": dict(self.data.machine),
            "model": None if self.model is None else self.model.document(),
        }


def learn_utilisation(
    recordings: Iterable[Recording],
    *,
    features: Sequence[str] | None = None,
    usage: Sequence[Usage] = (),
    average_s: float = 1.0,
    level: float = 0.9,
    rung: str | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> LearnedUtilisation:
    """Learn a machine's power from its use.

    Args:
        recordings: Measured runs, two or more; each is left out in turn.
        features: What to go by, such as `cpu` or `gpu=gpu_util/100`; by default all use there is.
        average_s: Power and use are averaged over so many seconds.
        level: How often intervals should hold the power of a new run.
        progress: Told what is being fitted, how many fits are done and how many there are.
    """
    names = [each.name for each in RUNGS]
    if rung is not None and rung not in names:
        raise UnknownName("rung", rung, names)
    data = observe(recordings, features=features, usage=usage, average_s=average_s)
    return learn_observed(data, level=level, rung=rung, seed=seed, progress=progress)


def learn_observed(
    data: Observations,
    *,
    level: float = 0.9,
    rung: str | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> LearnedUtilisation:
    """Learn a machine's power from windows of power and use; the rest as `learn_utilisation`."""
    if len(data.runs) < 2:
        raise InvalidInput(
            "a single run cannot be validated, since a model is judged by runs it has not seen: "
            f"measure at least one more{''.join(f'; {note}' for note in data.notes)}"
        )
    supported = supported_level(level, len(data.runs))
    with library():
        passes = 2 if data.loads else 1
        predicted = _leave_out(data, data.group, seed, progress, passes)
        unseen = None
        if data.loads:
            single = data.group is data.load
            unseen = predicted if single else _leave_out(data, data.load, seed, progress, passes)
        tried = _compare(data, predicted, unseen)
        chosen, why = _choose(tried, rung)
        shown = chosen or min(tried, key=lambda each: each.judged_w.value).name
        model, held = None, None
        if chosen is not None:
            said = predicted[chosen]
            off_w = np.abs(data.power_w - said)
            band = _band(data, said, off_w, supported)
            halves_w = np.array([band.half_at(watts) for watts in said.tolist()])
            # By how many of its half-widths: the same level, whatever the use.
            held = coverage(_by_run(data, off_w / np.maximum(halves_w, 1e-9)), level)
            fitted = next(each for each in RUNGS if each.name == chosen).fit(
                data.use, data.power_w, seed
            )
            _verify(fitted, data.use)
            model = _model(data, tried, chosen, why, fitted, band, seed)
    return LearnedUtilisation(
        data=data,
        tried=tried,
        chosen=chosen,
        why=why,
        model=model,
        coverage=held,
        held_out_w=predicted[shown],
        seed=seed,
    )


def folds(runs: int) -> IntArray:
    """Return which fold each run is left out in: one each, or ten where there are more."""
    return np.arange(runs) % _MOST_FOLDS


def _leave_out(
    data: Observations,
    group: IntArray,
    seed: int,
    progress: Callable[[str, int, int], None],
    passes: int,
) -> dict[str, FloatArray]:
    """Return what each rung says about each window, fitted without the window's run or load.

    Args:
        group: The run or load of each window.
        passes: How often this is done in all, for `progress`.
    """
    fold = folds(int(group.max()) + 1)[group]
    count = int(fold.max()) + 1
    predicted = {name: np.empty(len(data)) for name in ("mean", *(each.name for each in RUNGS))}
    done = 0 if group is data.group else count * len(RUNGS)
    for number in range(count):
        out = fold == number
        use, power_w = data.use[~out], data.power_w[~out]
        predicted["mean"][out] = _mean_of_runs(power_w, group[~out])
        # Beyond what was seen a model stays what it is at the edge.
        asked = np.clip(data.use[out], use.min(axis=0), use.max(axis=0))
        for rung in RUNGS:
            progress(rung.means, done, passes * count * len(RUNGS))
            predicted[rung.name][out] = rung.fit(use, power_w, seed).predict(asked)
            done += 1
    progress("done", done, passes * count * len(RUNGS))
    return predicted


def _band(data: Observations, said: FloatArray, off_w: FloatArray, level: float) -> Band:
    """Return how far off a model is, by what it says: from errors on runs left out."""
    half_w = half_width_w(_by_run(data, off_w), level)
    at_w, scales_w = _scales(said, off_w)
    halves_w: tuple[float, ...] = ()
    if at_w.size > 1:
        ratio = half_width_w(_by_run(data, off_w / np.interp(said, at_w, scales_w)), level)
        # Nothing is known to be off by more than the most that anything was.
        halves_w = tuple(np.minimum(ratio * scales_w, off_w.max()).tolist())
    return Band(
        half_w=half_w,
        level=level,
        runs=len(data.runs),
        at_w=tuple(at_w.tolist()) if halves_w else (),
        halves_w=halves_w,
        span_w=float(np.ptp(data.power_w)),
    )


def _scales(said: FloatArray, off_w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how far off a model usually is around each of a few powers that it says."""
    bins = min(_MOST_BINS, said.size // _LEAST_OF_BIN)
    if bins < 2:
        return np.empty(0), np.empty(0)
    edges = np.unique(np.quantile(said, np.linspace(0, 1, bins + 1)))
    place = np.searchsorted(edges[1:-1], said, side="right")
    full = [number for number in np.unique(place) if np.sum(place == number) >= _LEAST_OF_BIN]
    at_w = np.array([np.median(said[place == number]) for number in full])
    scales_w = np.array([off_w[place == number].mean() for number in full])
    rising = np.append(True, np.diff(at_w) > 0)
    # Where it was right by chance it is not right for sure.
    scales_w = np.maximum(scales_w, _LEAST_SCALE * float(off_w.mean()) + 1e-9)
    return at_w[rising], scales_w[rising]


def _mean_of_runs(power_w: FloatArray, group: IntArray) -> float:
    """Return the mean of the runs' means: runs are judged alike, however long they are."""
    return float(np.mean([power_w[group == each].mean() for each in np.unique(group)]))


def _compare(
    data: Observations, predicted: dict[str, FloatArray], unseen: dict[str, FloatArray] | None
) -> tuple[Tried, ...]:
    def errors(said: dict[str, FloatArray], group: IntArray) -> dict[str, FloatArray]:
        parts = [group == each for each in range(int(group.max()) + 1)]
        return {
            name: np.array(
                [math.sqrt(np.mean(np.square((data.power_w - watts)[p]))) for p in parts]
            )
            for name, watts in said.items()
        }

    rmse_w = errors(predicted, data.group)
    loads_w = None if unseen is None else errors(unseen, data.load)
    judged = rmse_w if loads_w is None else loads_w
    best = min(judged, key=lambda name: float(judged[name].mean()))
    least = _score(judged[best])
    most_w = least.value + (least.error or 0.0)
    words = {"mean": "the mean power"} | {rung.name: rung.means for rung in RUNGS}
    tried: list[Tried] = []
    before: str | None = None
    for name, off_w in rmse_w.items():
        each = [np.mean(part) for part in _by_run(data, np.abs(data.power_w - predicted[name]))]
        tried.append(
            Tried(
                name=name,
                means=words[name],
                rmse_w=_score(off_w),
                gain_w=None if before is None else _score(rmse_w[before] - off_w),
                within=float(judged[name].mean()) <= most_w,
                mae_w=_score(np.array(each)),
                unseen_w=None if loads_w is None else _score(loads_w[name]),
            )
        )
        if before is None or off_w.mean() < rmse_w[before].mean():
            before = name
    return tuple(tried)


def _choose(tried: Sequence[Tried], rung: str | None) -> tuple[str | None, str]:
    mean, *rungs = tried
    if rung is not None:
        return rung, f"{rung} was asked for, whatever validation says"
    best = min(tried, key=lambda each: each.judged_w.value)
    simplest = next(each for each in tried if each.within)
    line = rungs[0]
    what = "runs" if best.unseen_w is None else "loads"
    if simplest not in (mean, line) and best.unseen_w is not None:
        # On loads that nobody has seen, a straight line is what has to be beaten; who does so by
        # being clearly worse on new runs of the loads that there are has bent to a few of them.
        gain = _gain(line, simplest)
        on_runs = _score(np.array(simplest.rmse_w.per_run) - np.array(line.rmse_w.per_run))
        if not _is_clear(gain) or _is_clear(on_runs):
            simplest = line
    if simplest is not mean:
        score = _gain(mean, simplest)
        count = len(mean.judged_w.per_run)
        least = quantile(1 - 2 * _CHANCE, count - 1) * (score.error or 0.0)
        if score.value > least:
            unseen = "" if best.unseen_w is None else " on loads left out"
            if simplest is best:
                return simplest.name, (
                    f"{simplest.name} has the least error{unseen}, and no simpler rung is within "
                    "one standard error of it"
                )
            if not simplest.within:
                return simplest.name, (
                    f"no rung clearly beats a straight line{unseen} without being clearly "
                    "worse on runs, so that is taken"
                )
            return simplest.name, (
                f"{simplest.name} is the simplest rung within one standard error of the best"
                f"{unseen}, {best.name}"
            )
    nearest = min(rungs, key=lambda each: each.judged_w.value)
    return None, (
        f"{UNSUPPORTED}: over {len(mean.judged_w.per_run)} {what} that were left out the mean is "
        f"off by {mean.judged_w.value:.1f} W and {nearest.name}, the best rung, by "
        f"{nearest.judged_w.value:.1f} W, which is no clear gain"
    )


def _is_clear(score: Score) -> bool:
    """Tell whether a difference is positive by more than one standard error."""
    return score.value > (score.error or 0.0)


def _gain(before: Tried, after: Tried) -> Score:
    """Return by how much less the second is off, run by run or load by load."""
    return _score(np.array(before.judged_w.per_run) - np.array(after.judged_w.per_run))


def _model(
    data: Observations,
    tried: Sequence[Tried],
    chosen: str,
    why: str,
    fitted: Fitted,
    band: Band,
    seed: int,
) -> UtilisationModel:
    taken = next(each for each in tried if each.name == chosen)
    runs = len(data.runs)
    return UtilisationModel(
        features=tuple(
            Feature(name=name, low=float(column.min()), high=float(column.max()))
            for name, column in zip(data.features, data.use.T, strict=True)
        ),
        form=fitted.form,
        source=f"learned from {runs} runs, {taken.means}: off by {taken.rmse_w.value:.1f} W on "
        "runs left out",
        band=band,
        average_s=data.average_s,
        about={
            "rung": chosen,
            "why": why,
            "runs": list(data.runs),
            "windows": len(data),
            "rmse_w": taken.rmse_w.value,
            "mae_w": taken.mae_w.value,
            "unseen_rmse_w": None if taken.unseen_w is None else taken.unseen_w.value,
            "lag_s": data.lag_s,
            "mean_rmse_w": tried[0].rmse_w.value,
            "machine": dict(data.machine),
            "meters": list(data.meters),
            "seed": seed,
        },
    )


def _verify(fitted: Fitted, use: FloatArray) -> None:
    """See that the form says what the library says: its insides may change with a version."""
    rows = use[:: max(use.shape[0] // 100, 1)]
    said = np.array([fitted.form.watts(row) for row in rows.tolist()])
    theirs = fitted.predict(rows)
    if not np.allclose(said, theirs, rtol=_SAME, atol=_SAME * float(np.abs(theirs).max())):
        raise RuntimeError("this version of scikit-learn keeps its models in another way")


def _by_run(data: Observations, values: FloatArray) -> list[FloatArray]:
    return [values[data.group == each] for each in range(len(data.runs))]


def _score(values: FloatArray) -> Score:
    score = Score.of(values.tolist())
    if score is None:
        raise InvalidInput("a score needs at least one run")
    return score


def write_card(learned: LearnedUtilisation, path: Path | str) -> None:
    """Write the card."""
    path = Path(path)
    if path.suffix != ".md":
        raise InvalidInput(f"a model card is a .md file, not {path.name!r}")
    files.write_whole(path, model_card(learned))


def model_card(learned: LearnedUtilisation) -> str:
    """Return the card as Markdown."""
    parts = [
        "# Power from utilisation\n",
        f"{learned.why[:1].upper()}{learned.why[1:]}.\n",
        _data(learned),
        _ladder(learned),
    ]
    if learned.model is not None:
        parts += [_intervals(learned, learned.model), _range(learned.model)]
    parts.append(_limits(learned))
    return "\n".join(parts)


def coverage_words(learned: LearnedUtilisation) -> str:
    """Return in a sentence or two what the intervals are, and how often they held."""
    band = None if learned.model is None else learned.model.band
    if band is None:
        return "There are no intervals."
    narrow, wide = min(band.halves_w, default=0.0), max(band.halves_w, default=0.0)
    width = f"± {band.half_w:.1f} W"
    if band.at_w:
        at_w = [band.at_w[band.halves_w.index(each)] for each in (narrow, wide)]
        width = f"± {narrow:.1f} W (around {at_w[0]:.0f} W) to ± {wide:.1f} W ({at_w[1]:.0f} W)"
    said = (
        f"The power of a new run lies within {width} in at least {100 * band.level:.0f} % of its "
        f"windows, by the errors of {band.runs} runs left out."
    )
    if (held := learned.coverage) is None:
        return f"{said} Whether that holds could not be tried: it needs three runs."
    return (
        f"{said} Made from the other runs, such intervals held {100 * held.mean:.1f} % of a run's "
        f"windows ({100 * held.level:.0f} % were asked for) and {100 * held.least:.1f} % in the "
        "worst run."
    )


def score_words(score: Score | None) -> str:
    """Return a score as mean and standard error, `---` where there is none."""
    if score is None:
        return "---"
    error = "---" if score.error is None else f"{score.error:.1f}"
    return f"{score.value:.1f} ± {error}"


def verdict(tried: Tried, chosen: str | None) -> str:
    """Return in a word or two how a rung fared."""
    if tried.name == chosen:
        return "chosen"
    if tried.gain_w is None:
        return ""
    return "better" if tried.better else "no better"


def _data(learned: LearnedUtilisation) -> str:
    data = learned.data
    lines = [
        "## Data\n",
        f"- {format_count(len(data.runs), 'run')}: {', '.join(data.runs)}",
        f"- {format_count(len(data), 'window')} of {data.average_s:g} s; power "
        f"{data.power_w.min():.1f} to {data.power_w.max():.1f} W, measured"
        + (f" by {', '.join(data.meters)}" if data.meters else ""),
        f"- features: {', '.join(data.features)}",
    ]
    if data.loads:
        lines.append(f"- {format_count(len(data.loads), 'load')}: {', '.join(data.loads)}")
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in data.machine.items()]
    lines += [f"- note: {note}" for note in data.notes]
    return "\n".join(lines) + "\n"


def _ladder(learned: LearnedUtilisation) -> str:
    lines = [
        "## The ladder\n",
        "Error (RMSE in W) on runs that were left out: mean over runs and its standard error. "
        "*Gain* is against the best rung above, run by run; *unseen* is the error on loads that "
        "were left out with all their runs, and decides where there are any. The simplest rung "
        "within one standard error of the least error is taken, if it clearly beats the mean and, "
        "on unseen loads, a straight line, without being clearly worse than that on runs.\n",
        "| rung | what it is | error | gain | unseen | |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.name} | {each.means} | {score_words(each.rmse_w)} | "
        f"{score_words(each.gain_w)} | {score_words(each.unseen_w)} | "
        f"{verdict(each, learned.chosen)} |"
        for each in learned.tried
    ]
    lines.append("")
    lines.append("| run | " + " | ".join(each.name for each in learned.tried) + " |")
    lines.append("|---" * (1 + len(learned.tried)) + "|")
    for place, run in enumerate(learned.data.runs):
        errors = " | ".join(f"{each.rmse_w.per_run[place]:.1f}" for each in learned.tried)
        lines.append(f"| {run} | {errors} |")
    return "\n".join(lines) + "\n"


def _intervals(learned: LearnedUtilisation, model: UtilisationModel) -> str:
    said = coverage_words(learned)
    if model.band is not None and model.band.level < 0.9:
        said += (
            f" {format_count(model.band.runs, 'run')} support no higher level: K runs support "
            "K / (K + 1), nine runs 90 %."
        )
    return f"## Intervals\n\n{said}\n"


def _range(model: UtilisationModel) -> str:
    rows = [f"| {each.name} | {each.low:.4g} | {each.high:.4g} |" for each in model.features]
    return "\n".join(
        [
            "## Range\n",
            "Outside of what it was learned from the model stays what it is at the edge, its "
            "interval widens by as much as power varied for each span of a feature, and the meter "
            "says that it guesses.\n",
            "| feature | from | to |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _limits(learned: LearnedUtilisation) -> str:
    lines = [
        "## Limits\n",
        "- It holds for this machine as it was set up: other clocks, fans or parts draw otherwise.",
        "- It was judged by runs like these; another program may use the machine in ways that "
        "these features do not show.",
        "- Intervals take new runs to be like the old ones, and a final model as good as those "
        "that were fitted without one run.",
        "- What it says is an estimate, never a measurement.",
        f"- Random choices were made with seed {learned.seed}.",
    ]
    return "\n".join(lines) + "\n"
