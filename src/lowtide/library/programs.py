"""Which runs are of one program: who runs what with how much, and what that uses.

A name is not enough: `run.sh` is many programs, and `train_17` and `train_18` are one. So runs are
put together by user, name without its numbers and what was asked for, and are told apart by what
they used: where the energy went, at which power, with how many busy CPUs and GPUs. How long a run
took plays no part in that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.learning.likeness import clustered, distances, use_of
from lowtide.recording import Run
from lowtide.signal import FloatArray
from lowtide.units import format_count

# What differs between runs of one program: counts, dates, and hashes, which have a digit somewhere.
_VARYING = re.compile(r"(?=[0-9a-f]*\d)[0-9a-f]{6,}(?![a-z])|\d+", re.IGNORECASE)
_REPEATED = re.compile(r"#(?:[-_.:+T/ ]*#)+")
# Fewer runs than this that differ from all others are strays, and no program.
LEAST_KIND = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Who runs what with how much.

    Attributes:
        user: Who runs it; empty where not known.
        name: What it is called, `#` for what differs from run to run.
        nodes: On how many nodes.
        cpus: How many CPUs it asks for; None where not known.
        gpus: How many GPUs it asks for; None where not known.
    """

    user: str = ""
    name: str = ""
    nodes: int = 1
    cpus: float | None = None
    gpus: float | None = None

    @property
    def shape(self) -> str:
        """What it asks for, in words."""
        asked = [format_count(self.nodes, "node")]
        for count, what in ((self.cpus, "CPU"), (self.gpus, "GPU")):
            if count:
                asked.append(f"{count:g} {what}{'s' * (count != 1)}")
        return ", ".join(asked)

    def __str__(self) -> str:
        return f"{self.name} of {self.user}" if self.user else self.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PastRun:
    """One run that happened, and whose it was."""

    program: Program
    run: Run

    @property
    def start(self) -> float:
        """When it began."""
        return self.run.start


def common_name(name: str) -> str:
    """Return a name with `#` for what differs from run to run.

    >>> common_name("train_17"), common_name("md-2024-07-04T12:30"), common_name("job-3f2a9c1b")
    ('train_#', 'md-#', 'job-#')
    >>> common_name("face-decade"), common_name("h2o-box")
    ('face-decade', 'h#o-box')
    """
    return _REPEATED.sub("#", _VARYING.sub("#", name.strip()))


def plain_name(name: str) -> str:
    """Return what a program may be called in a file's name, and typed.

    >>> plain_name("train_#"), plain_name("#"), plain_name("md/equil (#)")
    ('train', 'program', 'md-equil')
    """
    return re.sub(r"[^\w.]+|[-_.]*#[-_.]*", "-", name).strip("-._")[:60] or "program"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """Runs of one program.

    Attributes:
        runs: The runs, oldest first.
        uses: What each used.
        former: Runs of before it changed, oldest first: it used something else then.
    """

    runs: tuple[PastRun, ...]
    uses: FloatArray
    former: tuple[PastRun, ...] = ()


def tell_apart(runs: Sequence[PastRun]) -> tuple[list[Kind], list[PastRun]]:
    """Return the programs among runs that share a name, and the runs that are like no others.

    Two uses that come by turns are two programs. Where all runs of one come before all of another,
    it is one program that has changed.
    """
    ordered = sorted(runs, key=lambda each: (each.start, each.run.id))
    uses = np.stack([use_of(each.run) for each in ordered])
    labels = clustered(distances(uses))
    members = [np.flatnonzero(labels == label) for label in dict.fromkeys(labels.tolist())]
    largest = max(members, key=lambda places: (places.size, places[-1]))
    kinds = [places for places in members if places.size >= LEAST_KIND or places is largest]
    taken = {place for places in kinds for place in places.tolist()}
    # What begins after the last of a kind has taken its place.
    heirs: dict[int, list[int]] = {}
    for number, places in enumerate(kinds):
        later = [each for each, other in enumerate(kinds) if other[0] > places[-1]]
        if later:
            heirs.setdefault(min(later, key=lambda each: kinds[each][0]), []).append(number)
    superseded = {number for numbers in heirs.values() for number in numbers}

    def before(number: int) -> list[int]:
        return [
            place
            for heir in heirs.get(number, ())
            for place in (*before(heir), *kinds[heir].tolist())
        ]

    found = [
        Kind(
            runs=tuple(ordered[place] for place in places),
            uses=uses[places],
            former=tuple(ordered[place] for place in sorted(before(number))),
        )
        for number, places in enumerate(kinds)
        if number not in superseded
    ]
    return found, [each for place, each in enumerate(ordered) if place not in taken]
