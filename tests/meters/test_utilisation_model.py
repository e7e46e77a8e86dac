"""Power models as files: what they say, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import FormatError, InvalidInput
from lowtide.meters.power_model import (
    Band,
    Curve,
    Curves,
    Feature,
    Linear,
    Network,
    Tree,
    Trees,
    UtilisationModel,
)

ONE = (Feature(name="cpu", low=0.0, high=1.0),)
FORMS = {
    "curves": Curves(
        base_w=10.0, curves=(Curve(feature=0, at=(0.0, 0.5, 1.0), power_w=(40.0, 90.0, 100.0)),)
    ),
    "linear": Linear(base_w=50.0, per_unit_w=(120.0,)),
    "trees": Trees(
        base_w=100.0,
        trees=(
            Tree(
                feature=(0, -1, -1),
                threshold=(0.5, 0.0, 0.0),
                left=(1, 0, 0),
                right=(2, 0, 0),
                power_w=(0.0, -20.0, 30.0),
            ),
        ),
    ),
    "network": Network(
        centre=(0.5,),
        scale=(0.25,),
        weights=(((1.0, -1.0),), ((0.5,), (0.25,))),
        biases=((0.1, 0.2), (0.3,)),
        base_w=100.0,
        scale_w=40.0,
    ),
}
# By hand: the network has tanh(2.1) / 2 + tanh(-1.8) / 4 + 0.3 at a use of 1.
AT_ONE = {
    "curves": 110.0,
    "linear": 170.0,
    "trees": 130.0,
    "network": 100 + 40 * (0.5 * math.tanh(2.1) + 0.25 * math.tanh(-1.8) + 0.3),
}


def model_of(kind: str) -> UtilisationModel:
    return UtilisationModel(
        features=ONE,
        form=FORMS[kind],
        source="by hand",
        band=Band(half_w=12.5, level=0.9, runs=9),
        average_s=1.0,
        about={"rung": kind},
    )


@pytest.mark.parametrize("kind", FORMS)
def test_a_model_is_the_same_after_a_round_trip(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    model.dump(tmp_path / "a.json")
    again = UtilisationModel.load(tmp_path / "a.json")
    assert again == model
    again.dump(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert again.at({"cpu": 1.0}).power_w == pytest.approx(AT_ONE[kind], abs=1e-12)


@given(st.floats(-1, 2))
def test_curves_are_straight_between_points_and_level_beyond(share: float) -> None:
    said = UtilisationModel.points((0.0, 0.5, 1.0), (50.0, 150.0, 180.0), source="x")
    inside = min(max(share, 0.0), 1.0)
    wanted = 50 + 200 * inside if inside <= 0.5 else 150 + 60 * (inside - 0.5)
    assert said.at({"cpu": share}).power_w == pytest.approx(wanted)


def test_an_estimate_has_its_interval_and_says_where_it_guesses() -> None:
    model = model_of("linear")
    inside = model.at({"cpu": 0.5})
    assert (inside.low_w, inside.power_w, inside.high_w) == (97.5, 110.0, 122.5)
    assert inside.outside == ()
    assert model.at({"cpu": 1.005}).outside == (), "within rounding of the range"
    assert "cpu is above the 0 to 1" in model.at({"cpu": 1.2}).outside[0]
    assert "cpu is below" in model.at({"cpu": -0.2}).outside[0]
    assert model.at({"cpu": -1.0}).power_w == 0.0, "nothing draws less than no power"
    assert math.isnan(replace(model, band=None).at({"cpu": 0.5}).low_w)
    assert math.isnan(model.at({"cpu": math.nan}).power_w)
    assert math.isnan(model.at({}).power_w)


def test_a_generic_model_grows_with_the_cpus() -> None:
    small, large = UtilisationModel.generic(2), UtilisationModel.generic(64)
    for share in (0.0, 0.3, 1.0):
        use = {"cpu": share}
        assert large.at(use).power_w == pytest.approx(32 * small.at(use).power_w)


@pytest.mark.parametrize(
    ("share", "power_w"), [((0.0,), (5.0,)), ((1.0, 0.0), (5.0, 6.0)), ((0.0, 1.2), (5.0, 6.0))]
)
def test_points_make_sense(share: tuple[float, ...], power_w: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInput, match="rising within 0 and 1"):
        UtilisationModel.points(share, power_w, source="x")


def damaged(kind: str, **changes: Any) -> str:
    document = model_of(kind).document()
    for path, value in changes.items():
        *way, last = path.split("__")
        place = document
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not JSON", "this is no JSON"),
        ("[1]", "this is no utilisation model"),
        (json.dumps({"share": [0, 1], "power_w": [60, 250]}), "lowtide model"),
        (damaged("linear", version=9), "version 9, and this lowtide reads 1"),
        (damaged("linear", form={"kind": "magic"}), "unknown kind 'magic'"),
        (damaged("linear", form__per_unit_w=[1.0, 2.0]), "one weight per feature"),
        (damaged("linear", form__per_unit_w=[math.inf]), "finite numbers"),
        (damaged("linear", band={"half_w": 1}), "damaged"),
        (damaged("curves", form__curves__0__at=[0.0, 0.0, 1.0]), "points that rise"),
        (damaged("curves", form__curves__0__feature=1), "a feature there is"),
        (damaged("trees", form__trees__0__left=[0, 0, 0]), "children behind their parent"),
        (damaged("trees", form__trees__0__feature=[3, -1, -1]), "features there are"),
        (damaged("trees", form__trees__0__power_w=[1.0]), "arrays of one length"),
        (damaged("network", form__biases=[[0.1], [0.3]]), "layers that fit together"),
        (damaged("network", form__scale=[0.0]), "scales other than 0"),
    ],
)
def test_damaged_models_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        UtilisationModel.load(path)


def test_a_model_is_a_json_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"a utilisation model is a \.json file"):
        model_of("linear").dump(tmp_path / "model.pkl")
