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
from lowtide.learning.intervals import quantile
from lowtide.learning.learned import Learned, profile_document
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import FloatArray
from lowtide.units import format_count

# Laws, the simpler first. Most are sums of what is proportional to a quantity of the size, or to
# its inverse, and of two quantities to their product as well. A power law may lie above a constant.
LAWS = ("linear", "inverse", "power law", "linear and inverse", "constant and power law")
CROSSED = tuple(f"{one} × {other}" for one in LAWS[:2] for other in LAWS[:2])
# What energy may be instead: how long a run takes, times what it draws on average.
PRODUCT = "duration times power"
# The constants that are tried, as shares of the least value, and then how much nearer to the best.
_CONSTANTS = np.linspace(0.0, 0.98, 15)
# How far off a law may be on sizes left out, beside a simpler one: with as many factors, with more,
# and with so many that it meets all sizes but the one left out, whatever they came to.
_CLEARLY, _BY_HALF, _BY_FAR = 0.9, 0.5, 0.25
# A product of two quantities has four factors: so many sizes tell it from laws that have fewer.
_ENOUGH_CROSSED = 7
# Within the band of a law lies what it says of another size so often, if errors are normal.
_LEVEL = 0.9
# So much more of the band beyond what was measured, for each time that the range is gone again.
_WIDER = 3.0


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
        kind: One of `LAWS`, of two quantities of `CROSSED` as well, or `PRODUCT`.
        factors: The constant, and what each quantity of the size is multiplied by or raised to; of
            a constant and a power law the constant above which it holds comes first.
        parts: What is multiplied, of a product.
        left_out: What the others said of each size, in the order of the sizes.
        error: How far off that was, on average, as a share.
        worst: How far off at most.
        rms: The root of the mean square of that.
        freedom: How many degrees of freedom its errors have.
        rivals: Other laws that are not further off than its band is wide: who is right, these sizes
            do not tell.
    """

    kind: str
    factors: tuple[float, ...]
    left_out: tuple[float, ...]
    error: float
    worst: float
    rms: float
    freedom: int
    parts: tuple[Law, ...] = ()
    rivals: tuple[Law, ...] = ()

    def value(self, size: Sequence[float]) -> float:
        """Return what it says of a size."""
        if self.parts:
            return math.prod(part.value(size) for part in self.parts)
        return float(_said(np.array([size]), np.array(self.factors), self.kind)[0])

    @property
    def half(self) -> float:
        """Half the width of its band within what was measured, as a share of what it says.

        By Student's t, as sizes are few: the worst of four errors would be exceeded by every fifth.
        """
        return quantile(_LEVEL, self.freedom) * self.rms

    def apart(self, size: Sequence[float]) -> float:
        """Return how far from it the furthest of its rivals is at a size, as a share."""
        value = self.value(size)
        others = [rival.value(size) for rival in self.rivals]
        return max((abs(each / value - 1) for each in others if math.isfinite(each)), default=0.0)

    def text(self, names: Sequence[str], unit: str) -> str:
        """Return it as a formula."""
        if self.parts:
            units = zip(self.parts, ("s", "W"), strict=True)
            return " × ".join(f"({part.text(names, each)})" for part, each in units)
        first, *rest = self.factors
        if self.kind.endswith("power law"):
            above = ""
            if self.kind != "power law":
                above, first, rest = f"{first:.4g} {unit} + ", rest[0], rest[1:]
            parts = "".join(f" × {name}^{each:.3g}" for name, each in zip(names, rest, strict=True))
            return f"{above}{math.exp(first):.4g} {unit}{parts}"
        parts = ""
        for each, powers in zip(rest, _powers(self.kind, len(names)), strict=True):
            named = list(zip(names, powers, strict=True))
            parts += f" {'-' if each < 0 else '+'} {abs(each):.4g} {unit}"
            parts += "".join(f" × {name}" for name, power in named if power > 0)
            parts += "".join(f" / {name}" for name, power in named if power < 0)
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
        half = value * math.hypot(law.half * (1 + _WIDER * beyond), law.apart(size))
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

    @property
    def untried(self) -> str | None:
        """What there are too few sizes for, None where there are enough."""
        there = len({each.size for each in self.sized})
        if len(self.names) != 2 or there >= _ENOUGH_CROSSED:
            return None
        one, other = self.names
        return (
            f"{format_count(there, 'size')} hardly tell whether what {one} adds depends on "
            f"{other}: measure {_ENOUGH_CROSSED} or more, some of which differ in one alone"
        )

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
    energies_j = np.array([each.energy_j for each in sized])
    durations_s = np.array([each.duration_s for each in sized])
    duration_s = _fit(sizes, durations_s, names)
    power_w = _fit(sizes, energies_j / durations_s, names)
    product = _law(
        PRODUCT,
        np.array(duration_s.left_out) * np.array(power_w.left_out),
        energies_j,
        min(duration_s.freedom, power_w.freedom),
        parts=(duration_s, power_w),
    )
    return Scaling(
        names=tuple(names),
        sized=tuple(sized),
        energy_j=_with_rivals([*_fitted(sizes, energies_j, names), product]),
        duration_s=duration_s,
    )


def _fit(sizes: FloatArray, values: FloatArray, names: Sequence[str]) -> Law:
    """Return the law that is nearest to sizes it has not seen."""
    return _with_rivals(_fitted(sizes, values, names))


def _fitted(sizes: FloatArray, values: FloatArray, names: Sequence[str]) -> list[Law]:
    """Return all laws that can be tried on every size, the simpler first."""
    found = []
    for kind in (*LAWS, *(CROSSED if len(names) == 2 else ())):
        left_out = np.full(values.size, np.nan)
        for own in {tuple(size) for size in sizes.tolist()}:
            is_out = (sizes == np.array(own)).all(axis=1)
            factors = _factors(sizes[~is_out], values[~is_out], kind)
            if factors is not None:
                left_out[is_out] = _said(sizes[is_out], factors, kind)
        factors = _factors(sizes, values, kind)
        if factors is not None and np.isfinite(left_out).all():
            # More factors meet sizes by chance, and so does one of many laws of two quantities.
            lost = factors.size - (len(names) == 1)
            freedom = max(len(np.unique(sizes, axis=0)) - lost, 1)
            found.append(_law(kind, left_out, values, freedom, factors=tuple(factors.tolist())))
    if not found:
        raise InvalidInput(_why_untold(sizes, names))
    return found


def _why_untold(sizes: FloatArray, names: Sequence[str]) -> str:
    """Return why no law can be tried on every size: what the others do not tell without one."""

    def tell_each(some: FloatArray) -> bool:
        return bool(np.linalg.matrix_rank(_terms(some, LAWS[0])) > len(names))

    different = np.unique(sizes, axis=0)
    for number, size in enumerate(different.tolist() if tell_each(different) else ()):
        others = np.delete(different, number, axis=0)
        if not tell_each(others):
            told = ", ".join(f"{name}={each:g}" for name, each in zip(names, size, strict=True))
            same = [name for name, each in zip(names, others.T, strict=True) if np.ptp(each) == 0]
            why = f"{same[0]} is the same" if same else f"{' and '.join(names)} change together"
            return (
                f"no law can be tried on {told} by leaving it out: in all others {why}. "
                f"Measure a further size in which {same[0] if same else 'one'} alone differs"
            )
    return (
        f"{' and '.join(names)} change together in these runs, so that the part of each cannot "
        "be told: measure sizes in which one alone differs"
    )


def _law(
    kind: str,
    left_out: FloatArray,
    values: FloatArray,
    freedom: int,
    *,
    factors: tuple[float, ...] = (),
    parts: tuple[Law, ...] = (),
) -> Law:
    off = np.abs(left_out / values - 1)
    return Law(
        kind=kind,
        factors=factors,
        left_out=tuple(left_out.tolist()),
        error=float(off.mean()),
        worst=float(off.max()),
        rms=float(np.sqrt(np.square(off).mean())),
        freedom=freedom,
        parts=parts,
    )


def _with_rivals(found: Sequence[Law]) -> Law:
    """Return the simplest law, with the others that may be right instead."""
    best = _simplest(found)
    rivals = (each for each in found if each is not best and each.rms <= best.half)
    return replace(best, rivals=tuple(rivals))


def _simplest(found: Sequence[Law]) -> Law:
    """Return the simplest law, which comes first, unless another is clearly better.

    One with more factors is near by chance, too: it has to be better by more.
    """
    best = found[0]
    for other in found[1:]:
        enough = _CLEARLY
        if len(other.factors) > len(best.factors):
            enough = _BY_HALF if len(other.left_out) > len(other.factors) + 1 else _BY_FAR
        best = other if other.error < enough * best.error else best
    return best


def _powers(kind: str, names: int) -> list[tuple[int, ...]]:
    """Return to which power each quantity is raised in each term of a sum but the constant."""
    signs = [1 if word == "linear" else -1 for word in kind.split() if word in LAWS]
    if "×" in kind:
        return [(signs[0], 0), (0, signs[1]), (signs[0], signs[1])]
    return [
        tuple(sign * (place == own) for place in range(names))
        for sign in signs
        for own in range(names)
    ]


def _terms(sizes: FloatArray, kind: str) -> FloatArray:
    ones = np.ones(len(sizes))
    if kind.endswith("power law"):
        return np.column_stack([ones, np.log(sizes)])
    powers = np.array(_powers(kind, sizes.shape[1]))
    return np.column_stack([ones, np.prod(sizes[:, None, :] ** powers.astype(float), axis=2)])


def _said(sizes: FloatArray, factors: FloatArray, kind: str) -> FloatArray:
    """Return what a law says of sizes."""
    if kind == "constant and power law":
        return np.asarray(factors[0] + np.exp(_terms(sizes, kind) @ factors[1:]))
    made = _terms(sizes, kind) @ factors
    return np.asarray(np.exp(made) if kind == "power law" else made)


def _factors(sizes: FloatArray, values: FloatArray, kind: str) -> FloatArray | None:
    """Return the factors that miss by the least share; None where sizes do not tell them."""
    terms = _terms(sizes, kind)
    if np.linalg.matrix_rank(terms) < terms.shape[1]:
        return None
    if kind != "constant and power law":
        wanted = np.log(values) if kind == "power law" else np.ones(values.size)
        weighed = terms if kind == "power law" else terms / values[:, None]
        return np.asarray(np.linalg.lstsq(weighed, wanted, rcond=None)[0])
    if len(np.unique(sizes, axis=0)) <= terms.shape[1]:
        return None
    best, least, near = np.empty(0), math.inf, 0.0
    shares = _CONSTANTS
    for _ in range(2):
        constants = shares[:, None] * values.min()
        above = values - constants
        # A miss of what lies above the constant is a smaller one of the whole.
        weights = above / values
        powers = np.linalg.pinv(terms * weights[:, :, None]) @ (np.log(above) * weights)[:, :, None]
        said = constants + np.exp(terms @ powers)[:, :, 0]
        misses = np.square(said / values - 1).sum(axis=1)
        place = int(np.argmin(misses))
        if misses[place] < least:
            best = np.concatenate((constants[place], powers[place, :, 0]))
            least, near = float(misses[place]), float(shares[place])
        shares = np.clip(near + (_CONSTANTS - 0.5) * (_CONSTANTS[1] - _CONSTANTS[0]) * 2, 0, 0.98)
    return best


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
