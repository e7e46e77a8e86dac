"""Which runs may be of one program, by what they used, whatever they are called and however long.

A run's use is where its energy went: at which power, with how many busy CPUs and GPUs. Runs of one
program spend it alike, those of two programs hardly ever do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowtide.changepoints import IntArray
from lowtide.recording import Run
from lowtide.signal import FloatArray

# What is compared, and from where on a difference means something: a watt, a quarter of a CPU.
COMPARED = {"power_w": 1.0, "cpus_busy": 0.25, "gpus_busy": 0.05}
# So many places of each distribution are compared.
PLACES = (np.arange(16) + 0.5) / 16
# Runs whose use differs by more than this share, on average, are of other programs. Nodes of one
# kind differ by a tenth.
_APART = 0.2


def use_of(run: Run) -> FloatArray:
    """Return where a run's energy went: a row of places of each distribution in `COMPARED`.

    NaN where nothing is known. Energy weighs, not time, so that a run of two epochs is like one of
    twenty: what a startup takes of the energy is little in both.
    """
    held_s = np.diff(np.append(run.times, max(run.end, float(run.times[-1]) + 1e-9)))
    # The idle machine before and after is not the program's.
    held_s[(run.times < run.start) | (run.times >= run.end)] = 0.0
    rows = []
    for name in COMPARED:
        values = run.power_w if name == "power_w" else run.columns.get(name, np.array([np.nan]))
        if values.size != held_s.size or np.isnan(values).any():
            rows.append(np.full(PLACES.size, np.nan))
            continue
        weights = np.maximum(held_s, 0.0) * (run.power_w + 1e-9)
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(weights[order])
        middle = (reached - weights[order] / 2) / reached[-1]
        rows.append(np.interp(PLACES, middle, values[order]))
    return np.stack(rows)


def distances(uses: FloatArray) -> FloatArray:
    """Return by which share uses differ from each other, each from each.

    Args:
        uses: What `use_of` returned of each.
    """
    # What few know of is not compared at all: distances have to mean the same for all.
    known = ~np.isnan(uses.sum(axis=(0, 2)))
    found = np.zeros((len(uses), len(uses)))
    for place, least in enumerate(COMPARED.values()):
        if known[place]:
            each = uses[:, place]
            apart = np.abs(each[:, None] - each[None]).mean(axis=2)
            mean = each.mean(axis=1)
            found = np.maximum(found, apart / np.maximum(np.maximum.outer(mean, mean), least))
    return found


def are_alike(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two uses may be of one program."""
    return bool(distances(np.stack([first, second]))[0, 1] <= _APART)


def clustered(apart: FloatArray) -> IntArray:
    """Return which cluster each belongs to: two are joined while they are alike on average.

    Args:
        apart: What `distances` returned.
    """
    if len(apart) == 1:
        return np.ones(1, dtype=np.intp)
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(apart, checks=False), method="average")
    return np.asarray(fcluster(tree, _APART, criterion="distance"), dtype=np.intp)


def of_one_program(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the runs that most are like, and why others are left out.

    Where several programs have as many, the first run's is taken.
    """
    if len(runs) < 2:
        return list(runs), []
    apart = distances(np.stack([use_of(run) for run in runs]))
    labels = clustered(apart)
    sizes = np.bincount(labels)
    kept = labels == next(label for label in labels if sizes[label] == sizes.max())
    notes = [
        f"run {run.id} spends its energy at other powers than the others, by "
        f"{100 * float(apart[number, kept].mean()):.0f} % on average, and is left out: it seems to "
        "be another program's"
        for number, run in enumerate(runs)
        if not kept[number]
    ]
    return [run for run, own in zip(runs, kept.tolist(), strict=True) if own], notes
