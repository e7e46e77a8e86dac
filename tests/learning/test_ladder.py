"""Every rung: what is saved computes what was fitted, and never falls where it says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.learning.ladder import RUNGS, Rung, library
from lowtide.meters.power_model import Feature, UtilisationModel
from lowtide.signal import FloatArray
from support.machines import convex, interacting, linear, two

NAMES = [rung.name for rung in RUNGS]


def windows(seed: int, features: int, count: int = 240) -> FloatArray:
    return np.random.default_rng(seed).uniform(0.0, 1.0, size=(count, features))


def fitted(rung: Rung, seed: int, features: int) -> tuple[object, FloatArray, FloatArray]:
    use = windows(seed, features)
    truth = {1: convex, 2: interacting, 3: two}[features]
    power_w = truth(use) + 4 * np.random.default_rng(seed + 1).standard_normal(use.shape[0])
    with library():
        return rung.fit(use, power_w, 0), use, power_w


@pytest.mark.parametrize("features", [1, 2, 3])
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_what_is_saved_computes_what_the_library_does(
    rung: Rung, features: int, tmp_path: Path
) -> None:
    found, use, _ = fitted(rung, 7, features)
    names = tuple(f"f{place}" for place in range(features))
    model = UtilisationModel(
        features=tuple(Feature(name=name, low=0.0, high=1.0) for name in names),
        form=found.form,
        source="fitted",
    )
    model.dump(tmp_path / "model.json")
    loaded = UtilisationModel.load(tmp_path / "model.json")
    # Seen and unseen windows, and some beyond the range.
    rows = np.concatenate((use[:50], windows(8, features, 50), 3 * windows(9, features, 50) - 1))
    said = [loaded.form.watts(row) for row in rows.tolist()]
    assert said == pytest.approx(found.predict(rows), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("features", [1, 2, 3])
@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung.monotone], ids=lambda r: r.name)
def test_power_never_falls_as_use_rises(rung: Rung, features: int) -> None:
    # Also where the truth does: with two features it falls when both are busy.
    found, use, _ = fitted(rung, 11, features)
    for place in range(features):
        for row in use[:10]:
            rows = np.repeat(row[None, :], 60, axis=0)
            rows[:, place] = np.linspace(-0.2, 1.2, 60)
            said = np.array([found.form.watts(each) for each in rows.tolist()])
            assert (np.diff(said) >= -1e-9).all()


@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_the_same_seed_gives_the_same_form(rung: Rung) -> None:
    assert fitted(rung, 3, 2)[0].form == fitted(rung, 3, 2)[0].form


def test_ridge_finds_the_weights_of_a_line() -> None:
    use = windows(1, 2)
    with library():
        found = RUNGS[1].fit(use, two(use), 0)
    assert found.form.base_w == pytest.approx(50.0, abs=0.2)
    assert found.form.per_unit_w == pytest.approx((100.0, 60.0), rel=2e-3)


def test_ridge_has_no_weight_below_zero() -> None:
    use = windows(2, 2)
    with library():
        found = RUNGS[1].fit(use, 100 + 50 * use[:, 0] - 30 * use[:, 1], 0)
    assert found.form.per_unit_w[1] == 0.0
    assert found.form.per_unit_w[0] > 40


def test_interpolation_takes_the_feature_that_tells_most() -> None:
    use = windows(3, 3)
    found = RUNGS[0].fit(use, linear(use[:, [2]]), 0)
    (curve,) = found.form.curves
    assert curve.feature == 2
    assert curve.power_w == pytest.approx((60.0, 200.0), abs=2.0)


@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_a_feature_or_a_power_that_does_not_change_is_no_trouble(rung: Rung) -> None:
    use = windows(4, 2)
    use[:, 1] = 0.3
    with library():
        assert np.isfinite(rung.fit(use, linear(use), 0).predict(use)).all()
        level = rung.fit(use, np.full(use.shape[0], 80.0), 0)
    assert level.predict(use) == pytest.approx(np.full(use.shape[0], 80.0), abs=0.1)
