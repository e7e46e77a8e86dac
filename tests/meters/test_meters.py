"""Every meter on a tree or a tool whose values are known."""

from __future__ import annotations

import json
import math
import types
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import MeterProblem, MissingExtra
from lowtide.meters import Channel, Roots
from lowtide.meters.amd import Amd, read_powers
from lowtide.meters.estimate import Estimate
from lowtide.meters.hwmon import Hwmon
from lowtide.meters.ipmi import Ipmi, read_watts
from lowtide.meters.meter import Counter, checked, run_tool
from lowtide.meters.nvml import Nvml
from lowtide.meters.power_model import UtilisationModel
from support.meters import hanging, tool, tree


def test_counters_wrap_reset_and_pause() -> None:
    counter = Counter(unit_j=1.0, wraps_at=100.0, most_w=30.0)
    counts = ((90, 0), (95, 1), (5, 2), (30, 3))
    assert [counter.add(*each) for each in counts] == [0, 5, 15, 40]
    # Up to its range it would have been 72 J in a second: it was reset, and has counted 2 since.
    assert counter.add(2, 4) == 42
    assert counter.was_reset
    assert math.isnan(counter.add(math.nan, 5))
    assert counter.add(12, 6) == 52
    assert not counter.was_reset
    # From the upper half of the range too, unless it had the time.
    assert [counter.add(30, 7), counter.add(60, 8), counter.add(1, 9)] == [70, 100, 101]
    assert counter.was_reset
    assert counter.add(61, 12) == 161
    assert counter.add(1, 14) == 201
    # A leap is no energy either.
    assert counter.add(91, 15) == 201
    assert counter.was_reset


def test_readings_beyond_physics_are_left_out() -> None:
    gpu = Channel(name="gpu-0", domain="gpu")
    reading = checked(0.0, [gpu], [2e6])
    assert math.isnan(reading.power_w[0])
    assert reading.problems == ("gpu-0 read 2e+06 W, which a gpu cannot draw; left out",)
    assert math.isnan(checked(0.0, [gpu], [-5.0]).power_w[0])


def test_hwmon(tmp_path: Path) -> None:
    base = "sys/class/hwmon"
    roots = tree(
        tmp_path,
        {
            f"{base}/hwmon0/name": "amdgpu\n",
            f"{base}/hwmon0/power1_average": "35000000\n",
            f"{base}/hwmon0/power1_label": "PPT\n",
            f"{base}/hwmon1/name": "power_meter\n",
            f"{base}/hwmon1/power1_average": "212000000\n",
            f"{base}/hwmon1/power1_input": "1\n",
            f"{base}/hwmon2/name": "nvme\n",
            f"{base}/hwmon2/temp1_input": "40000\n",
        },
    )
    assert Hwmon.find(roots).state == "works"
    meter = Hwmon(roots=roots)
    channels = meter.open()
    assert [(each.name, each.domain) for each in channels] == [
        ("hwmon0-amdgpu-PPT", "gpu"),
        ("hwmon1-power_meter-power1", "node"),
    ]
    assert meter.sample().power_w == pytest.approx((35.0, 212.0))
    assert Hwmon.find(Roots(sysfs=tmp_path / "none")).state == "absent"


DCMI = """
    Instantaneous power reading:                   218 Watts
    Minimum during sampling period:                 91 Watts
    Maximum during sampling period:                411 Watts
    Average power reading over sample period:      221 Watts
"""
FREEIPMI = """Current Power                        : 164 Watts
Minimum Power over sampling duration : 20 watts
"""


