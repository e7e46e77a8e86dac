"""Analysis of variance: how much of an outcome each factor of an experiment explains.

Sums of squares are sequential (type I): each term is charged with what it explains beyond the
terms before it. In a balanced design, where every combination of levels occurs equally often, the
order makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.errors import InvalidInput
from lowtide.signal import FloatArray

# Lentz's continued fraction for the incomplete beta function converges in O(√max(a, b)) terms.
_TERMS = 10_000
_TINY = 1e-300
_PRECISION = 1e-15
# Smaller than this, relative to the whole, a direction or a residual is nothing but rounding.
_ROUNDING = 1e-12


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
    values = np.asarray(outcome, dtype=np.float64)
    if values.ndim != 1 or values.size < 2 or not np.isfinite(values).all():
        raise InvalidInput("an analysis of variance needs at least two finite numbers")
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
