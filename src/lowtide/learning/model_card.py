"""The model card: what a power model was learned from, how good it is, and what it is not for."""

from __future__ import annotations

from pathlib import Path

from lowtide import files
from lowtide.errors import InvalidInput
from lowtide.learning.utilisation import LearnedUtilisation, Tried
from lowtide.learning.validation import Score
from lowtide.meters.power_model import UtilisationModel
from lowtide.units import format_count


def write_card(learned: LearnedUtilisation, path: Path | str) -> None:
    """Write the card.

    Args:
        path: A file ending in `.md`.
    """
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
    said = (
        f"The power of a new run lies within ± {band.half_w:.1f} W in at least "
        f"{100 * band.level:.0f} % of its windows, by the errors of {band.runs} runs left out."
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
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in data.machine.items()]
    lines += [f"- note: {note}" for note in data.notes]
    return "\n".join(lines) + "\n"


def _ladder(learned: LearnedUtilisation) -> str:
    lines = [
        "## The ladder\n",
        "Error (RMSE in W) on runs that were left out: mean over runs and its standard error. "
        "*Gain* is against the best rung above, run by run. The simplest rung within one standard "
        "error of the least error is taken, if it clearly beats the mean.\n",
        "| rung | what it is | error | gain | |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.name} | {each.means} | {score_words(each.rmse_w)} | "
        f"{score_words(each.gain_w)} | {verdict(each, learned.chosen)} |"
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
            "Outside of what it was learned from the model is a guess, and the meter says so.\n",
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
