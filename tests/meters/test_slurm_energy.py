"""Slurm's energy accounting: watts, joules alone, and numbers that are none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lowtide.meters import Roots
from lowtide.meters.slurm_energy import SlurmEnergy, read_node
from support.meters import tool


class TestSlurm:
    def test_nodes(self) -> None:
        text = "NodeName=n1 CurrentWatts=220 AveWatts=210 LowestJoules=5 ConsumedJoules=9000"
        assert read_node(text) == (220.0, 9000.0)
        watts, joules = read_node("NodeName=n1 CurrentWatts=n/s AveWatts=n/s ConsumedJoules=n/s")
        assert math.isnan(watts)
        assert math.isnan(joules)

    def test_the_tool_is_asked(self, tools: Path) -> None:
        tool(tools, "scontrol", "NodeName=n1 CurrentWatts=220 ConsumedJoules=9000")
        meter = SlurmEnergy(node="n1")
        meter.open()
        assert meter.sample().power_w == (220.0,)
        tool(tools, "scontrol", "NodeName=n1 CurrentWatts=0 ConsumedJoules=0")
        assert SlurmEnergy.find(Roots()).state == "constant 0"

    def test_its_largest_numbers_mean_none(self) -> None:
        none = "CurrentWatts=4294967294 AveWatts=0 ConsumedJoules=18446744073709551614"
        assert all(math.isnan(each) for each in read_node(none))
        assert read_node("CurrentWatts=n/s ConsumedJoules=9000")[1] == 9000.0

    def test_joules_alone_tell_power(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [1000.0]
        monkeypatch.setattr("lowtide.meters.slurm_energy.time.monotonic", lambda: now[0])
        said = []

        def at(seconds: float, joules: int) -> None:
            now[0] = 1000.0 + seconds
            monkeypatch.setattr(
                SlurmEnergy,
                "_ask",
                lambda _: read_node(f"CurrentWatts=n/s ConsumedJoules={joules}"),
            )
            said.append(meter.sample().power_w[0])

        meter = SlurmEnergy(node="n1")
        # Slurm reads its sensors every 30 s; when it did before the first look is not known.
        for seconds, joules in ((0, 9000), (10, 9000), (20, 15000), (30, 15000), (50, 24000)):
            at(seconds, joules)
        assert all(math.isnan(watts) for watts in said[:4])
        assert said[4] == 300.0
        at(60, 24000)
        assert said[-1] == 300.0, "as Slurm's own watts, it repeats until the next"
        at(200, 24000)
        assert math.isnan(said[-1]), "but not for ever"
