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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput, UnknownName
from lowtide.signal import FloatArray

# Lentz's continued fraction for the incomplete beta function converges in O(√max(a, b)) terms.
_TERMS = 10_000
_TINY = 1e-300
_PRECISION = 1e-15
# Smaller than this, relative to the whole, a direction or a residual is nothing but rounding.
_ROUNDING = 1e-12
# Resamples are drawn in batches of about so many numbers, which bounds the memory.
_BATCH = 1_000_000
# Up to so many pairs every assignment of signs is counted; the normal curve is close beyond.
_COUNTED = 80
# A series is cut into no fewer blocks than this, or nothing could be said of how they vary.
_LEAST_BLOCKS = 5
_NORMAL = NormalDist()

METHODS = ("bca", "percentile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A number drawn from a sample, and between which bounds it is believed to lie.

    Attributes:
        value: The number.
        low: The lower bound, None where the sample is too small to tell.
        high: The upper bound, likewise.
        count: How many observations the sample has.
    """

    value: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """What became of the same cases under two treatments.

    Attributes:
        difference: The mean of the first less the second, with its interval.
        higher: In how many cases the first is higher.
        lower: In how many it is lower.
        p: Probability of so lopsided ranks if the sign of each difference were a toss of a coin;
            None where nothing differs.
    """

    difference: Interval
    higher: int
    lower: int
    p: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one term of an analysis of variance explains.

    Attributes:
        name: The factor, or factors joined by ` × `, or `residual`.
        squares: Sum of squares.
        freedom: Degrees of freedom.
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


def _mean(values: FloatArray) -> FloatArray:
    mean: FloatArray = values.mean(axis=-1)
    return mean


def bootstrap(
    values: npt.ArrayLike,
    *,
    statistic: Callable[[FloatArray], FloatArray] = _mean,
    method: str = "bca",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return a statistic of a sample and its bootstrap interval.

    Args:
        values: The sample.
        statistic: What is computed along the last axis; the mean unless another is given.
        method: `percentile`, or `bca`, which corrects for bias and skewness (Efron 1987).
        level: How often such intervals hold the true value.
        resamples: How many samples are drawn from the sample.
        seed: Which ones.

    >>> interval = bootstrap([3.0, 5.0, 4.0, 6.0, 2.0, 4.0])
    >>> interval.value, round(interval.low, 1), round(interval.high, 1)
    (4.0, 3.0, 5.0)
    """
    sample = _finite(values, "a bootstrap", least=1)
    if method not in METHODS:
        raise UnknownName("method of the bootstrap", method, METHODS)
    if not (0 < level < 1 and resamples >= 1):
        raise InvalidInput(
            f"an interval has a level between 0 and 1 and at least one resample, "
            f"unlike {level} and {resamples}"
        )
    value = float(statistic(sample))
    if sample.size < 2:
        return Interval(value=value, low=None, high=None, count=sample.size)
    draws = np.concatenate(list(_resampled(sample, statistic, resamples, seed)))
    tails = [(1 - level) / 2, (1 + level) / 2]
    if method == "bca" and np.ptp(draws) > 0:
        tails = _corrected(tails, sample, statistic, draws, value)
    low, high = np.quantile(draws, tails)
    return Interval(value=value, low=float(low), high=float(high), count=sample.size)


def block_bootstrap(
    values: npt.ArrayLike,
    *,
    length: int | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the mean of numbers that follow each other in time, and its interval.

    Neighbours in time are alike, so they are drawn together, in blocks that go round from the end
    to the beginning (Politis and Romano 1992). Two corrections keep the interval from being too
    narrow: Student's t for how few blocks there are, and what blocks cut off of the likeness of
    neighbours, as if it fell off geometrically.

    Args:
        values: The numbers, in order of time.
        length: How many make a block: 1 where they are independent. Unless told, as long as the
            likeness of neighbours asks for (Carlstein 1986).
        level: How often such intervals hold the true mean.
        resamples: How many samples are drawn.
        seed: Which ones.

    >>> interval = block_bootstrap([3.0, 5.0, 4.0, 6.0, 2.0, 4.0], length=1)
    >>> interval.value, round(interval.low, 1), round(interval.high, 1)
    (4.0, 2.6, 5.4)
    """
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
        return Interval(value=value, low=None, high=None, count=count)
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate((sample, sample)) - value)))
    lengths = np.full(math.ceil(blocks), length)
    lengths[-1] = count - lengths[:-1].sum()
    begin = np.random.default_rng(seed).integers(0, count, size=(resamples, lengths.size))
    draws = (sums[begin + lengths] - sums[begin]).sum(axis=1) / count
    cut_off = 2 * likeness * (1 - likeness**length) / (length * (1 - likeness**2))
    wider = _student(level, blocks - 1) / _NORMAL.inv_cdf((1 + level) / 2)
    wider *= math.sqrt(blocks / (blocks - 1) / (1 - cut_off))
    low, high = value + wider * np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value=value, low=float(low), high=float(high), count=count)


def compare_pairs(
    first: npt.ArrayLike, second: npt.ArrayLike, *, level: float = 0.95, seed: int = 0
) -> Paired:
    """Compare two treatments of the same cases.

    Args:
        first: The outcome of each case under one treatment.
        second: The outcome of the same cases, in the same order, under the other.
        level: Level of the interval of the mean difference.
        seed: Which resamples are drawn.

    >>> pairs = compare_pairs([5.0, 7.0, 6.0, 9.0], [4.0, 5.0, 3.0, 5.0])
    >>> pairs.difference.value, pairs.higher, pairs.p
    (2.5, 4, 0.125)
    """
    ours = _finite(first, "a paired comparison", least=1)
    theirs = _finite(second, "a paired comparison", least=1)
    if ours.size != theirs.size:
        raise InvalidInput(f"pairs come in twos, unlike {ours.size} and {theirs.size} outcomes")
    differences = _without_rounding(ours - theirs, max(np.abs(ours).max(), np.abs(theirs).max()))
    return Paired(
        difference=bootstrap(differences, level=level, seed=seed),
        higher=int((differences > 0).sum()),
        lower=int((differences < 0).sum()),
        p=signed_rank(differences),
    )


def signed_rank(differences: npt.ArrayLike) -> float | None:
    """Return the two-sided p value of Wilcoxon's signed-rank test; None where all are 0.

    Differences of 0 are left out and equal ones share their rank. Up to 80 differences the value
    is exact, ties included; beyond that it is the normal curve's, corrected for ties.

    Args:
        differences: One number per pair.

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

    Args:
        p_values: One per comparison.

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

    Args:
        factors: The level of each observation, by factor.

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
        outcome: One number per observation.
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
        above: Degrees of freedom of the numerator.
        below: Degrees of freedom of the denominator.

    >>> round(f_tail(4.0, 1, 60), 4)
    0.05
    """
    if not (f >= 0 and above > 0 and below > 0):
        raise InvalidInput(
            f"an F value is 0 or more and degrees of freedom are positive, "
            f"unlike {f}, {above} and {below}"
        )
    return incomplete_beta(below / (below + above * f), below / 2, above / 2)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b).

    Args:
        x: From 0 to 1.
        a: First shape, more than 0.
        b: Second shape, more than 0.

    >>> round(incomplete_beta(0.25, 2.0, 3.0), 12)
    0.26171875
    """
    if not (0 <= x <= 1 and a > 0 and b > 0):
        raise InvalidInput(
            f"I_x(a, b) takes 0 ≤ x ≤ 1 and positive shapes, unlike x={x}, a={a}, b={b}"
        )
    if x in (0, 1):
        return float(x)
    # The fraction converges fast on this side of the mean only; the other is its mirror image.
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    scale = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    scale += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(scale) * _fraction(x, a, b)


def _finite(values: npt.ArrayLike, what: str, *, least: int) -> FloatArray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size < least or not np.isfinite(numbers).all():
        count = {1: "one finite number", 2: "two finite numbers"}[least]
        raise InvalidInput(f"{what} needs at least {count}")
    return numbers


def _resampled(
    sample: FloatArray,
    statistic: Callable[[FloatArray], FloatArray],
    resamples: int,
    seed: int,
) -> Iterator[FloatArray]:
    rng = np.random.default_rng(seed)
    rows = max(_BATCH // sample.size, 1)
    for begin in range(0, resamples, rows):
        count = min(rows, resamples - begin)
        yield statistic(sample[rng.integers(0, sample.size, size=(count, sample.size))])


def _corrected(
    tails: Sequence[float],
    sample: FloatArray,
    statistic: Callable[[FloatArray], FloatArray],
    draws: FloatArray,
    value: float,
) -> list[float]:
    """Return the quantiles to read off instead, given how far draws lie off and lean."""
    below = float((draws < value).mean() + (draws == value).mean() / 2)
    # A statistic beyond all its resamples would be infinitely far off.
    bias = _NORMAL.inv_cdf(min(max(below, 0.5 / draws.size), 1 - 0.5 / draws.size))
    if statistic is _mean:
        left_out = (sample.sum() - sample) / (sample.size - 1)
    else:
        places = np.arange(sample.size)
        left_out = np.array([statistic(sample[places != place]) for place in places])
    offset = left_out.mean() - left_out
    spread = float((offset**2).sum()) ** 1.5
    lean = float((offset**3).sum()) / (6 * spread) if spread else 0.0
    moved = []
    for tail in tails:
        step = bias + _NORMAL.inv_cdf(tail)
        moved.append(_NORMAL.cdf(bias + step / (1 - lean * step)))
    return moved


def _likeness(sample: FloatArray) -> float:
    """Return how alike neighbours are, from 0 to 0.9: their correlation, corrected for its bias."""
    offset = sample - sample.mean()
    spread = float(offset @ offset)
    if not spread:
        return 0.0
    found = float(offset[1:] @ offset[:-1]) / spread
    return min(max(found + (1 + 3 * found) / sample.size, 0.0), 0.9)


def _student(level: float, freedom: float) -> float:
    """Return the number that Student's t stays within so often, whatever its sign."""
    low, high = 0.0, 1.0
    while f_tail(high * high, 1, freedom) > 1 - level:
        high *= 2
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if f_tail(middle * middle, 1, freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return high


def _ranks(sizes: FloatArray) -> FloatArray:
    """Return ranks from 1, equal numbers sharing the mean of theirs."""
    _, place, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: FloatArray = (last - (counts - 1) / 2)[place]
    return ranks


def _without_rounding(differences: FloatArray, scale: float) -> FloatArray:
    """Return differences with what is rounding alone as 0, and equal ones truly equal."""
    if not scale:
        return differences
    # A power of two, so that rounding to its multiples adds no rounding of its own.
    digit = 2.0 ** math.floor(math.log2(_ROUNDING * scale))
    cleaned: FloatArray = np.rint(differences / digit) * digit
    return cleaned


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate 1/(1 + d₁/(1 + d₂/(1 + …))) from the front."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1.0 + coefficient * d
            c = 1.0 + coefficient / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return value


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
