"""Measuring a block, a function and a cell from within: what it tells, and that it never hurts."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

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


@pytest.fixture
def notebook(steady, tmp_path, monkeypatch):
    """A real IPython that knows the magic; returns what runs a cell."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    settings = Config(HistoryManager={"enabled": False}, InteractiveShell={"colors": "nocolor"})
    shell = InteractiveShell.instance(config=settings)
    assert shell.run_cell("%load_ext lowtide").success
    yield shell
    InteractiveShell.clear_instance()


def test_a_cell_of_a_notebook_is_measured(notebook, capsys):
    assert notebook.run_cell(
        "%%measure training run --grid windy\nimport time\ntime.sleep(0.3)\nx = 3\nx + 1"
    ).success
    assert notebook.user_ns["x"] == 3
    said = capsys.readouterr().out
    assert ": 4\ntraining run: less than 1 s, " in said
    assert "synthetic grid" in said
    # What is quoted stays as it is, and braces are the program's.
    for line, printed in (
        ('%measure print("a  b", {"c": 1})', "a  b {'c': 1}"),
        ("%measure --grid 'windy' print(-x)", "-3"),
        ("%measure -x", ": -3"),
        ("%%measure it's --grid=windy\nprint(f'{x}')", "3\nit's: "),
    ):
        assert notebook.run_cell(line).success
        assert printed in capsys.readouterr().out


def test_a_cell_that_fails_is_measured_fails_and_is_shown_once(notebook, capsys, monkeypatch):
    kept = []
    monkeypatch.setattr(inline, "print", kept.append, raising=False)
    done = notebook.run_cell("%%measure bad\nimport time\ntime.sleep(0.2)\n1 / 0")
    assert isinstance(done.error_in_exec, ZeroDivisionError)
    assert kept[0].run.exit_status == 1
    assert capsys.readouterr().out.count("division by zero") == 1
    assert not notebook.run_cell("%%measure bad\n1 +").success
    assert capsys.readouterr().out.count("invalid syntax") == 1


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        ("%%measure a --grid\nx = 5", "--grid GRID is all there is"),
        ("%%measure a --gird windy\nx = 5", "--gird says nothing here"),
        ("%measure --grid", "--grid GRID is all there is"),
        ("%measure", "what is measured stands behind"),
    ],
)
def test_what_a_magic_does_not_know_is_said_in_a_line(notebook, capsys, cell, rule):
    assert not notebook.run_cell(cell).success
    said = capsys.readouterr()
    assert rule in said.err
    assert "Traceback" not in said.out + said.err
    assert "x" not in notebook.user_ns


def test_a_cell_that_awaits_within_a_running_loop_is_told_how(notebook, capsys):
    cell = "%%measure a\nimport asyncio\nawait asyncio.sleep(0)\nx = 6"
    assert notebook.run_cell(cell).success
    assert notebook.user_ns.pop("x") == 6

    async def as_in_a_notebook():
        made = notebook.transform_cell(cell)
        return await notebook.run_cell_async(cell, transformed_cell=made)

    assert not asyncio.run(as_in_a_notebook()).success
    assert "write `with lowtide.measure(NAME):` in the cell" in capsys.readouterr().err
    assert "x" not in notebook.user_ns


def test_what_is_done_later_is_measured_until_then(capsys: pytest.CaptureFixture[str]) -> None:
    @lowtide.measure("awaited")
    async def awaited() -> int:
        await asyncio.sleep(0.5)
        return 3

    @lowtide.measure("gone through")
    def gone_through() -> Iterator[int]:
        for number in range(3):
            time.sleep(0.2)
            yield number

    @lowtide.measure
    def bare() -> int:
        time.sleep(0.3)
        return 4

    assert (asyncio.run(awaited()), list(gone_through()), bare()) == (3, [0, 1, 2], 4)
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["awaited", "gone through", "bare"]
    # Only the making of a coroutine or a generator is over before two samples were taken.
    assert not any("over before" in line for line in told)
    with pytest.raises(InvalidInput, match="asynchronous generator"):

        @lowtide.measure("both")
        async def both() -> AsyncIterator[int]:
            yield 1


@pytest.mark.parametrize("how", ["grid", "signal"])
def test_what_cannot_be_is_told_before_the_block(tmp_path: Path, how: str) -> None:
    ran = False
    for wrong in ("nowhere", str(tmp_path / "none.csv")):
        with pytest.raises(LowtideError), lowtide.measure("eval", **{how: wrong}):
            ran = True
    with (
        pytest.raises(InvalidInput, match="exists already"),
        lowtide.measure("eval", out=tmp_path),
    ):
        ran = True
    with pytest.raises(InvalidInput, match="give one of both"):
        lowtide.measure("eval", grid="windy", signal="windy")
    assert not ran
    assert "LOWTIDE_EVENTS" not in os.environ
