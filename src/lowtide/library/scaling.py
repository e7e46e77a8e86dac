"""How a program's energy and duration grow with its size, from runs of several sizes.

A law is taken that foretells sizes it has not seen: each size is left out in turn. Beyond the sizes
that were measured it goes on, with a band that widens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.learning.learned import Learned, profile_document
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import FloatArray
from lowtide.units import format_count

# In which terms of the size a law is a sum, the simpler first; a power law is one in logarithms.
LAWS = ("linear", "inverse", "power law")
# So much more of the band beyond what was measured, for each time that the range is gone again.
_WIDER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sized:
    """Runs of one size.

    Attributes:
        name: Where they are from.
        size: How large, one number for each quantity.
    """

    name: str
    size: tuple[float, ...]
    learned: Learned

    @property
    def energy_j(self) -> float:
        """What a run draws."""
        return self.learned.profile.energy_j

    @property
    def duration_s(self) -> float:
        """How long it takes."""
        return self.learned.profile.run_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """How one quantity grows with size.

    Attributes:
        kind: One of `LAWS`.
        factors: The constant, and what each quantity of the size is multiplied by or raised to.
        left_out: What the others said of each size, in the order of the sizes.
        error: How far off that was, on average, as a share.
        worst: How far off at most.
    """

    kind: str
    factors: tuple[float, ...]
    left_out: tuple[float, ...]
    error: float
    worst: float

    def value(self, size: Sequence[float]) -> float:
        """Return what it says of a size."""
        made = float((_terms(np.array([size]), self.kind) @ np.array(self.factors))[0])
        return math.exp(made) if self.kind == "power law" else made

    def text(self, names: Sequence[str], unit: str) -> str:
        """Return it as a formula."""
        first, *rest = self.factors
        if self.kind == "power law":
            parts = "".join(f" × {name}^{each:.3g}" for name, each in zip(names, rest, strict=True))
            return f"{math.exp(first):.4g} {unit}{parts}"
        sign = " / " if self.kind == "inverse" else " × "
        parts = "".join(
            f" {'-' if each < 0 else '+'} {abs(each):.4g} {unit}{sign}{name}"
            for name, each in zip(names, rest, strict=True)
        )
        return f"{first:.4g} {unit}{parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What a law says of a size that may not have been measured.

    Attributes:
        beyond: How far outside of what was measured it lies, in ranges of that; 0 within.
    """

    value: float
    low: float
    high: float
    beyond: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How a program grows.

    Attributes:
        names: What its size is told by.
        sized: The runs of each size.
        energy_j: How its energy does.
        duration_s: How long it takes.
    """

    names: tuple[str, ...]
    sized: tuple[Sized, ...]
    energy_j: Law
    duration_s: Law

    def foretell(self, law: Law, size: Sequence[float]) -> Foretold:
        """Return what a law says of a size, and how sure that is."""
        beyond = self.beyond(size)
        value = law.value(size)
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(
                f"by a {law.kind} law a run of {self.told(size)} would come to {value:.3g}: too "
                "far from what was measured. Measure a size nearer to it"
            )
        half = value * law.worst * (1 + _WIDER * beyond)
        return Foretold(value=value, low=max(value - half, 0.0), high=value + half, beyond=beyond)

    def beyond(self, size: Sequence[float]) -> float:
        """Return how far outside of what was measured a size lies, in ranges of that."""
        far = 0.0
        for place, number in enumerate(size):
            known = [each.size[place] for each in self.sized]
            low, high = min(known), max(known)
            reach = math.log(high / low) or 1.0
            far = max(far, math.log(number / high) / reach, math.log(low / number) / reach)
        return far

    def told(self, size: Sequence[float]) -> str:
        """Return a size in words."""
        return ", ".join(f"{name}={each:g}" for name, each in zip(self.names, size, strict=True))

    def profile(self, size: Sequence[float]) -> PowerProfile:
        """Return the profile of a size: that of the nearest one measured, stretched to fit."""
        energy_j, duration_s = (
            self.foretell(law, size).value for law in (self.energy_j, self.duration_s)
        )
        logs = np.log([each.size for each in self.sized]) - np.log(size)
        nearest = self.sized[int(np.argmin(np.abs(logs).sum(axis=1)))]
        profile = nearest.learned.profile
        if "epochs" in self.names and nearest.learned.epochs is not None:
            epochs = max(round(size[self.names.index("epochs")]), 1)
            profile = PowerProfile.from_dict(profile_document(nearest.learned), epochs=epochs)
        work_s = duration_s - profile.startup_s
        # A startup that would be longer than the run is stretched with the rest.
        apart = work_s > 0
        stretch = work_s / profile.work_s if apart else duration_s / profile.run_s
        longer = [_stretched(phase, stretch, 1.0) for phase in profile.work]
        startup = [_stretched(phase, 1.0 if apart else stretch, 1.0) for phase in profile.startup]
        made = PowerProfile(startup=startup, work=longer)
        more = energy_j / made.energy_j
        return replace(
            profile,
            startup=tuple(_stretched(phase, 1.0, more) for phase in startup),
            work=tuple(_stretched(phase, 1.0, more) for phase in longer),
            spread=None,
        )


def fit_scaling(names: Sequence[str], sized: Sequence[Sized]) -> Scaling:
    """Find how energy and duration grow with size.

    Args:
        names: What sizes are told by.
        sized: Runs of several sizes: two more than there are names, at least.
    """
    sizes = np.array([each.size for each in sized], dtype=np.float64)
    for each in sized:
        if not all(math.isfinite(number) and number > 0 for number in each.size):
            told = ", ".join(f"{n}={v:g}" for n, v in zip(names, each.size, strict=True))
            raise InvalidInput(f"sizes are numbers above 0, and {each.name} has {told}")
    least, there = len(names) + 2, len({each.size for each in sized})
    if there < least:
        raise InvalidInput(
            f"growth by {', '.join(names)} shows in {format_count(least, 'size')} or more, so that "
            f"one can be left out, and there are {there}: measure further sizes"
        )
    for place, name in enumerate(names):
        if np.ptp(sizes[:, place]) == 0:
            raise InvalidInput(
                f"{name} is the same in all runs, and how a program grows with it cannot be told: "
                "measure other sizes, or leave it out of --by"
            )
    return Scaling(
        names=tuple(names),
        sized=tuple(sized),
        energy_j=_fit(sizes, np.array([each.energy_j for each in sized]), names),
        duration_s=_fit(sizes, np.array([each.duration_s for each in sized]), names),
    )


def _fit(sizes: FloatArray, values: FloatArray, names: Sequence[str]) -> Law:
    found = []
    for kind in LAWS:
        left_out = np.full(values.size, np.nan)
        for own in {tuple(size) for size in sizes.tolist()}:
            is_out = (sizes == np.array(own)).all(axis=1)
            factors = _factors(sizes[~is_out], values[~is_out], kind)
            if factors is not None:
                said = _terms(sizes[is_out], kind) @ factors
                left_out[is_out] = np.exp(said) if kind == "power law" else said
        factors = _factors(sizes, values, kind)
        if factors is not None and np.isfinite(left_out).all():
            off = np.abs(left_out / values - 1)
            found.append(
                Law(
                    kind=kind,
                    factors=tuple(factors.tolist()),
                    left_out=tuple(left_out.tolist()),
                    error=float(off.mean()),
                    worst=float(off.max()),
                )
            )
    if not found:
        raise InvalidInput(
            f"{' and '.join(names)} change together in these runs, so that the part of each cannot "
            "be told: measure sizes in which one alone differs"
        )
    # The simpler one, unless another is clearly better.
    best = found[0]
    for other in found[1:]:
        best = other if other.error < 0.9 * best.error else best
    return best


def _terms(sizes: FloatArray, kind: str) -> FloatArray:
    made = {"linear": sizes, "inverse": 1 / sizes, "power law": np.log(sizes)}[kind]
    return np.column_stack([np.ones(len(sizes)), made])


def _factors(sizes: FloatArray, values: FloatArray, kind: str) -> FloatArray | None:
    """Return the factors that miss by the least share; None where sizes do not tell them."""
    terms = _terms(sizes, kind)
    if np.linalg.matrix_rank(terms) < terms.shape[1]:
        return None
    wanted = np.log(values) if kind == "power law" else np.ones(values.size)
    weighed = terms if kind == "power law" else terms / values[:, None]
    return np.asarray(np.linalg.lstsq(weighed, wanted, rcond=None)[0])


def _stretched(phase: Phase, longer: float, more: float) -> Phase:
    return replace(
        phase,
        duration_s=float(f"{phase.duration_s * longer:.6g}"),
        power_w=float(f"{phase.power_w * more:.6g}"),
    )


def read_size(text: str, names: Sequence[str], whose: str) -> tuple[float, ...]:
    """Return a size from `epochs=100,gpus=8`."""
    known = sizes_in(text, whose)
    if missing := [name for name in names if name not in known]:
        raise InvalidInput(f"{whose} lacks {', '.join(missing)}: write {missing[0]}=10, say")
    if others := [name for name in known if name not in names]:
        raise InvalidInput(
            f"{whose} has {others[0]}, which is not in --by: leave it out, or add it"
        )
    if not all(math.isfinite(known[name]) and known[name] > 0 for name in names):
        raise InvalidInput(f"{whose} is told by numbers above 0, not {text!r}")
    return tuple(known[name] for name in names)


def sizes_in(text: str, whose: str) -> Mapping[str, float]:
    """Return the numbers that `epochs=100,gpus=8` says."""
    found = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise InvalidInput(f"{whose} is told as epochs=100,gpus=8, not {text!r}") from None
    return found
