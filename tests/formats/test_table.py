"""Plain tables of signals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import FileProblem, FormatError, InvalidInput, InvalidUnit, UnknownName
from lowtide.formats import read_signal, write_signal
from lowtide.signal import Signal

ZONES = ["AUS-NSW", "CA-ON", "DE", "FR", "GB", "IN-MH", "PL", "SE", "US-CAL-CISO", "US-TEX-ERCO"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "a.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("zone", ZONES)
def test_every_zone_reads(data: Callable[[str], Path], zone: str) -> None:
    signal = read_signal(data(f"carbon/{zone}.csv"))
    assert (signal.step_s, signal.filled, signal.unit) == (3600.0, 0, "g/kWh")
    assert signal.source == f"table, {zone}.csv"


def test_wait_awhile_files(data: Callable[[str], Path]) -> None:
    with pytest.raises(FormatError, match="say tz='UTC'"):
        read_signal(data("carbon-raw/wait-awhile_fr_ci.csv"))
    assert len(read_signal(data("carbon-raw/wait-awhile_fr_ci.csv"), tz="UTC")) == 18574
    german = data("carbon-raw/wait-awhile_ger_ci.csv")
    with pytest.raises(FormatError, match=r"line 35135.*2 of 37149 steps.*2020-12-19 23:15 UTC"):
        read_signal(german, tz="UTC")
    assert read_signal(german, tz="UTC", gaps="hold").filled == 2
    # From 2020-10-31 on this file has quarter hours, before that half hours.
    with pytest.raises(FormatError, match=r"line 15171.*steps of 30 min"):
        read_signal(data("carbon-raw/wait-awhile_gb_ci.csv"), tz="UTC")


@pytest.mark.parametrize(
    ("heading", "options", "value", "unit", "kind"),
    [
        ("carbon_intensity_g_per_kwh", {}, 5.0, "g/kWh", "average"),
        ("Carbon Intensity", {}, 5.0, "g/kWh", "average"),
        ("Carbon intensity [kgCO₂eq/kWh]", {}, 5000.0, "g/kWh", "average"),
        ("intensity", {"unit": "t/MWh"}, 5000.0, "g/kWh", "average"),
        ("MOER lb/MWh", {}, 5 * 0.45359237, "g/kWh", "marginal"),
        ("Carbon Intensity", {"kind": "marginal", "basis": "direct"}, 5.0, "g/kWh", "marginal"),
        ("price_eur_per_mwh", {}, 0.005, "EUR/kWh", "price"),
        ("Price [EUR/MWh]", {}, 0.005, "EUR/kWh", "price"),
        ("Day-ahead price (€/MWh)", {}, 0.005, "EUR/kWh", "price"),
        ("price", {"unit": "GBP/kWh"}, 5.0, "GBP/kWh", "price"),
        ("value", {"column": "value", "unit": "EUR/kWh"}, 5.0, "EUR/kWh", "price"),
        ("value", {"column": "value", "kind": "average"}, 5.0, "g/kWh", "average"),
        ("pue", {}, 5.0, "1", "pue"),
    ],
)
def test_headings(
    write: Callable[[str], Path],
    heading: str,
    options: dict[str, str],
    value: float,
    unit: str,
    kind: str,
) -> None:
    path = write(f"Time,{heading},imputed\n1970-01-01T00:00Z,5,0\n1970-01-01T01:00Z,6,1\n")
    signal = read_signal(path, **options)  # type: ignore[arg-type]
    assert signal.values[0] == pytest.approx(value, rel=1e-12)
    assert (signal.unit, signal.kind, signal.filled) == (unit, kind, 0)


def test_of_two_bases_lifecycle_is_the_default(write: Callable[[str], Path]) -> None:
    path = write("time;intensity (direct);intensity (LCA)\n0;10;20\n60;10;20\n")
    assert read_signal(path).values.tolist() == [20.0, 20.0]
    direct = read_signal(path, basis="direct")
    assert (direct.basis, direct.values.tolist()) == ("direct", [10.0, 10.0])


def test_blank_lines_and_quotes_and_missing_words(write: Callable[[str], Path]) -> None:
    path = write('time,intensity\n0,"10"\n\n60, 20\n120,n/a\n180,40\n')
    with pytest.raises(FormatError, match="line 5, column 'intensity': 1 of 4 steps"):
        read_signal(path)
    assert read_signal(path, gaps="interpolate").values.tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("time,intensity\n0,1\n60,-2\n", {}, "line 3, column 'intensity': .*0 or more, not -2"),
        ("time,intensity\n0,1\n60,inf\n", {}, "line 3.*not inf"),
        ("time,intensity\n0,1\n60,many\n", {}, "line 3, column 'intensity': 'many' is not a num"),
        ("time,intensity\n0,1\n60,2,3\n", {}, "line 3: this line has 3 cells under 2"),
        ("time,intensity\n0,1\n0,2\n", {}, "line 3.*twice"),
        ("time,intensity\n60,1\n0,2\n", {}, "line 3.*sort"),
        ("time,intensity\n", {}, "no row below"),
        ("time,price\n0,1\n60,2\n", {}, "column 'price': a price needs a unit"),
        ("time,value\n0,1\n60,2\n", {}, "say column= with one of time, value"),
        ("time,value\n0,1\n60,2\n", {"column": "value"}, "say kind= and unit="),
        ("time,value\n0,1\n60,2\n", {"column": "valu"}, "did you mean 'value'"),
        ("time,intensity a,intensity b\n0,1,2\n", {}, "2 columns could be meant"),
        ("time,price_eur_per_mwh\n0,1\n60,2\n", {"unit": "EUR/kWh"}, "heading says EUR/MWh"),
        ("# kind: loud\ntime,intensity\n0,1\n60,2\n", {}, "note 'kind'"),
        ("# basis: loud\ntime,intensity\n0,1\n60,2\n", {}, "note 'basis'"),
        ("# step_s: long\ntime,intensity\n0,1\n60,2\n", {}, "note 'step_s'"),
        ("pue\n1\n", {"format": "table"}, "no headings"),
        ("a,pue\n1,1\n", {"format": "table"}, "no column of times"),
        ("", {}, "the file is empty"),
        ("hello\nworld\n", {}, "tried electricitymaps, gb, watttime, table.*format="),
    ],
)
def test_refused(
    write: Callable[[str], Path], text: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        read_signal(write(text), **options)  # type: ignore[arg-type]


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"PK\x03\x04\x00\x00")
    with pytest.raises(FormatError, match="binary file"):
        read_signal(path)
    path.write_bytes("time,intensity\n0,1\n60,é\n".encode("latin-1"))
    with pytest.raises(FormatError, match="line 3: this is not UTF-8"):
        read_signal(path)
    with pytest.raises(FileProblem, match="no such file"):
        read_signal(tmp_path / "b.csv")


def test_wrong_options(write: Callable[[str], Path]) -> None:
    path = write("# zone: DE\ntime,marginal intensity\n0,1\n60,2\n")
    with pytest.raises(UnknownName, match="known are electricitymaps, gb, table, watttime"):
        read_signal(path, format="tabel")
    with pytest.raises(InvalidInput, match="kind is one of"):
        read_signal(path, kind="loud")
    with pytest.raises(InvalidInput, match="gaps is one of"):
        read_signal(path, gaps="zero")
    with pytest.raises(InvalidInput, match="says that its kind is 'marginal'"):
        read_signal(path, kind="average")
    with pytest.raises(InvalidInput, match="says that its zone is 'DE'"):
        read_signal(path, zone="FR")
    with pytest.raises(InvalidUnit, match="unknown unit of carbon intensity 'stones'"):
        read_signal(path, unit="stones")


@given(
    values=st.lists(st.floats(1, 100), min_size=1, max_size=9),
    start=st.integers(-(10**9), 4 * 10**9),
    step_s=st.sampled_from([0.25, 1.0, 300.0, 1800.0, 3600.0, 86400.0]),
    labels=st.sampled_from(
        [
            ("average", "lifecycle", "g/kWh"),
            ("marginal", "direct", "g/kWh"),
            ("price", None, "EUR/kWh"),
            ("pue", None, "1"),
        ]
    ),
    zone=st.none() | st.sampled_from(["DE", "US-CAL-CISO", "Île: #1, north"]),
    synthetic=st.booleans(),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[float],
    start: int,
    step_s: float,
    labels: tuple[str, str | None, str],
    zone: str | None,
    synthetic: bool,
) -> None:
    kind, basis, unit = labels
    signal = Signal(
        values=np.array(values),
        start=float(start),
        step_s=step_s,
        kind=kind,
        basis=basis,
        unit=unit,
        zone=zone,
        source="a model, by hand",
        synthetic=synthetic,
        marks=np.arange(len(values)) % 3,
    )
    path = tmp_path_factory.getbasetemp() / "round.csv"
    write_signal(signal, path)
    back = read_signal(path)
    assert back.values.tolist() == values
    for name in ("start", "step_s", "kind", "basis", "unit", "zone", "source", "synthetic"):
        assert getattr(back, name) == getattr(signal, name)
    assert (back.filled, back.estimated) == (signal.filled, signal.estimated)


def test_of_two_kinds_in_one_file_the_one_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "both.csv"
    path.write_text("time,intensity,marginal intensity\n0,10,7\n60,20,8\n")
    assert read_signal(path, kind="average").values.tolist() == [10, 20]
    assert read_signal(path, kind="marginal").values.tolist() == [7, 8]
    with pytest.raises(FormatError, match="2 columns could be meant"):
        read_signal(path)


@pytest.mark.parametrize("heading", ["carbon_intensity", "average carbon intensity", "moer"])
def test_kilograms_are_never_taken_for_grams(tmp_path: Path, heading: str) -> None:
    path = tmp_path / "kg.csv"
    path.write_text(f"time,{heading}\n0,0.31\n3600,\n7200,0.402\n")
    with pytest.raises(FormatError, match=r"all values lie below 5 .*say unit='kg/kWh'"):
        read_signal(path, gaps="hold")
    assert read_signal(path, gaps="hold", unit="kg/kWh").values.tolist() == [310, 310, 402]
    assert read_signal(path, gaps="hold", unit="g/kWh").values[0] == 0.31
    # A low hour is no doubt about the unit, and a heading that names it leaves none.
    path.write_text(f"time,{heading}\n0,0.31\n3600,25\n")
    assert read_signal(path).values[0] == 0.31
    path.write_text(f"time,{heading}_g_per_kwh\n0,0.31\n3600,1\n")
    assert read_signal(path).values[0] == 0.31


def test_a_value_beyond_reason_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "huge.csv"
    path.write_text("time,carbon_intensity\n0,30\n3600,1e308\n")
    for unit in (None, "kg/kWh"):
        with pytest.raises(
            FormatError, match=r"huge\.csv, line 3.*0 to 100,000 g/kWh, not 1e\+308"
        ):
            read_signal(path, unit=unit)


@pytest.mark.parametrize("kind", ["occupancy", "objective"])
def test_kinds_that_are_computed_are_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("time,x\n0,300\n3600,310\n")
    with pytest.raises(InvalidInput, match="kind is one of average, marginal, price, pue"):
        read_signal(path, kind=kind, column="x")
