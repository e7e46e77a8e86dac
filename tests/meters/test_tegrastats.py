"""tegrastats: lines of every JetPack, what of them is the board, and a tool that hangs."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from lowtide.errors import MeterProblem
from lowtide.measuring import Sampler
from lowtide.meters import Roots
from lowtide.meters.estimate import Estimate
from lowtide.meters.power_model import Feature, Linear, UtilisationModel
from lowtide.meters.tegrastats import Tegrastats, read_line

# One line of each style that JetPack prints.
XAVIER = (
    "RAM 2448/7771MB (lfb 1x4MB) SWAP 0/3885MB (cached 0MB) CPU [1%@1190,0%@1190,off,off] "
    "EMC_FREQ 0%@1600 GR3D_FREQ 3%@114 APE 150 MTS fg 0% bg 4% AO@38.5C GPU@37C PMIC@100C "
    "VDD_IN 3480/3480 VDD_CPU_GPU_CV 608/608 VDD_SOC 1136/1136"
)
ORIN = (
    "11-03-2023 10:12:13 RAM 3220/7451MB (lfb 4x1MB) SWAP 0/3725MB (cached 0MB) "
    "CPU [2%@729,0%@729,1%@729,0%@729] EMC_FREQ 1%@2133 GR3D_FREQ 0%@[114] VIC_FREQ 729 APE 200 "
    "cpu@47.1C soc0@46.2C tj@48.5C VDD_IN 4880mW/4881mW VDD_CPU_GPU_CV 490mW/490mW "
    "VDD_SOC 1440mW/1440mW"
)
NANO = (
    "RAM 1000/3964MB (lfb 5x4MB) IRAM 0/252kB(lfb 252kB) CPU [5%@102,off,off,off] "
    "POM_5V_IN 1500/1500 POM_5V_CPU 200/200"
)
AGX_XAVIER = (
    "RAM 2448/15692MB (lfb 2818x4MB) SWAP 0/7846MB (cached 0MB) CPU [3%@1190,1%@1190,off,off] "
    "EMC_FREQ 0%@665 GR3D_FREQ 0%@318 APE 150 MTS fg 0% bg 1% AO@31.5C GPU@32C Tdiode@35C "
    "PMIC@100C GPU 466/466 CPU 311/311 SOC 1399/1399 CV 0/0 VDDRQ 155/155 SYS5V 1765/1765"
)
AGX_ORIN = (
    "08-15-2023 12:01:03 RAM 3041/30592MB (lfb 6118x4MB) SWAP 0/15296MB (cached 0MB) "
    "CPU [0%@729,0%@729,off,off] EMC_FREQ 0%@2133 GR3D_FREQ 0%@[0,0] VIC_FREQ 115 "
    "NVDLA0_FREQ @1600 APE 174 CV0@-256C Tboard@34C tj@46.031C VDD_GPU_SOC 1995mW/1990mW "
    "VDD_CPU_CV 399mW/399mW VIN_SYS_5V0 2420mW/2420mW NC 0mW/0mW VDDQ_VDD2_1V8AO 302mW/302mW "
    "NC 0mW/0mW"
)
THOR = (
    "RAM 3041/125772MB (lfb 5x4MB) CPU [0%@972] VDD_GPU 2400mW/2400mW "
    "VDD_CPU_SOC_MSS 6510mW/6510mW VIN_SYS_5V0 6520mW/6520mW VIN 23500mW/23500mW"
)


class TestTegrastats:
    @pytest.mark.parametrize(
        ("line", "rails", "unknown"),
        [
            (XAVIER, {"VDD_IN": 3.48, "VDD_CPU_GPU_CV": 0.608, "VDD_SOC": 1.136}, set()),
            (ORIN, {"VDD_IN": 4.88, "VDD_CPU_GPU_CV": 0.49, "VDD_SOC": 1.44}, set()),
            (NANO, {"POM_5V_IN": 1.5, "POM_5V_CPU": 0.2}, set()),
            (
                AGX_XAVIER,
                {"GPU": 0.466, "CPU": 0.311, "SOC": 1.399, "CV": 0.0, "VDDRQ": 0.155}
                | {"SYS5V": 1.765},
                set(),
            ),
            (
                AGX_ORIN,
                {"VDD_GPU_SOC": 1.995, "VDD_CPU_CV": 0.399, "VIN_SYS_5V0": 2.42}
                | {"VDDQ_VDD2_1V8AO": 0.302},
                set(),
            ),
            (f"{NANO} WHAT%IS THIS", {"POM_5V_IN": 1.5, "POM_5V_CPU": 0.2}, {"WHAT%IS", "THIS"}),
        ],
    )
    def test_lines(self, line: str, rails: dict[str, float], unknown: set[str]) -> None:
        found = read_line(line)
        assert found.rails_w == pytest.approx(rails)
        assert unknown <= set(found.unknown)
        assert bool(found.unknown) == bool(unknown)

    @pytest.mark.parametrize(
        ("line", "use"),
        [
            (
                XAVIER,
                {"gpu": 0.03, "gpu_clock": 114, "emc": 0.0, "emc_clock": 1600, "cpu_clock": 1190}
                | {"temperature": 38.5},
            ),
            (
                ORIN,
                {"gpu": 0.0, "gpu_clock": 114, "emc": 0.01, "emc_clock": 2133, "cpu_clock": 729}
                | {"temperature": 48.5},
            ),
            # Two clusters, a sensor that is off, and the hottest place by its name.
            (
                AGX_ORIN,
                {"gpu": 0.0, "gpu_clock": 0, "emc": 0.0, "emc_clock": 2133, "cpu_clock": 729}
                | {"temperature": 46.031},
            ),
            (NANO, {"cpu_clock": 102}),
            ("cpu [5%,off,off,1%]@1734 GR3D 99%@998 EMC 3%", {"cpu_clock": 1734, "gpu": 0.99}),
            ("GR3D_FREQ 250%@114 PMIC@100C CV0@-256C", {"gpu_clock": 114}),
        ],
    )
    def test_what_a_line_shows_beside_power(self, line: str, use: dict[str, float]) -> None:
        found = read_line(line).use
        assert use.items() <= found.items()
        assert set(found) - set(use) <= {"emc", "gpu_clock"} - set(use)

    def test_a_board_is_learned_from_and_estimated_by(self, tools: Path) -> None:
        printing(tools, ORIN.replace("GR3D_FREQ 0%", "GR3D_FREQ 40%"))
        sampler = Sampler(meters=[Tegrastats()])
        sampler.open()
        sampler.sample(None)
        sample = sampler.sample(None)
        sampler.close()
        assert sample is not None
        columns = sample.columns
        assert (columns["machine.gpu_share"], columns["machine.gpu_clock_mhz"]) == (0.4, 114)
        assert columns["machine.temperature_c"] == 48.5
        model = UtilisationModel(
            features=(
                Feature(name="gpu", low=0, high=1),
                Feature(name="emc_clock", low=0, high=3000),
            ),
            form=Linear(base_w=2.0, per_unit_w=(10.0, 0.001)),
            source="made up",
        )
        meter = Estimate(model=model)
        meter.open()
        try:
            assert meter.sample().power_w[0] == pytest.approx(2 + 4 + 2.133)
        finally:
            meter.close()

    def test_a_running_tool(self, tools: Path) -> None:
        assert Tegrastats.find(Roots()).state == "absent"
        printing(tools, f"{ORIN} WHAT%IS THIS")
        meter = Tegrastats()
        channels = meter.open()
        try:
            assert [each.domain for each in channels] == ["node", "other", "other"]
            assert meter.sample().power_w[0] == pytest.approx(4.88)
        finally:
            meter.close()
        assert math.isnan(meter.sample().power_w[0])
        assert meter.unknown > 0

    @pytest.mark.parametrize(
        ("line", "channel", "watts"),
        [
            (XAVIER, "VDD_IN", 3.48),
            (ORIN, "VDD_IN", 4.88),
            (NANO, "POM_5V_IN", 1.5),
            (AGX_XAVIER, "board", 0.466 + 0.311 + 1.399 + 0.0 + 0.155 + 1.765),
            # The memory is fed by VIN_SYS_5V0, and in it already.
            (AGX_ORIN, "board", 1.995 + 0.399 + 2.42),
            (THOR, "VIN", 23.5),
        ],
    )
    def test_what_the_board_draws(self, tools: Path, line: str, channel: str, watts: float) -> None:
        printing(tools, line)
        meter = Tegrastats()
        channels = meter.open()
        try:
            (node,) = [place for place, each in enumerate(channels) if each.domain == "node"]
            assert channels[node].name == channel
            assert meter.sample().power_w[node] == pytest.approx(watts)
        finally:
            meter.close()

    def test_a_board_that_nobody_knows_is_refused(self, tools: Path) -> None:
        printing(tools, "RAM 1/2MB (lfb 1x4MB) VDD_THIS 100/100 VDD_THAT 200/200")
        with pytest.raises(MeterProblem, match="VDD_THIS, VDD_THAT, and it is not known which"):
            Tegrastats().open()
        assert Tegrastats.find(Roots()).state == "absent"

    def test_what_is_not_understood_is_shown_once(self, tools: Path) -> None:
        printing(tools, f"{ORIN} WARP7%", f"{ORIN} WARP8% FLUX")
        assert Tegrastats.find(Roots()).what.endswith(
            "(parts of a line that are not understood: WARP#%)"
        )
        meter = Tegrastats()
        meter.open()
        try:
            problems = [problem for _ in range(10) for problem in seen_after(meter)]
        finally:
            meter.close()
        # What stood in the line that opening took is told as well, and each part once.
        told = " ".join(problems).replace("parts of a line that are not understood: ", "")
        assert told.split() == ["WARP#%", "FLUX"]

    def test_a_tool_that_hangs_is_silent(
        self, tools: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        printing(tools, ORIN)
        meter = Tegrastats()
        meter.open()
        try:
            assert meter.sample().power_w[0] == pytest.approx(4.88)
            later = time.monotonic() + 1.5
            monkeypatch.setattr("lowtide.meters.tegrastats.time.monotonic", lambda: later)
            reading = meter.sample()
            assert all(math.isnan(watts) for watts in reading.power_w)
            assert reading.problems == ("tegrastats has printed nothing for over 1 s",)
        finally:
            monkeypatch.undo()
            meter.close()


def printing(tools: Path, *lines: str) -> None:
    """A tool that prints lines a moment apart, and then hangs."""
    path = tools / "tegrastats"
    said = "sleep 0.05\n".join(f"echo '{line}'\n" for line in lines)
    path.write_text(f"#!/bin/sh\n{said}exec sleep 9\n")
    path.chmod(0o755)


def seen_after(meter: Tegrastats) -> tuple[str, ...]:
    time.sleep(0.02)
    return meter.sample().problems
