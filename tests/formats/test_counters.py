"""Energy counters in tables: those that wrap, and those that are reset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FormatError, InvalidInput
from lowtide.formats.counters import follow_counter
from lowtide.formats.recordings import read_recordings
from lowtide.recording import Run

TIMES = np.arange(0.0, 30.0, 0.1)
# 120 W for 30 s.
ENERGY_J = 120.0 * TIMES


def table(folder: Path, energy_j: np.ndarray, range_j: float | None = None) -> Run:
    beside = "" if range_j is None else ",max_energy_range_uj"
    value = "" if range_j is None else f",{round(1e6 * range_j)}"
    rows = [
        f"{time!r},{round(1e6 * joules)}{value}"
        for time, joules in zip(TIMES.tolist(), energy_j.tolist(), strict=True)
    ]
    path = folder / "samples.csv"
    path.write_text("\n".join([f"time,energy_uj{beside}", *rows, ""]))
    ((run,),) = read_recordings(path)
    return run


def test_a_wrap_is_followed_where_the_range_is_known(tmp_path: Path) -> None:
    run = table(tmp_path, (ENERGY_J + 500) % 1000, range_j=1000.0)
    np.testing.assert_allclose(run.power_w, 120.0, atol=1e-3)
    assert run.notes == ()
    assert run.energy_j(1, 29) == pytest.approx(120 * 28)


@pytest.mark.parametrize("range_j", [None, 262_143.0])
def test_a_reset_is_noted_and_its_sample_left_out(tmp_path: Path, range_j: float | None) -> None:
    energy_j = np.where(TIMES < 15, 200_000 + ENERGY_J, ENERGY_J - 120 * 15 + 6)
    run = table(tmp_path, energy_j, range_j)
    np.testing.assert_allclose(run.power_w, 120.0, atol=1e-3)
    assert run.notes == (
        "the energy counter energy_uj was reset before 15.000: that sample is left out",
    )
    # The first sample shows nothing, the last has no next one, and one went with the reset.
    assert run.times.size == TIMES.size - 3
    assert not run.gaps


def test_a_fall_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="falls from 1010 to 900 J in sample 3, which"):
        follow_counter(np.array([1000.0, 1010.0, 900.0, 910.0]))
    energy_j = np.where(TIMES < 15, 200_000 + ENERGY_J, 100_000 + ENERGY_J)
    with pytest.raises(FormatError, match="add its range as a column such as max_energy_range_uj"):
        table(tmp_path, energy_j)
