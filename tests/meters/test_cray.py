"""Cray counters: what is 0, absent or stale."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from lowtide.errors import MeterProblem
from lowtide.meters import Roots
from lowtide.meters.cray import Cray
from support.meters import tree

BASE = "sys/cray/pm_counters"


def stamp(ago_s: float = 0.0) -> int:
    return int(1e6 * (time.time() - ago_s))


def test_cray(tmp_path: Path) -> None:
    base, now = BASE, stamp()
    roots = tree(
        tmp_path,
        {
            f"{base}/power": f"873 W {now} us\n",
            f"{base}/energy": f"1000 J {now} us\n",
            f"{base}/cpu_power": f"210 W {now} us\n",
            f"{base}/cpu_energy": f"500 J {now} us\n",
            f"{base}/memory_power": f"0 W {now} us\n",
            f"{base}/memory_energy": f"0 J {now} us\n",
            f"{base}/accel0_power": f"300 W {now} us\n",
            f"{base}/accel0_energy": f"9 J {now} us\n",
        },
    )
    meter = Cray(roots=roots)
    channels = meter.open()
    assert {each.name: each.domain for each in channels} == {
        "node": "node",
        "cpu": "package",
        "accel0": "gpu",
    }
    meter.sample()
    (tmp_path / base / "energy").write_text(f"1873 J {now + 1} us\n")
    reading = meter.sample()
    at = [each.name for each in channels].index("node")
    assert (reading.power_w[at], reading.energy_j[at]) == (873.0, 873.0)
    assert Cray.find(Roots(sysfs=tmp_path / "none")).state == "absent"


def node(root: Path, power: str, ago_s: float = 0.0) -> Roots:
    return tree(
        root,
        {
            f"{BASE}/power": f"{power} W {stamp(ago_s)} us\n",
            f"{BASE}/energy": f"1000 J {stamp(ago_s)} us\n",
        },
    )


def test_0_w_is_no_reading(tmp_path: Path) -> None:
    meter = Cray(roots=node(tmp_path, "873"))
    meter.open()
    assert meter.sample().power_w == (873.0,)
    node(tmp_path, "0")
    assert math.isnan(meter.sample().power_w[0])
    assert Cray.find(Roots(sysfs=tmp_path / "sys")).state == "constant 0"
    with pytest.raises(MeterProblem, match="no power above 0 W"):
        Cray(roots=Roots(sysfs=tmp_path / "sys")).open()


def test_what_the_controller_does_not_renew_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Cray(roots=node(tmp_path, "873", ago_s=60))
    meter.open()
    reading = meter.sample()
    assert math.isnan(reading.power_w[0])
    assert math.isnan(reading.energy_j[0])
    assert "node is stale: the blade controller has not renewed it" in reading.problems[0]
    # Stamps that go on are fresh, even by a clock that is wrong.
    node(tmp_path, "874", ago_s=59)
    assert meter.sample().power_w == (874.0,)
    later = time.monotonic() + 6
    monkeypatch.setattr("lowtide.meters.cray.time.monotonic", lambda: later)
    assert math.isnan(meter.sample().power_w[0])
