"""The ladder of power models, from two numbers to a small network.

Each rung is fitted to windows of use and power, and turned into a form that needs nothing but plain
Python to compute. Use has a row per window and a column per feature. All but the network never fall
as use rises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide.errors import MissingExtra
from lowtide.meters.power_model import Curve, Curves, Form, Linear, Network, Tree, Trees
from lowtide.signal import FloatArray

# The share of windows at either end of use that idle and full power are taken from.
_OUTER = 0.05
# Ridge: the penalty on standardised features, small beside hundreds of windows.
_PENALTY = 0.1
# Curves are fitted in turn until none moves by more than this share of the power's spread.
_SETTLED = 1e-4
_MOST_TURNS = 30
_TREES = 150
_LEAVES = 8
_NEURONS = 8
_DECAY = 0.01
_MOST_STEPS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A rung fitted to some windows.

    Attributes:
        predict: The same for many windows at once, by the library that fitted it.
    """

    form: Form
    predict: Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One kind of model.

    Attributes:
        monotone: Whether its power never falls as use rises.
        fit: Fits it to use, power and a seed.
    """

    name: str
    means: str
    monotone: bool
    fit: Callable[[FloatArray, FloatArray, int], Fitted]


def library() -> AbstractContextManager[Any]:
    """Return a context in which scikit-learn keeps to one thread, so that sums come out the same.

    Raises:
        MissingExtra: Where it is not installed.
    """
    try:
        import sklearn  # noqa: F401 - to see that it is there
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtra("learning a power model", extra="learn") from None
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def fit_interpolation(use: FloatArray, power_w: FloatArray, seed: int) -> Fitted:  # noqa: ARG001
    """Draw a line from idle to full power over the one feature that this suits best."""
    best: tuple[float, Curve] | None = None
    for feature in range(use.shape[1]):
        values = use[:, feature]
        low, high = np.quantile(values, (_OUTER, 1 - _OUTER))
        idle, full = values <= low, values >= high
        begin, end = float(values.min()), float(values.max())
        run = float(values[full].mean() - values[idle].mean())
        rise_w = float(power_w[full].mean() - power_w[idle].mean())
        if end <= begin:
            continue
        slope = max(rise_w / run, 0.0) if run > 0 else 0.0
        level_w = float(power_w[idle].mean() if slope else power_w.mean())
        idle_w = level_w + slope * (begin - float(values[idle].mean()))
        curve = Curve(
            feature=feature, at=(begin, end), power_w=(idle_w, idle_w + slope * (end - begin))
        )
        error = float(np.square(power_w - _along(curve, values)).sum())
        if best is None or error < best[0]:
            best = (error, curve)
    if best is None:
        return _level(float(power_w.mean()))
    chosen = best[1]
    return Fitted(
        form=Curves(base_w=0.0, curves=(chosen,)),
        predict=lambda rows: _along(chosen, rows[:, chosen.feature]),
    )


def fit_ridge(use: FloatArray, power_w: FloatArray, seed: int) -> Fitted:  # noqa: ARG001
    """Fit a weight per feature, none below 0, kept small."""
    from sklearn.linear_model import Ridge

    scale, scale_w = _spread(use), float(power_w.std()) or 1.0
    model = Ridge(alpha=_PENALTY, positive=True, tol=1e-9, max_iter=10_000)
    with _unsettled():
        model.fit(use / scale, power_w / scale_w)
    weights = np.asarray(model.coef_, dtype=np.float64) * scale_w / scale
    return Fitted(
        form=Linear(base_w=scale_w * float(model.intercept_), per_unit_w=tuple(weights.tolist())),
        predict=lambda rows: scale_w * np.asarray(model.predict(rows / scale)),
    )


def fit_curves(use: FloatArray, power_w: FloatArray, seed: int) -> Fitted:  # noqa: ARG001
    """Fit a curve per feature that never falls, each to what the others leave, in turns."""
    from sklearn.isotonic import IsotonicRegression

    base_w = float(power_w.mean())
    parts = np.zeros_like(use)
    models = [IsotonicRegression(out_of_bounds="clip") for _ in range(use.shape[1])]
    offsets = np.zeros(use.shape[1])
    for _ in range(_MOST_TURNS):
        moved = 0.0
        for feature, model in enumerate(models):
            left = power_w - base_w - parts.sum(axis=1) + parts[:, feature]
            drawn = model.fit_transform(use[:, feature], left)
            # Each curve's mean belongs to the base, else two could drift against each other.
            offsets[feature] = drawn.mean()
            new = drawn - offsets[feature]
            moved = max(moved, float(np.abs(new - parts[:, feature]).max()))
            parts[:, feature] = new
        if moved <= _SETTLED * float(power_w.std()) or len(models) == 1:
            break
    curves = tuple(
        Curve(
            feature=feature,
            at=tuple(float(each) for each in model.X_thresholds_),
            power_w=tuple(float(each) for each in model.y_thresholds_ - offsets[feature]),
        )
        for feature, model in enumerate(models)
    )

    def predict(rows: FloatArray) -> FloatArray:
        summed = np.full(rows.shape[0], base_w)
        for feature, model in enumerate(models):
            summed += model.predict(rows[:, feature]) - offsets[feature]
        return summed

    return Fitted(form=Curves(base_w=base_w, curves=curves), predict=predict)


def fit_boosting(use: FloatArray, power_w: FloatArray, seed: int) -> Fitted:
    """Boost small trees that never fall as a feature rises."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_iter=_TREES,
        max_leaf_nodes=_LEAVES,
        min_samples_leaf=int(np.clip(power_w.size // 30, 3, 20)),
        monotonic_cst=[1] * use.shape[1],
        early_stopping=False,
        random_state=seed,
    )
    model.fit(use, power_w)
    trees = []
    # The library has no public way to its trees; a test holds that these compute the same.
    for (grown,) in model._predictors:
        nodes = grown.nodes
        leaf = nodes["is_leaf"].astype(bool)
        trees.append(
            Tree(
                feature=tuple(np.where(leaf, -1, nodes["feature_idx"]).tolist()),
                threshold=tuple(np.where(leaf, 0.0, nodes["num_threshold"]).tolist()),
                left=tuple(np.where(leaf, 0, nodes["left"]).tolist()),
                right=tuple(np.where(leaf, 0, nodes["right"]).tolist()),
                power_w=tuple(np.where(leaf, nodes["value"], 0.0).tolist()),
            )
        )
    base_w = float(np.ravel(model._baseline_prediction)[0])
    return Fitted(
        form=Trees(base_w=base_w, trees=tuple(trees)),
        predict=lambda rows: np.asarray(model.predict(rows)),
    )


def fit_network(use: FloatArray, power_w: FloatArray, seed: int) -> Fitted:
    """Train a network of one small hidden layer."""
    from sklearn.neural_network import MLPRegressor

    centre, scale = use.mean(axis=0), _spread(use)
    base_w, scale_w = float(power_w.mean()), float(power_w.std()) or 1.0
    model = MLPRegressor(
        hidden_layer_sizes=(_NEURONS,),
        activation="tanh",
        solver="lbfgs",
        alpha=_DECAY,
        max_iter=_MOST_STEPS,
        random_state=seed,
    )
    with _unsettled():
        model.fit((use - centre) / scale, (power_w - base_w) / scale_w)
    form = Network(
        centre=tuple(centre.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(tuple(tuple(row) for row in rows.tolist()) for rows in model.coefs_),
        biases=tuple(tuple(each.tolist()) for each in model.intercepts_),
        base_w=base_w,
        scale_w=scale_w,
    )

    def predict(rows: FloatArray) -> FloatArray:
        return base_w + scale_w * np.asarray(model.predict((rows - centre) / scale))

    return Fitted(form=form, predict=predict)


RUNGS: tuple[Rung, ...] = (
    Rung(name="interpolation", means="idle to full power", monotone=True, fit=fit_interpolation),
    Rung(name="ridge", means="non-negative ridge", monotone=True, fit=fit_ridge),
    Rung(name="curves", means="monotone curves, added up", monotone=True, fit=fit_curves),
    Rung(name="boosting", means="monotone boosted trees", monotone=True, fit=fit_boosting),
    Rung(name="network", means="a small network", monotone=False, fit=fit_network),
)


@contextmanager
def _unsettled() -> Iterator[None]:
    """Say nothing of a fit that has not settled: it is judged by runs it has not seen."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _along(curve: Curve, values: FloatArray) -> FloatArray:
    power_w: FloatArray = np.interp(values, curve.at, curve.power_w)
    return power_w


def _level(power_w: float) -> Fitted:
    return Fitted(
        form=Curves(base_w=power_w, curves=()),
        predict=lambda rows: np.full(rows.shape[0], power_w),
    )


def _spread(use: FloatArray) -> FloatArray:
    """Return each feature's standard deviation, 1 where it does not change."""
    spread = use.std(axis=0)
    return np.where(spread > 0, spread, 1.0)
