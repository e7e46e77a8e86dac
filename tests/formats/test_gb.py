"""The GB Carbon Intensity API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats import read_signal


def record(minute: int, **intensity: float | None) -> dict[str, Any]:
    return {
        "from": f"2018-01-20T12:{minute:02}Z",
        "to": f"2018-01-20T{12 + (minute + 30) // 60}:{(minute + 30) % 60:02}Z",
        "intensity": {**intensity, "index": "moderate"},
    }


def put(folder: Path, document: Any) -> Path:
    path = folder / "a.json"
    path.write_text(json.dumps(document))
    return path


def test_national(tmp_path: Path) -> None:
    both = [record(0, forecast=266, actual=263), record(30, forecast=270, actual=None)]
    path = put(tmp_path, {"data": both})
    with pytest.raises(FormatError, match="record 2: 1 of 2 half-hours have an actual value"):
        read_signal(path)
    signal = read_signal(path, column="forecast")
    assert signal.values.tolist() == [266, 270]
    assert (signal.zone, signal.step_s, signal.basis) == ("GB", 1800.0, "direct")
    assert signal.source == "GB Carbon Intensity forecast, a.json"


@pytest.mark.parametrize("listed", [False, True])
def test_regional(tmp_path: Path, listed: bool) -> None:
    region = {"regionid": 3, "shortname": "North West England", "data": [record(0, forecast=266)]}
    signal = read_signal(put(tmp_path, {"data": [region] if listed else region}))
    assert (signal.values.tolist(), signal.zone) == ([266.0], "North West England")


def test_all_regions(tmp_path: Path) -> None:
    regions = [
        {"regionid": 1, "shortname": "North", "intensity": {"forecast": 1}},
        {"regionid": 2, "shortname": "South", "intensity": {"forecast": 2}},
    ]
    half_hour = {"from": "2018-01-20T12:00Z", "to": "2018-01-20T12:30Z", "regions": regions}
    path = put(tmp_path, {"data": [half_hour]})
    with pytest.raises(InvalidInput, match="holds the regions North, South"):
        read_signal(path)
    assert read_signal(path, zone="South").values.tolist() == [2.0]
    assert read_signal(path, zone="1").values.tolist() == [1.0]


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not from the GB Carbon Intensity API"):
        read_signal(put(tmp_path, {"data": 5}), format="gb")
    backward = record(0, forecast=1) | {"to": "2018-01-20T12:00Z"}
    with pytest.raises(FormatError, match="ends before it begins"):
        read_signal(put(tmp_path, {"data": [backward]}))
    with pytest.raises(FormatError, match="no record has this key"):
        read_signal(put(tmp_path, {"data": [record(0, forecast=1)]}), column="guess")
