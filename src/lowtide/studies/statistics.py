"""Statistics of experiments: intervals, paired comparisons, analysis of variance.

Intervals come from the bootstrap, so no shape is assumed of what is averaged; what follows each
other in time is drawn in blocks, as neighbours are alike. Pairs are compared by Wilcoxon's signed
ranks. In an analysis of variance sums of squares are sequential (type I):
each term is charged with what it explains beyond the terms before it. In a balanced design, where
every combination of levels occurs equally often, the order makes no difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray

# Smaller than this, relative to the whole, a direction or a residual is nothing but rounding.
_ROUNDING = 1e-12
# Up to so many pairs every assignment of signs is counted; the normal curve is close beyond.
_COUNTED = 80
# A series is cut into no fewer blocks than this, or nothing could be said of how they vary.
_LEAST_BLOCKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A number drawn from a sample, and between which bounds it is believed to lie.

    Attributes:
        low: The lower bound, None where the sample is too small to tell.
        high: The upper bound, likewise.
        count: How many observations the sample has.
    """

    value: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one term of an analysis of variance explains.

    Attributes:
        name: The factor, or factors joined by ` × `, or `residual`.
        f: Mean square over the residual's, None where there is no residual to compare with.
        p: Probability of so large an F if the term had no effect and the residual were noise.
        share: Part of the total sum of squares (η²), None where nothing varies at all.
    """

    name: str
    squares: float
    freedom: int
    f: float | None
    p: float | None
    share: float | None


def block_bootstrap(
    values: npt.ArrayLike,
    *,
    length: int | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Bounded:
    """Return the mean of numbers that follow each other in time, and its interval.

    Neighbours in time are alike, so they are drawn together, in blocks that go round from the end
    to the beginning (Politis and Romano 1992). Two corrections keep the interval from being too
    narrow: Student's t for how few blocks there are, and what blocks cut off of the likeness of
    neighbours, as if it fell off geometrically.

    Args:
        length: How many make a block: 1 where they are independent. Unless told, as long as the
            likeness of neighbours asks for (Carlstein 1986).

    >>> interval = block_bootstrap([3.0, 5.0, 4.0, 6.0, 2.0, 4.0], length=1)
    >>> interval.value, round(interval.low, 1), round(interval.high, 1)
    (4.0, 2.6, 5.4)
    """
    from scipy import special

    sample = _finite(values, "a bootstrap", least=1)
    value, count = float(sample.mean()), sample.size
    likeness = _likeness(sample) if length is None else 0.0
    if length is None:
        wanted = (math.sqrt(6) * likeness / (1 - likeness**2)) ** (2 / 3) * count ** (1 / 3)
        length = int(min(max(math.ceil(wanted), 1), max(count // _LEAST_BLOCKS, 1)))
    if not 1 <= length <= count:
        raise InvalidInput(f"a block has 1 to {count} of {count} numbers, not {length}")
    blocks = count / length
    if blocks < 2:
        return Bounded(value=value, low=None, high=None, count=count)
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate((sample, sample)) - value)))
    lengths = np.full(math.ceil(blocks), length)
    lengths[-1] = count - lengths[:-1].sum()
    begin = np.random.default_rng(seed).integers(0, count, size=(resamples, lengths.size))
    draws = (sums[begin + lengths] - sums[begin]).sum(axis=1) / count
    cut_off = 2 * likeness * (1 - likeness**length) / (length * (1 - likeness**2))
    inside = (1 + level) / 2
    wider = float(special.stdtrit(blocks - 1, inside) / special.ndtri(inside))
    wider *= math.sqrt(blocks / (blocks - 1) / (1 - cut_off))
    low, high = value + wider * np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Bounded(value=value, low=float(low), high=float(high), count=count)


def signed_rank(differences: npt.ArrayLike) -> float | None:
    """Return the two-sided p value of Wilcoxon's signed-rank test; None where all are 0.

    Differences of 0 are left out and equal ones share their rank. Up to 80 differences the value
    is exact, ties included; beyond that it is the normal curve's, corrected for ties.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    given = _finite(differences, "a signed-rank test", least=1)
    given = given[given != 0]
    if not given.size:
        return None
    ranks = _ranks(np.abs(given))
    positive = float(ranks[given > 0].sum())
    if given.size <= _COUNTED:
        # Ranks that are shared end in a half: twice the ranks are whole numbers.
        doubled = np.rint(2 * ranks).astype(np.int64)
        chances = np.zeros(int(doubled.sum()) + 1)
        chances[0] = 1.0
        for rank in doubled.tolist():
            moved = chances[: chances.size - rank] / 2
            chances /= 2
            chances[rank:] += moved
        place = round(2 * positive)
        tail = min(chances[: place + 1].sum(), chances[place:].sum())
        return float(min(1.0, 2 * tail))
    spread = math.sqrt(float((ranks**2).sum()) / 4)
    distance = max(abs(positive - float(ranks.sum()) / 2) - 0.5, 0.0) / spread
    return math.erfc(distance / math.sqrt(2))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for how many there are (Holm 1979); what is None stays so.

    >>> holm([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min((len(known) - rank) * p, 1.0))
        corrected[place] = highest
    return corrected


def is_balanced(factors: Mapping[str, Sequence[object]]) -> bool:
    """Return whether every combination of levels occurs, and all equally often.

    >>> is_balanced({"zone": ["a", "a", "b", "b"], "wait": [1, 2, 1, 2]})
    True
    """
    counts = Counter(zip(*factors.values(), strict=True))
    possible = math.prod(len(set(levels)) for levels in factors.values())
    return len(counts) == possible and len(set(counts.values())) == 1


def anova(
    outcome: npt.ArrayLike,
    factors: Mapping[str, Sequence[object]],
    *,
    interactions: Sequence[tuple[str, ...]] = (),
) -> list[Effect]:
    """Return what each factor explains, in the order given, and last the residual.

    Args:
        factors: The level of each observation, by factor; factors of one level are left out.
        interactions: Combinations of factors that are terms of their own, after all factors.

    >>> crop = [1.0, 2.0, 5.0, 6.0]
    >>> for effect in anova(crop, {"field": ["a", "a", "b", "b"]}):
    ...     print(effect.name, effect.squares, effect.freedom, effect.f)
    field 16.0 1 32.0
    residual 1.0 2 None
    """
    values = _finite(outcome, "an analysis of variance", least=2)
    for name, levels in factors.items():
        if len(levels) != values.size:
            raise InvalidInput(
                f"factor {name!r} has {len(levels)} levels for {values.size} observations"
            )
    coded = {name: _indicators(levels) for name, levels in factors.items()}
    varied = [name for name, columns in coded.items() if columns.shape[1]]
    terms: list[tuple[str, ...]] = [(name,) for name in varied]
    terms += [each for each in interactions if all(name in varied for name in each)]

    # Each term is charged with the part of the outcome along the directions that it adds.
    basis = np.full((values.size, 1), values.size**-0.5)
    rest = values - values.mean()
    total = float(rest @ rest)
    explained: list[tuple[str, float, int]] = []
    for term in terms:
        added = _products([coded[name] for name in term])
        added -= basis @ (basis.T @ added)
        directions, sizes, _ = np.linalg.svd(added, full_matrices=False)
        directions = directions[:, sizes > _ROUNDING * np.sqrt(values.size)]
        along = directions.T @ rest
        rest = rest - directions @ along
        basis = np.hstack([basis, directions])
        explained.append((" × ".join(term), float(along @ along), directions.shape[1]))
    left = float(rest @ rest)
    left = left if left > _ROUNDING * total else 0.0

    rank = basis.shape[1]
    spare = values.size - rank
    noise = left / spare if spare else 0.0
    effects = []
    for name, squares, freedom in explained:
        f = squares / freedom / noise if noise and freedom else None
        effects.append(
            Effect(
                name=name,
                squares=squares,
                freedom=freedom,
                f=f,
                p=None if f is None else f_tail(f, freedom, spare),
                share=squares / total if total else None,
            )
        )
    residual = Effect(
        name="residual",
        squares=left,
        freedom=spare,
        f=None,
        p=None,
        share=left / total if total else None,
    )
    return [*effects, residual]


def f_tail(f: float, above: float, below: float) -> float:
    """Return the probability that an F-distributed number exceeds a value.

    Args:
        f: The value, 0 or more.

    >>> round(f_tail(4.0, 1, 60), 4)
    0.05
    """
    if not (f >= 0 and above > 0 and below > 0):
        raise InvalidInput(
            f"an F value is 0 or more and degrees of freedom are positive, "
            f"unlike {f}, {above} and {below}"
        )
    # Imported where it is needed: most commands do without, and it takes a while.
    from scipy import special

    return float(special.fdtrc(above, below, f))


def _finite(values: npt.ArrayLike, what: str, *, least: int) -> FloatArray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size < least or not np.isfinite(numbers).all():
        count = {1: "one finite number", 2: "two finite numbers"}[least]
        raise InvalidInput(f"{what} needs at least {count}")
    return numbers


def _likeness(sample: FloatArray) -> float:
    """Return how alike neighbours are, from 0 to 0.9: their correlation, corrected for its bias."""
    offset = sample - sample.mean()
    spread = float(offset @ offset)
    if not spread:
        return 0.0
    found = float(offset[1:] @ offset[:-1]) / spread
    return min(max(found + (1 + 3 * found) / sample.size, 0.0), 0.9)


def _ranks(sizes: FloatArray) -> FloatArray:
    """Return ranks from 1, equal numbers sharing the mean of theirs."""
    _, place, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: FloatArray = (last - (counts - 1) / 2)[place]
    return ranks


def _indicators(levels: Sequence[object]) -> FloatArray:
    """Return a column of 0 and 1 for every level but the first."""
    known = list(dict.fromkeys(levels))
    number = {level: place for place, level in enumerate(known)}
    codes = np.array([number[level] for level in levels])
    columns: FloatArray = np.eye(len(known))[codes][:, 1:]
    return columns


def _products(parts: Sequence[FloatArray]) -> FloatArray:
    """Return every product of one column from each part."""
    columns = parts[0]
    for part in parts[1:]:
        columns = (columns[:, :, None] * part[:, None, :]).reshape(columns.shape[0], -1)
    return columns
