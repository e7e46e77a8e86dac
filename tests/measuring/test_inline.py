"""Measuring a block, a function and a cell from within: what it tells, and that it never hurts."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lowtide
from lowtide.errors import InvalidInput, LowtideError
from lowtide.formats.recording_folder import read
from lowtide.grid import Grid
from lowtide.marks import EVENTS_VARIABLE
from lowtide.measuring import inline
from lowtide.measuring.payment import pay
from lowtide.recording import Run
from lowtide.signal import Signal
from support.steady import Steady

pytestmark = pytest.mark.alone


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that draws 100 W whatever happens."""
    meters = lambda said, tell=None: [Steady()]  # noqa: E731
    monkeypatch.setattr("lowtide.meters.source.choose_meters", meters)


def now_signal(values=(300.0,), step_s=86400.0, **kwargs):
    return Signal.from_values(values, start=time.time() // 60 * 60 - 3600, step_s=step_s, **kwargs)


def test_a_block_tells_energy_emissions_and_marks(steady, tmp_path):
    price = now_signal([0.2], kind="price", unit="EUR/kWh")
    grid = Grid(average=now_signal(), price=price)
    seen = []
    with lowtide.measure(
        "eval", grid=grid, share="node", interval_s=0.02, out=tmp_path / "kept", watch=seen.append
    ) as m:
        lowtide.mark("epoch_1")
        time.sleep(0.4)
        subprocess.run(
            [sys.executable, "-c", "import lowtide; lowtide.mark('child', checkpoint=True)"],
            check=True,
        )
        assert not math.isnan(m.watts)
    assert m.energy_j == pytest.approx(100.0 * m.run.duration_s, rel=1e-6)
    assert m.carbon_g == pytest.approx(300.0 * m.energy_j / 3.6e6)
    assert m.cost == pytest.approx(0.2 * m.energy_j / 3.6e6)
    assert [(event.label, event.checkpoint) for event in m.run.events] == [
        ("epoch_1", False),
        ("child", True),
    ]
    assert set(seen) == {100.0}
    assert "CO2e" in str(m)
    assert "EUR" in str(m)
    (kept,) = read(tmp_path / "kept")
    assert kept.energy_j() == pytest.approx(m.energy_j)
    assert EVENTS_VARIABLE not in os.environ
    assert not [each for each in threading.enumerate() if each.name == "lowtide-measure"]


def test_an_error_in_the_block_is_the_programs_and_is_measured(steady):
    with pytest.raises(ZeroDivisionError), lowtide.measure("eval", interval_s=0.02) as m:
        time.sleep(0.1)
        1 / 0  # noqa: B018
    assert m.run.exit_status == 1
    assert EVENTS_VARIABLE not in os.environ


def test_a_function_is_measured_after_its_warm_up(steady, capsys):
    @lowtide.measure("f", warmup=2, interval_s=0.02, share="node")
    def work(value):
        """Work."""
        time.sleep(0.1)
        return value

    assert [work(each) for each in (1, 2)] == [1, 2]
    assert capsys.readouterr().err == ""
    assert work(3) == 3
    said = capsys.readouterr()
    assert said.err.startswith("f: less than 1 s, ")
    assert said.out == ""
    assert (work.__name__, work.__doc__) == ("work", "Work.")


def test_what_goes_wrong_with_the_measuring_is_noted_and_hurts_nobody(monkeypatch):
    class Broken(Steady):
        def sample(self):
            raise RuntimeError("broken")

    meters = lambda said, tell=None: [Broken()]  # noqa: E731
    monkeypatch.setattr("lowtide.meters.source.choose_meters", meters)
    with lowtide.measure("eval", interval_s=0.02) as m:
        time.sleep(0.1)
    assert math.isnan(m.energy_j)
    assert m.notes
    assert "---" in str(m)
    monkeypatch.setattr("lowtide.meters.source.choose_meters", lambda *_, **__: 1 / 0)
    with lowtide.measure("eval", grid="windy") as m:
        pass
    assert "nothing is measured (ZeroDivisionError" in str(m)


def test_a_meter_that_hangs_does_not_hold_the_program_up(monkeypatch):
    gone = threading.Event()

    class Hanging(Steady):
        turns = 0

        def sample(self):
            self.turns += 1
            if self.turns > 3:
                gone.wait(60)
            return super().sample()

    meters = lambda said, tell=None: [Hanging()]  # noqa: E731
    monkeypatch.setattr("lowtide.meters.source.choose_meters", meters)
    monkeypatch.setattr(inline, "_PATIENCE_S", 0.3)
    try:
        with lowtide.measure("eval", interval_s=0.02) as m:
            time.sleep(0.3)
        assert "did not answer in time" in str(m)
    finally:
        gone.set()


def test_within_lowtide_measure_marks_stay_where_they_belong(steady, tmp_path, monkeypatch):
    outer = tmp_path / "events.csv"
    outer.touch()
    monkeypatch.setenv(EVENTS_VARIABLE, str(outer))
    with lowtide.measure("eval", interval_s=0.02):
        lowtide.mark("epoch_1")
        time.sleep(0.05)
    assert [line.split(",")[2] for line in outer.read_text().splitlines()] == ["eval", "epoch_1"]
    assert os.environ[EVENTS_VARIABLE] == str(outer)


@pytest.mark.parametrize(
    "wrong", [{"name": " "}, {"interval_s": 0}, {"idle_s": -1}, {"warmup": -1}, {"warmup": True}]
)
def test_wrong_arguments_are_refused_before_anything_runs(wrong):
    with pytest.raises(LowtideError):
        lowtide.measure(**wrong)
    with pytest.raises(LowtideError), lowtide.measure("eval", share="luck"):
        raise AssertionError("the block is not run")


def run_of(power_w, start=0.0):
    times = start + np.arange(len(power_w), dtype=float)
    return Run(id="a", times=times, power_w=power_w, start=start, end=start + len(power_w))


def test_emissions_are_what_second_by_second_sums_say():
    rng = np.random.default_rng(3)
    power_w, values = rng.uniform(50, 500, 600), rng.uniform(0, 700, 20)
    run = run_of(power_w, start=37.0)
    signal = Signal.from_values(values, start=0, step_s=60.0)
    plain = sum(power_w[second] * values[int((37 + second) // 60)] for second in range(600))
    assert pay(run, signal).carbon_g == pytest.approx(plain / 3.6e6)


def test_what_cannot_be_told_is_not_known_rather_than_nothing(tmp_path):
    run = run_of([100.0] * 10, start=time.time())
    old = Signal.from_values([300.0], start=0, step_s="1h")
    paid = pay(run, old)
    assert (paid.carbon_g, paid.cost, paid.words()) == (None, None, [])
    assert "covers 1970-01-01" in paid.notes[0]
    assert pay(run, str(tmp_path / "nowhere.csv")).carbon_g is None
    assert pay(run, "windy").synthetic


class Notebook:
    """Stands in for IPython: keeps a magic and runs cells."""

    def register_magic_function(self, function, magic_kind, magic_name):
        assert (magic_kind, magic_name) == ("line_cell", "measure")
        self.magic = function

    def run_cell(self, code):
        exec(code, self.names)


def test_a_cell_of_a_notebook_is_measured(steady, capsys):
    notebook = Notebook()
    notebook.names = {}
    lowtide.load_ipython_extension(notebook)
    notebook.magic("training run --grid windy", "import time\ntime.sleep(0.3)\nx = 3")
    assert notebook.names["x"] == 3
    said = capsys.readouterr().out
    assert said.startswith("training run: less than 1 s, ")
    assert "synthetic grid" in said
    notebook.magic("y = 4")
    assert notebook.names["y"] == 4
    with pytest.raises(InvalidInput, match="--grid names a grid"):
        notebook.magic("name --grid", "x = 5")
