"""Power from utilisation: like runs, and loads that nobody has seen, beside a straight line.

Reads the measured H200 under LOWTIDE_DATA/power/h200. First the ladder is climbed on runs of a
training job, and on these and a sweep of loads. Then each load of the sweep, and the job, is left
out in turn, in ten folds: the ladder is climbed on what is left, by loads left out within that, and
whatever it takes predicts the rest.

    python benchmarks/utilisation.py
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lowtide.formats import read_recordings
from lowtide.learning.ladder import RUNGS
from lowtide.learning.observations import IntArray, Observations, observe
from lowtide.learning.utilisation import LearnedUtilisation, folds, learn_observed


def main() -> None:
    """Print the errors."""
    folder = Path(os.environ.get("LOWTIDE_DATA", "../shared/data")) / "power" / "h200"
    tables = [folder / f"{name}_samples.csv.gz" for name in ("full", "resume", "sweep")]
    job, sweep = read_recordings(tables[:2]), read_recordings(tables[2:])
    data = {"training job": observe(job), "job and sweep": observe([*job, *sweep])}
    print("mean absolute error in W              taken          line")
    for title, known in data.items():
        learned = learn_observed(known)
        taken = next(each for each in learned.tried if each.name == learned.chosen)
        like = slice(len(data["training job"].runs))
        show(
            f"{title}: like runs",
            taken.name,
            taken.mae_w.per_run[like],
            learned.tried[1].mae_w.per_run[like],
        )
    alone = data["training job"]
    asked = observe(sweep, features=list(alone.features))
    learned, line = learn_observed(alone), learn_observed(alone, rung="interpolation")
    show(
        "training job: unseen sweep",
        str(learned.chosen),
        [off_w(learned, asked)],
        [off_w(line, asked)],
    )
    show("job and sweep: loads left out", "nested", *nested(data["job and sweep"]))


def nested(data: Observations) -> tuple[list[float], list[float]]:
    """Return the error on each load left out, of what the ladder takes and of a line."""
    taken, lines = [], []
    fold = folds(len(data.loads))
    for number in np.unique(fold):
        out = fold[data.load] == number
        rest = subset(data, ~out)
        learned = learn_observed(rest)
        line = RUNGS[0].fit(rest.use, rest.power_w, 0)
        for load in np.unique(data.load[out]):
            asked = subset(data, data.load == load)
            taken.append(off_w(learned, asked))
            lines.append(float(np.abs(line.predict(asked.use) - asked.power_w).mean()))
    return taken, lines


def subset(data: Observations, rows: np.ndarray) -> Observations:
    """Return some windows, with the runs and loads that they are of."""

    def kept(group: IntArray, names: tuple[str, ...]) -> tuple[IntArray, tuple[str, ...]]:
        numbers, found = np.unique(group[rows], return_inverse=True)
        return found, tuple(names[number] for number in numbers)

    group, runs = kept(data.group, data.runs)
    load, loads = kept(data.load, data.loads)
    return replace(
        data,
        use=data.use[rows],
        power_w=data.power_w[rows],
        group=group,
        runs=runs,
        load=load,
        loads=loads,
    )


def off_w(learned: LearnedUtilisation, asked: Observations) -> float:
    """Return the mean absolute error of what was learned, or of the mean where nothing was."""
    said = np.full(len(asked), learned.data.power_w.mean())
    if learned.model is not None:
        names = learned.data.features
        said = np.array(
            [
                learned.model.at(dict(zip(names, row, strict=True))).power_w
                for row in asked.use.tolist()
            ]
        )
    return float(np.abs(said - asked.power_w).mean())


def show(what: str, name: str, taken: Sequence[float], line: Sequence[float]) -> None:
    """Print one line."""
    print(f"{what:32} {np.mean(taken):6.1f} ({name})   {np.mean(line):6.1f}")


if __name__ == "__main__":
    main()
