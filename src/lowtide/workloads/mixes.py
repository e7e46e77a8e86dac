"""Jobs of several kinds in one workload, each with its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from lowtide.signal import FloatArray
from lowtide.workload import IntArray
from lowtide.workloads.choices import Draw
from lowtide.workloads.kinds import Kind, Shapes, Sizes

# What a kind may say for its own jobs. Their order is part of what a seed means: only ever add
# at the end.
OWN_KEYS = ("lengths", "cpus", "gpus", "nodes", "interruptible", "memory", "priority")


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
