"""WattTime v3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import FormatError
from lowtide.formats import read_signal


def put(folder: Path, **meta: Any) -> Path:
    points = [
        {"point_time": f"2024-07-01T00:0{5 * i}:00+00:00", "value": 1000.0 + i} for i in range(2)
    ]
    path = folder / "a.json"
    path.write_text(json.dumps({"data": points, "meta": meta}))
    return path


def test_pounds_become_grams(tmp_path: Path) -> None:
    signal = read_signal(
        put(tmp_path, region="CAISO_NORTH", signal_type="co2_moer", units="lbs_co2_per_mwh")
    )
    assert signal.values[0] == pytest.approx(453.59237)
    assert (signal.kind, signal.basis, signal.zone) == ("marginal", "direct", "CAISO_NORTH")
    assert (signal.step_s, signal.source) == (300.0, "WattTime co2_moer, a.json")


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="'health_damage' is no carbon intensity"):
        read_signal(put(tmp_path, signal_type="health_damage", units="x"))
    with pytest.raises(FormatError, match="say unit='lb/MWh'"):
        read_signal(put(tmp_path))
    assert read_signal(put(tmp_path), unit="lb/MWh").values[0] == pytest.approx(453.59237)
    other = tmp_path / "b.json"
    other.write_text("{}")
    with pytest.raises(FormatError, match="not from WattTime"):
        read_signal(other, format="watttime")
