"""Loads and watts, as SPECpower and data sheets write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import FormatError
from lowtide.formats.model_tables import read_load_table

# The shape of a SPECpower_ssj2008 result: ten loads and active idle, falling; numbers made up.
SPEC = """\
# source: made up in the shape of SPECpower_ssj2008
Target Load;Actual Load (measured);ssj_ops;Average Active Power (W)
100%;99.7%;1,204,000;1,251
90%;90.1%;1,080,000;1,102
80%;80.0%;960,000;970
70%;70.2%;840,000;861
60%;59.9%;720,000;765
50%;50.0%;600,000;690
40%;40.1%;480,000;610
30%;30.0%;360,000;540
20%;19.9%;240,000;470
10%;10.0%;120,000;395
Active Idle;;0;302
"""


def read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return read_load_table(path)


def test_a_report_of_eleven_lines(tmp_path: Path) -> None:
    text = SPEC.replace("Actual Load (measured)", "Actual")
    table = read(tmp_path, text)
    assert table.share == tuple(each / 10 for each in range(11))
    assert table.power_w[:2] == (302.0, 395.0)
    assert table.power_w[-1] == 1251.0
    assert table.source == "made up in the shape of SPECpower_ssj2008"


@pytest.mark.parametrize(
    "text",
    [
        "load,watts\n0,60\n50,150\n100,200\n",
        "load_percent,power_w\n100,200\n50,150\nidle,60\n",
        "share,power_w\n0,60\n0.5,150\n1,200\n",
        "utilization,watts\n0%,60 W\n50 %,150 W\n100%,200\n",
    ],
)
def test_ways_of_writing_the_same(text: str, tmp_path: Path) -> None:
    table = read(tmp_path, text)
    assert (table.share, table.power_w) == ((0.0, 0.5, 1.0), (60.0, 150.0, 200.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPEC, "which of Target Load, Actual Load"),
        (
            "load,watts\n0,60\n50,150\n60,140\n100,200\n",
            "line 4.*power falls from 150 W at load 50",
        ),
        ("load,watts\n0,60\n0,61\n100,200\n", "line 3.*the load 0 is there twice"),
        ("load,watts\n0,60\n0.5,150\n", "cannot be told whether loads are percentages or shares"),
        ("load,watts\n0%,60\n120%,150\n", "a load lies from 0 to 100, not 120"),
        ("load,watts\n0,60\nhalf,150\n100,200\n", "'half' is no load"),
        ("load,watts\n0,60\n100,\n", "is no power in watts"),
        ("load,watts\n0,-3\n100,5\n", "'-3' is no power in watts"),
        ("load,watts\n100,60\n", "two loads or more"),
        ("load,price\n0,60\n100,90\n", "one column 'watts'; there is none"),
        ("{}", "a table of loads has a heading"),
    ],
)
def test_bad_tables(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message):
        read(tmp_path, text)
