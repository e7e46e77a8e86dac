"""What no schedule of a job can go below."""

from __future__ import annotations

import numpy as np

from lowtide.job import Job
from lowtide.signal import Signal
from lowtide.units import JOULES_PER_KWH


def rearrangement_bound(job: Job, signal: Signal) -> float:
    """Return the cost of the dearest phases in the cheapest moments, order set aside.

    Every schedule runs each phase of one startup and the work for its duration somewhere in the
    window. By the rearrangement inequality no placement beats pairing the highest powers with the
    lowest intensities. Further starts, lost work and suspended power only add to that.
    """
    phases = (*job.profile.startup, *job.profile.work)
    power_w = np.array([phase.power_w for phase in phases])
    duration_s = np.array([phase.duration_s for phase in phases])
    falling = np.argsort(-power_w, kind="stable")

    window = signal.window(job.arrival, job.deadline)
    edges = np.clip(window.edges, job.arrival, job.deadline)
    rising = np.argsort(window.values, kind="stable")

    used_s = np.concatenate(([0.0], np.cumsum(duration_s[falling])))
    offered_s = np.concatenate(([0.0], np.cumsum(np.diff(edges)[rising])))
    cuts = np.union1d(used_s, offered_s[offered_s < used_s[-1]])
    middle = (cuts[:-1] + cuts[1:]) / 2
    which_phase = np.minimum(np.searchsorted(used_s, middle) - 1, len(phases) - 1)
    which_step = np.minimum(np.searchsorted(offered_s, middle) - 1, rising.size - 1)
    products = power_w[falling][which_phase] * window.values[rising][which_step] * np.diff(cuts)
    return float(products.sum() / JOULES_PER_KWH)
