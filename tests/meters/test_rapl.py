"""RAPL counters: wraps, resets, and counters that count nothing."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import MeterProblem
from lowtide.measuring.sampler import total_w
from lowtide.meters import Roots
from lowtide.meters.rapl import Rapl
from support.meters import rapl_tree, tree


class TestRapl:
    def test_counters_become_joules(self, tmp_path: Path) -> None:
        roots = rapl_tree(tmp_path)
        assert Rapl.find(roots).state == "works"
        meter = Rapl(roots=roots)
        channels = meter.open()
        assert [(each.name, each.domain) for each in channels] == [
            ("package-0", "package"),
            ("dram-0", "dram"),
        ]
        base = tmp_path / "sys/class/powercap"
        (base / "intel-rapl:0/energy_uj").write_text("258218393244\n")
        reading = meter.sample()
        meter.close()
        assert reading.energy_j == pytest.approx((0.1, math.nan), nan_ok=True)
        assert reading.power_w[0] > 0
        assert math.isnan(reading.power_w[1]), "it has not moved yet"

    def test_a_wrap_is_no_loss(self, tmp_path: Path) -> None:
        meter = Rapl(roots=rapl_tree(tmp_path, package="262143328800"))
        meter.open()
        (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("2000000\n")
        assert meter.sample().energy_j[0] == pytest.approx(50e-6 + 2.0)
        meter.close()

    def test_states(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Rapl.find(Roots(sysfs=tmp_path)).state == "absent"
        zero = rapl_tree(tmp_path / "zero", package="0", dram="0")
        assert Rapl.find(zero).state == "constant 0"
        roots = rapl_tree(tmp_path / "locked")
        monkeypatch.setattr("os.access", lambda *_: False)
        found = Rapl.find(roots)
        assert (found.state, "chmod" in found.cure) == ("no permission", True)
        with pytest.raises(MeterProblem, match="no RAPL"):
            Rapl(roots=Roots(sysfs=tmp_path)).open()

    def test_a_counter_that_vanishes_is_unknown(self, tmp_path: Path) -> None:
        meter = Rapl(roots=rapl_tree(tmp_path))
        meter.open()
        (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("")
        advance(tmp_path, "intel-rapl:0:1", 100)
        reading = meter.sample()
        meter.close()
        assert math.isnan(reading.power_w[0])
        assert not math.isnan(reading.power_w[1])

    def test_a_counter_that_stays_at_0_is_absent(self, tmp_path: Path) -> None:
        roots = with_psys(tmp_path, "0")
        found = Rapl.find(roots)
        assert found.state == "works"
        assert "always 0, so left out: psys" in found.what
        meter = Rapl(roots=roots)
        channels = meter.open()
        assert [each.name for each in channels] == ["package-0", "dram-0"]
        advance(tmp_path, "intel-rapl:0", 8_000)
        advance(tmp_path, "intel-rapl:0:1", 8_000)
        reading = meter.sample()
        meter.close()
        # The platform's counter would stand for the package, and hide it.
        assert total_w(list(zip(channels, reading.power_w, strict=True))) > 0
        with pytest.raises(MeterProblem, match=r"\(package-0, dram-0\) stay at 0"):
            Rapl(roots=rapl_tree(tmp_path / "zero", package="0", dram="0")).open()

    def test_a_counter_that_stands_still_while_others_move_is_absent(self, tmp_path: Path) -> None:
        roots = with_psys(tmp_path, "777")
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(0.002):
                advance(tmp_path, "intel-rapl:0", 100)
                advance(tmp_path, "intel-rapl:0:1", 100)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            meter = Rapl(roots=roots)
            assert [each.name for each in meter.open()] == ["package-0", "dram-0"]
            meter.close()
        finally:
            stop.set()
            thread.join()

    def test_a_counter_that_others_leave_behind_later_is_unknown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meter = Rapl(roots=with_psys(tmp_path, "777"))
        assert [each.name for each in meter.open()][-1] == "psys", "nothing moved yet"
        advance(tmp_path, "intel-rapl:0", 100)
        advance(tmp_path, "intel-rapl:0:1", 100)
        later = time.monotonic() + 3.0
        monkeypatch.setattr("lowtide.meters.rapl.time.monotonic", lambda: later)
        reading = meter.sample()
        meter.close()
        assert math.isnan(reading.power_w[-1])
        assert not math.isnan(reading.power_w[0])
        assert "psys never moved: it counts as absent" in reading.problems[0]

    def test_counters_that_stand_still_measure_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [time.monotonic()]
        monkeypatch.setattr(
            "lowtide.meters.rapl.time.sleep", lambda s: now.__setitem__(0, now[0] + s)
        )
        monkeypatch.setattr("lowtide.meters.rapl.time.monotonic", lambda: now[0])
        meter = Rapl(roots=rapl_tree(tmp_path))
        meter.open()
        for wait_s in (0.1, 1.0, 10.0):
            now[0] += wait_s
            reading = meter.sample()
            assert np.isnan(reading.power_w).all()
            assert np.isnan(reading.energy_j).all()
        assert "package-0 never moved" in reading.problems[0]
        for by, known in ((5_000, True), (7_000, True), (0, False), (9_000, False), (8_000, True)):
            for zone in ("intel-rapl:0", "intel-rapl:0:1"):
                advance(tmp_path, zone, by)
            now[0] += 1.0
            reading = meter.sample()
            assert (not np.isnan(reading.energy_j).any()) == (by > 0)
            if known:
                assert reading.power_w == pytest.approx((by * 1e-6,) * 2, rel=1e-3)
            else:
                # After it stood still nobody knows since when it counts again.
                assert np.isnan(reading.power_w).all()
        meter.close()

    def test_counters_of_this_machine_that_stand_still_do_not_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        roots = rapl_tree(tmp_path)
        monkeypatch.setattr(Roots, "is_here", True)
        found = Rapl.find(roots)
        assert (found.state, "stand still" in found.what) == ("constant 0", True)

    def test_a_reset_is_no_wrap(self, tmp_path: Path) -> None:
        # From the upper half of the range: taken for a wrap, it would be 62 kJ in a moment.
        meter = Rapl(roots=rapl_tree(tmp_path, package="200000000000"))
        meter.open()
        (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("1000000\n")
        reading = meter.sample()
        assert reading.energy_j[0] == pytest.approx(1.0)
        assert math.isnan(reading.power_w[0])
        assert "the energy counter of package-0 was reset" in reading.problems[0]
        # From the lower half too, it leaves a note.
        (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("500000\n")
        assert "was reset" in meter.sample().problems[0]
        meter.close()


def with_psys(root: Path, count: str) -> Roots:
    base = "sys/class/powercap/intel-rapl:1"
    tree(root, {f"{base}/name": "psys\n", f"{base}/energy_uj": f"{count}\n"})
    return rapl_tree(root)


def advance(root: Path, zone: str, by: int) -> None:
    path = root / "sys/class/powercap" / zone / "energy_uj"
    # In one write: a file of the kernel is never half there.
    path.write_text(f"{int(path.read_text()) + by:<20}\n")
