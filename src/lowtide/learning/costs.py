"""What stopping and starting again cost in experiments, beside runs that nobody stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.learning.intervals import Welch, welch
from lowtide.recording import Run, pairs

# From how many joules on a unit is used, what it is, and how many digits follow the point. Half a
# unit is enough, so that costs of about a kilojoule are all told in it.
_UNITS = ((5e5, 1e6, "MJ", 2), (5e2, 1e3, "kJ", 2), (0.0, 1.0, "J", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Energy that one way of running takes beyond another.

    Attributes:
        what: What it is the cost of, as the subject of a sentence.
        energy_j: The difference of the means, with its interval and test.
    """

    what: str
    energy_j: Welch

    def __str__(self) -> str:
        test = self.energy_j
        if test.half is None or test.t is None or test.freedom is None or test.p is None:
            low, high = sorted(test.counts)
            return (
                f"{self.what} costs {format_joules(test.difference)}; no interval, since {low} and "
                f"{high} values do not tell how much it varies"
            )
        chance = "p < 0.0001" if test.p < 1e-4 else f"p = {test.p:.2g}"
        return (
            f"{self.what} costs {format_joules(test.difference, test.half)} "
            f"(Welch's t = {test.t:.1f}, {test.freedom:.1f} degrees of freedom, {chance})"
        )


def stopping_costs(runs: Sequence[Run], *, level: float = 0.95) -> list[Cost]:
    """Return what an extra start and what lost work cost, as far as recordings tell."""

    def energies_j(kind: str) -> list[float]:
        return [
            first.energy_j() + second.energy_j()
            for first, second in pairs(runs, kind)
            if not (first.gaps or second.gaps)
        ]

    full = [run.energy_j() for run in runs if run.kind == "full" and not run.gaps]
    stopped, killed = energies_j("stop"), energies_j("kill")
    found = []
    for what, dearer, cheaper in (
        ("an extra start", stopped, full),
        ("being killed, with its extra start and lost work,", killed, full),
        ("losing work to a kill, rather than stopping at a checkpoint,", killed, stopped),
    ):
        if dearer and cheaper:
            found.append(Cost(what=what, energy_j=welch(dearer, cheaper, level=level)))
    return found


def format_joules(energy_j: float, half_j: float | None = None) -> str:
    """Return energy in J, kJ or MJ, whichever suits it, with its interval in the same.

    >>> format_joules(970.0, 70.0), format_joules(-38.21, 51.0), format_joules(25_670_000.0)
    ('0.97 ± 0.07 kJ', '-38.2 ± 51.0 J', '25.67 MJ')
    """
    most_j = max(abs(energy_j), half_j or 0.0)
    _, size, unit, digits = next(each for each in _UNITS if most_j >= each[0])
    half = "" if half_j is None else f" ± {half_j / size:.{digits}f}"
    return f"{energy_j / size:.{digits}f}{half} {unit}"
