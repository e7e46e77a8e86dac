"""Electricity Maps in its four dresses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats import read_signal

RECORDS = [
    {
        "zone": "DE",
        "carbonIntensity": value,
        "datetime": f"2024-07-01T0{hour}:00:00.000Z",
        "emissionFactorType": "direct",
        "isEstimated": hour > 0,
    }
    for hour, value in enumerate([414, 427, None, 450])
]
PORTAL = (
    "Datetime (UTC),Country,Zone {n}ame,Zone {i}d,Carbon {c}ntensity gCO₂eq/kWh (direct),"
    "Carbon {c}ntensity gCO₂eq/kWh ({lca}),Low Carbon Percentage\n"
    "2024-01-01 00:00:00,Germany,Germany,DE,200.5,250.5,60\n"
    "2024-01-01 01:00:00,Germany,Germany,DE,201.5,251.5,61\n"
)
ACADEMIC = (
    "timestamp,zone_datetime,status,zone_name,carbon_intensity_avg,carbon_intensity_unit\n"
    "30,1970-01-01T00:00:00.000Z,ok,SE,1,gCO2eq/kWh\n"
    "7230,1970-01-01T02:00:00.000Z,ok,SE,3,gCO2eq/kWh\n"
    "5400,1970-01-01T01:00:00.000Z,ok,SE,9,gCO2eq/kWh\n"
    "3630,1970-01-01T01:00:00.000Z,ok,SE,2,gCO2eq/kWh\n"
    "7260,1970-01-01T02:00:00.000Z,error,SE,0,gCO2eq/kWh\n"
)


def put(folder: Path, text: str) -> Path:
    path = folder / "DE.dat"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ["history", "forecast", "data"])
def test_json(tmp_path: Path, key: str) -> None:
    path = put(tmp_path, json.dumps({"zone": "DE", key: RECORDS}))
    with pytest.raises(FormatError, match="record 3: 1 of 4 steps are missing"):
        read_signal(path)
    signal = read_signal(path, gaps="hold")
    assert signal.values.tolist() == [414, 427, 427, 450]
    assert (signal.zone, signal.basis, signal.filled) == ("DE", "direct", 1)
    what = "forecast" if key == "forecast" else "history"
    assert signal.source == f"Electricity Maps {what}, DE.dat"
    with pytest.raises(InvalidInput, match="says that its basis is 'direct'"):
        read_signal(path, basis="lifecycle")


def test_latest_alone_has_no_step(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="one value alone"):
        read_signal(put(tmp_path, json.dumps(RECORDS[0])))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"history": [', "line 1: not valid JSON"),
        ("[" * 100_000, "JSON"),
        ('{"history": []}', "no known format"),
        ('{"history": [{"datetime": 5, "carbonIntensity": 1}]}', "record 1: a time is a text"),
        (
            '{"history": [{"datetime": "2024-07-01T00:00Z", "carbonIntensity": "x"}]}',
            "record 1: a value is a number or null",
        ),
        (
            '{"history": [{"datetime": "2024-07-01T00:00Z", "carbonIntensity": 1, "zone": "A"},'
            '{"datetime": "2024-07-01T01:00Z", "carbonIntensity": 1, "zone": "B"}]}',
            "mixes zone A, B",
        ),
    ],
)
def test_bad_json(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_signal(put(tmp_path, text))


def test_forced_on_something_else(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not from Electricity Maps"):
        read_signal(put(tmp_path, "time,intensity\n0,1\n"), format="electricitymaps")


@pytest.mark.parametrize(
    "words",
    [
        {"n": "N", "i": "I", "c": "I", "lca": "LCA"},
        {"n": "n", "i": "i", "c": "i", "lca": "Life cycle"},
    ],
)
def test_portal(tmp_path: Path, words: dict[str, str]) -> None:
    path = put(tmp_path, PORTAL.format(**words))
    signal = read_signal(path)
    assert (signal.values.tolist(), signal.zone) == ([250.5, 251.5], "DE")
    assert (signal.basis, signal.start) == ("lifecycle", 1704067200.0)
    direct = read_signal(path, basis="direct")
    assert (direct.values.tolist(), direct.basis) == ([200.5, 201.5], "direct")
    assert "portal" in direct.source


def test_several_zones(tmp_path: Path) -> None:
    text = PORTAL.format(n="n", i="i", c="i", lca="LCA")
    other = text.split("\n", 1)[1].replace("DE,2", "FR,3")
    path = put(tmp_path, text + other)
    with pytest.raises(InvalidInput, match="holds the zones DE, FR: say zone="):
        read_signal(path)
    assert read_signal(path, zone="FR").values.tolist() == [250.5, 251.5]
    broken = put(tmp_path, text + other.replace("251.5", "-1"))
    with pytest.raises(FormatError, match=r"line 5.*not -1"):
        read_signal(broken, zone="FR")


def test_academic_keeps_the_last_record_of_an_hour(tmp_path: Path) -> None:
    signal = read_signal(put(tmp_path, ACADEMIC))
    assert (signal.values.tolist(), signal.zone, signal.step_s) == ([1, 9, 3], "SE", 3600.0)


def test_academic_of_sweden(data: Callable[[str], Path]) -> None:
    raw = data("carbon-raw/electricitymaps_academic_SE.csv")
    with pytest.raises(FormatError, match="574 of 10184 steps are missing"):
        read_signal(raw)
    signal = read_signal(raw, gaps="hold")
    clean = read_signal(data("carbon/SE.csv"))
    measured = pl.read_csv(data("carbon/SE.csv"))["imputed"].to_numpy() == 0
    assert signal.start == clean.start
    assert np.array_equal(signal.values[measured], clean.values[measured])
    assert signal.filled == np.count_nonzero(~measured) == 574


def test_history_of_germany(data: Callable[[str], Path]) -> None:
    raw = data("carbon-raw/electricitymaps_history_DE-july2024.csv")
    with pytest.raises(FormatError, match=r"line 1938.*96 of 2272 steps.*2024-09-19 16:00 UTC"):
        read_signal(raw)
    signal = read_signal(raw, gaps="interpolate")
    clean = read_signal(data("carbon/DE-july2024.csv"), gaps="interpolate")
    assert np.array_equal(signal.values, clean.values)
    assert (signal.zone, signal.basis, signal.filled) == ("DE", "lifecycle", 96)
    assert signal.source == "Electricity Maps history, electricitymaps_history_DE-july2024.csv"