class TestIpmi:
    def test_both_tools(self) -> None:
        assert read_watts(DCMI) == 218.0
        assert read_watts(FREEIPMI) == 164.0
        with pytest.raises(MeterProblem, match="no DCMI"):
            read_watts("Power reading state is: deactivated")

    def test_the_tool_is_asked(self, tools: Path) -> None:
        assert Ipmi.find(Roots()).state == "absent"
        tool(tools, "ipmitool", DCMI)
        assert Ipmi.find(Roots()).state == "works"
        meter = Ipmi()
        assert meter.open()[0].domain == "node"
        assert meter.sample().power_w == (218.0,)

    def test_no_permission_has_a_cure(self, tools: Path) -> None:
        tool(tools, "ipmitool", "Could not open device at /dev/ipmi0", status=1)
        found = Ipmi.find(Roots())
        assert (found.state, "setfacl" in found.cure) == ("no permission", True)

    def test_without_a_controller_there_is_nothing_to_allow(self, tools: Path) -> None:
        said = "Could not open device at /dev/ipmi0 or /dev/ipmi/0: No such file or directory"
        tool(tools, "ipmitool", said, status=1)
        assert Ipmi.find(Roots()).state == "absent"

    def test_a_dead_tool_is_not_waited_for(self, tools: Path) -> None:
        hanging(tools, "ipmitool")
        with pytest.raises(MeterProblem, match="did not answer within"):
            Ipmi(timeout_s=0.2).open()


class FakeNvml(types.SimpleNamespace):  # its names are those of the library
    """Answers like the driver's library, for two GPUs of which one is old."""

    class NVMLError(Exception):
        pass

    energy_mj = 1_000_000

    def nvmlInit(self) -> None:  # noqa: N802
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return (665_000, 2_000_000_000)[handle]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if handle:
            raise self.NVMLError("not supported")
        return self.energy_mj

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> types.SimpleNamespace:  # noqa: N802
        return types.SimpleNamespace(gpu=(90, 10)[handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[types.SimpleNamespace]:  # noqa: N802
        return [types.SimpleNamespace(pid=7 + handle, usedGpuMemory=1000)]


class NewFakeNvml(FakeNvml):
    """Tells the power of the moment of its first GPU, and what each process does."""

    NVML_FI_DEV_POWER_INSTANT = 186

    def nvmlDeviceGetFieldValues(  # noqa: N802
        self, handle: int, fields: list[int]
    ) -> list[types.SimpleNamespace]:
        assert fields == [self.NVML_FI_DEV_POWER_INSTANT]
        value = types.SimpleNamespace(uiVal=700_500)
        return [types.SimpleNamespace(nvmlReturn=(0, 3)[handle], value=value)]

    def nvmlDeviceGetProcessUtilization(  # noqa: N802
        self, handle: int, since: int
    ) -> list[types.SimpleNamespace]:
        said = [(7, 30, 2000), (7, 50, 3000), (7, 2_000_000, 3500), (9, 20, 3000)]
        said = said if handle == 0 else [(8, 10, 2500)]
        return [
            types.SimpleNamespace(pid=pid, smUtil=use, timeStamp=at)
            for pid, use, at in said
            if at > since
        ]


class TestNvml:
    def test_power_energy_and_who_holds_memory(self) -> None:
        library = FakeNvml()
        meter = Nvml(library=library, count_s=0.0)
        assert [each.name for each in meter.open()] == ["gpu-0", "gpu-1"]
        library.energy_mj += 5_000
        reading = meter.sample()
        assert reading.power_w[0] == 665.0
        assert reading.energy_j[0] == pytest.approx(5.0)
        assert math.isnan(reading.energy_j[1])
        # Two megawatts are no reading.
        assert math.isnan(reading.power_w[1])
        assert "gpu-1 read 2e+06 W" in reading.problems[0]
        # It does not tell what each process does: the use of the GPU they hold stands for it.
        assert meter.usage({7}) == {"gpu_busy": 0.9, "gpu_memory_bytes": 1000.0}
        meter.close()
        assert not library.open

    def test_a_counter_that_is_reset_is_noted(self) -> None:
        library = FakeNvml()
        meter = Nvml(library=library, count_s=0.0)
        meter.open()
        library.energy_mj = 100
        assert "the energy counter of gpu-0 was reset" in " ".join(meter.sample().problems)

    def test_the_power_of_the_moment_where_there_is_one(self) -> None:
        meter = Nvml(library=NewFakeNvml())
        meter.open()
        # The second GPU refuses, and is asked for the mean of the last second.
        assert meter.sample().power_w[0] == 700.5
        assert "gpu-1 read 2e+06 W" in meter.sample().problems[0]

    def test_what_each_process_does(self) -> None:
        meter = Nvml(library=NewFakeNvml())
        meter.open()
        # Of its two reports that can be the later one counts; process 9 is somebody else's.
        assert meter.usage({7, 8})["gpu_busy"] == pytest.approx(0.6)

    def test_a_use_beyond_all_of_a_gpu_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        meter = Nvml(library=FakeNvml())
        meter.open()
        assert meter.use()["gpu"] == 0.5
        rates = types.SimpleNamespace(gpu=500)
        monkeypatch.setattr(FakeNvml, "nvmlDeviceGetUtilizationRates", lambda *_: rates)
        assert math.isnan(meter.use()["gpu"])

    def test_the_counter_is_read_every_few_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr("lowtide.meters.nvml.time.monotonic", lambda: now[0])
        library = FakeNvml()
        meter = Nvml(library=library)
        meter.open()
        library.energy_mj += 5_000
        now[0] += 4.9
        assert math.isnan(meter.sample().energy_j[0])
        now[0] += 0.1
        assert meter.sample().energy_j[0] == pytest.approx(5.0)

    def test_without_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
        with pytest.raises(MissingExtra, match="nvidia"):
            Nvml().open()
        assert Nvml.find(Roots()).state == "absent"


AMD_SMI = [
    {"gpu": 0, "power": {"socket_power": {"value": 244, "unit": "W"}}},
    {"gpu": 1, "power": {"socket_power": "N/A", "average_socket_power": "97 W"}},
]
ROCM_SMI = {
    "card0": {"Average Graphics Package Power (W)": "37.0"},
    "card1": {"Current Socket Graphics Package Power (W)": "120"},
    "system": {},
}


class TestAmd:
    def test_both_tools(self) -> None:
        assert read_powers(json.dumps(AMD_SMI)) == {"gpu-0": 244.0, "gpu-1": 97.0}
        assert read_powers(json.dumps({"gpu_data": AMD_SMI}))["gpu-0"] == 244.0
        assert read_powers(json.dumps(ROCM_SMI)) == {"gpu-0": 37.0, "gpu-1": 120.0}
        with pytest.raises(MeterProblem, match="no JSON"):
            read_powers("ERROR: no devices")

    def test_words_are_no_power(self, tools: Path) -> None:
        cards = {
            "card0": {
                "Average Graphics Package Power (W)": "N/A",
                "Current Socket Graphics Package Power (W)": "84.0",
            },
            "card1": {"Average Graphics Package Power (W)": "N/A"},
        }
        powers = read_powers(json.dumps(cards))
        assert powers["gpu-0"] == 84.0
        assert math.isnan(powers["gpu-1"])
        silent = json.dumps([{"gpu": 0, "power": "N/A"}])
        assert math.isnan(read_powers(silent)["gpu-0"])
        with pytest.raises(MeterProblem, match="no list of GPUs"):
            read_powers('"N/A"')
        tool(tools, "amd-smi", silent)
        assert Amd.find(Roots()).state == "constant 0"

    def test_the_tool_is_asked(self, tools: Path) -> None:
        assert Amd.find(Roots()).state == "absent"
        tool(tools, "rocm-smi", json.dumps(ROCM_SMI))
        meter = Amd()
        meter.open()
        assert meter.sample().power_w == (37.0, 120.0)


class TestEstimate:
    def test_power_follows_use(self, tmp_path: Path) -> None:
        roots = tree(tmp_path, {"proc/stat": "cpu 100 0 100 800 0 0 0 0 0 0\ncpu0 1\n"})
        model = UtilisationModel.points((0.0, 0.5, 1.0), (50.0, 150.0, 180.0), source="x")
        meter = Estimate(model=model, roots=roots)
        meter.open()
        assert not meter.measured
        (tmp_path / "proc/stat").write_text("cpu 125 0 100 875 0 0 0 0 0 0\n")
        assert meter.sample().power_w == (100.0,)
        assert meter.sample().power_w == (100.0,), "without a tick it is as it was"
        (tmp_path / "proc/stat").write_text("cpu 225 0 100 875 0 0 0 0 0 0\n")
        assert meter.sample().power_w == (180.0,)

    def test_it_says_where_the_model_guesses(self, tmp_path: Path) -> None:
        roots = tree(tmp_path, {"proc/stat": "cpu 100 0 100 800 0 0 0 0 0 0\n"})
        model = UtilisationModel.points((0.1, 0.6), (50.0, 150.0), source="x")
        meter = Estimate(model=model, roots=roots)
        meter.open()
        (tmp_path / "proc/stat").write_text("cpu 150 0 100 850 0 0 0 0 0 0\n")
        assert meter.sample().problems == ()
        (tmp_path / "proc/stat").write_text("cpu 250 0 100 850 0 0 0 0 0 0\n")
        reading = meter.sample()
        assert reading.power_w == (150.0,)
        assert "cpu is above the 0.1 to 0.6 that the model was learned from" in reading.problems[0]
        assert "left out" not in reading.problems[0]

    def test_use_is_averaged_as_the_model_was_learned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        roots = tree(tmp_path, {"proc/stat": "cpu 0 0 0 0 0 0 0 0\n"})
        now = [0.0]
        monkeypatch.setattr("lowtide.meters.estimate.time.monotonic", lambda: now[0])
        plain = UtilisationModel.points((0.0, 1.0), (0.0, 100.0), source="x")
        meter = Estimate(model=replace(plain, average_s=1.0), roots=roots)
        meter.open()
        busy = idle = 0
        said = []
        for step in range(1, 31):
            # One second busy, one idle, in steps of a tenth.
            busy, idle = (busy + 10, idle) if (step - 1) // 10 % 2 == 0 else (busy, idle + 10)
            now[0] = step / 10
            (tmp_path / "proc/stat").write_text(f"cpu {busy} 0 0 {idle} 0 0 0 0\n")
            said.append(meter.sample().power_w[0])
        assert said[9] == pytest.approx(100.0)
        assert said[14] == pytest.approx(50.0)
        assert said[19] == pytest.approx(0.0)

    def test_a_model_of_something_else_is_refused(self, tmp_path: Path) -> None:
        roots = tree(tmp_path, {"proc/stat": "cpu 0 0 0 0 0 0 0 0\n"})
        plain = UtilisationModel.points((0.0, 1.0), (0.0, 100.0), source="x")
        strange = replace(plain, features=(replace(plain.features[0], name="gpu_util"),))
        with pytest.raises(MeterProblem, match=r"goes by gpu_util.*--features gpu=gpu_util"):
            Estimate(model=strange, roots=roots).open()
        silent = replace(plain, features=(replace(plain.features[0], name="memory"),))
        with pytest.raises(MeterProblem, match="there is no memory use"):
            Estimate(model=silent, roots=roots).open()

    def test_gpus_are_looked_at_where_the_model_goes_by_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        library = FakeNvml()
        monkeypatch.setattr("lowtide.meters.estimate.Nvml", lambda: Nvml(library=library))
        plain = UtilisationModel.points((0.0, 1.0), (0.0, 100.0), source="x")
        model = replace(plain, features=(replace(plain.features[0], name="gpu"),))
        meter = Estimate(model=model)
        meter.open()
        assert meter.sees_gpus
        assert meter.sample().power_w == (50.0,), "90 % and 10 %"
        meter.close()
        assert not library.open
        # The GPUs of this machine are not those of a recorded one.
        with pytest.raises(MeterProblem, match="no gpu use"):
            Estimate(model=model, roots=tree(tmp_path, {})).open()

    def test_a_recorded_machine_has_cpus_of_its_own(self, tmp_path: Path) -> None:
        cpus = "".join(f"cpu{number} 1 1 1 1 1 1 1 1\n" for number in range(80))
        roots = tree(tmp_path, {"proc/stat": f"cpu 1 1 1 1 1 1 1 1\n{cpus}"})
        assert Estimate(roots=roots).idle_w == UtilisationModel.generic(80).at({"cpu": 0}).power_w
        assert not Estimate(roots=roots).sees_gpus


def test_a_tool_that_is_no_program_is_a_meter_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "amd-smi"
    broken.write_bytes(b"\x00 neither a script nor a binary")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeterProblem, match="amd-smi cannot be run: Exec format error"):
        run_tool(["amd-smi"])
