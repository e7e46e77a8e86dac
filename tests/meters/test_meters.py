"""Every meter on a tree or a tool whose values are known."""

from __future__ import annotations

import http.server
import json
import math
import threading
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import InvalidInput, MeterProblem, MissingExtra
from lowtide.measuring.sampler import choose_meters, total_w
from lowtide.meters import METERS, Channel, Roots
from lowtide.meters.amd import Amd, read_powers
from lowtide.meters.cray import Cray
from lowtide.meters.estimate import Estimate
from lowtide.meters.external import External, look_up
from lowtide.meters.hwmon import Hwmon
from lowtide.meters.ipmi import Ipmi, read_watts
from lowtide.meters.meter import Counter, checked
from lowtide.meters.nvml import Nvml
from lowtide.meters.rapl import Rapl
from lowtide.meters.redfish import Redfish, read_power
from lowtide.meters.slurm_energy import SlurmEnergy, read_node
from lowtide.meters.tegrastats import Tegrastats, read_line
from lowtide.meters.utilisation import UtilisationModel


def tree(root: Path, files: dict[str, str]) -> Roots:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Roots(sysfs=root / "sys", procfs=root / "proc")


def rapl_tree(root: Path, package: str = "258218293244", dram: str = "1000000") -> Roots:
    base = "sys/class/powercap"
    return tree(
        root,
        {
            f"{base}/intel-rapl:0/name": "package-0\n",
            f"{base}/intel-rapl:0/energy_uj": f"{package}\n",
            f"{base}/intel-rapl:0/max_energy_range_uj": "262143328850\n",
            f"{base}/intel-rapl:0:0/name": "core\n",
            f"{base}/intel-rapl:0:0/energy_uj": "5\n",
            f"{base}/intel-rapl:0:1/name": "dram\n",
            f"{base}/intel-rapl:0:1/energy_uj": f"{dram}\n",
            f"{base}/intel-rapl:0:1/max_energy_range_uj": "65712999613\n",
        },
    )


def tool(folder: Path, name: str, says: str, *, status: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {status}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of made-up tools, found before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.fixture
def site() -> Iterator[tuple[str, dict[str, object]]]:
    """A server on loopback that answers with what a test puts in."""
    answers: dict[str, object] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path)
            self.send_response(200 if answer is not None else 404)
            self.end_headers()
            if answer is not None:
                self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()
    thread.join()


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
        assert reading.energy_j == pytest.approx((0.1, 0.0))
        assert reading.power_w[0] > 0
        assert reading.power_w[1] == 0

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
        reading = meter.sample()
        meter.close()
        assert math.isnan(reading.power_w[0])
        assert not math.isnan(reading.power_w[1])


def test_counters_wrap_reset_and_pause() -> None:
    counter = Counter(unit_j=1.0, wraps_at=100.0)
    assert [counter.add(each) for each in (90, 95, 5, 30)] == [0, 5, 15, 40]
    # From the lower half it cannot have wrapped: it was reset.
    assert counter.add(2) == 42
    assert math.isnan(counter.add(math.nan))
    assert counter.add(12) == 52


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


def test_cray(tmp_path: Path) -> None:
    base = "sys/cray/pm_counters"
    roots = tree(
        tmp_path,
        {
            f"{base}/power": "873 W 1700000000000000 us\n",
            f"{base}/energy": "1000 J 1700000000000000 us\n",
            f"{base}/cpu_power": "210 W 1700000000000000 us\n",
            f"{base}/cpu_energy": "500 J 1700000000000000 us\n",
            f"{base}/memory_power": "0 W 1700000000000000 us\n",
            f"{base}/memory_energy": "0 J 1700000000000000 us\n",
            f"{base}/accel0_power": "300 W 1700000000000000 us\n",
            f"{base}/accel0_energy": "9 J 1700000000000000 us\n",
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
    (tmp_path / base / "energy").write_text("1873 J 1700000001000000 us\n")
    reading = meter.sample()
    at = [each.name for each in channels].index("node")
    assert (reading.power_w[at], reading.energy_j[at]) == (873.0, 873.0)
    assert Cray.find(Roots(sysfs=tmp_path / "none")).state == "absent"


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

    def test_a_dead_tool_is_not_waited_for(self, tools: Path) -> None:
        path = tools / "ipmitool"
        path.write_text("#!/bin/sh\nexec sleep 60\n")
        path.chmod(0o755)
        with pytest.raises(MeterProblem, match="did not answer within"):
            Ipmi(timeout_s=0.2).open()


class TestRedfish:
    def test_power_controls_add_up(self) -> None:
        controls = [{"PowerConsumedWatts": 200}, {"PowerConsumedWatts": 44.5}, {"Name": "x"}]
        assert read_power({"PowerControl": controls}) == 244.5
        assert math.isnan(read_power({}))

    def test_the_chassis_is_found(self, site) -> None:
        address, answers = site
        answers["/redfish/v1/Chassis"] = {"Members": [{"@odata.id": "/redfish/v1/Chassis/Self"}]}
        answers["/redfish/v1/Chassis/Self/Power"] = {"PowerControl": [{"PowerConsumedWatts": 344}]}
        meter = Redfish(address=address)
        meter.open()
        assert meter.sample().power_w == (344.0,)

    def test_an_address_without_scheme_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="begins with https"):
            Redfish(address="bmc.example")

    def test_who_does_not_answer(self, site) -> None:
        with pytest.raises(MeterProblem, match="does not answer as Redfish"):
            Redfish(address=f"{site[0]}/redfish/v1/Chassis/1/Power").open()


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
        said = [(7, 30, 2000), (7, 50, 3000), (9, 20, 3000)] if handle == 0 else [(8, 10, 2500)]
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

    def test_the_power_of_the_moment_where_there_is_one(self) -> None:
        meter = Nvml(library=NewFakeNvml())
        meter.open()
        # The second GPU refuses, and is asked for the mean of the last second.
        assert meter.sample().power_w[0] == 700.5
        assert "gpu-1 read 2e+06 W" in meter.sample().problems[0]

    def test_what_each_process_does(self) -> None:
        meter = Nvml(library=NewFakeNvml())
        meter.open()
        # Of its two reports the later one counts; process 9 is somebody else's.
        assert meter.usage({7, 8})["gpu_busy"] == pytest.approx(0.6)

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
NANO = "RAM 1000/3964MB (lfb 5x4MB) CPU [5%@102,off,off,off] POM_5V_IN 1500/1500 POM_5V_CPU 200/200"


class TestTegrastats:
    @pytest.mark.parametrize(
        ("line", "rails", "unknown"),
        [
            (XAVIER, {"VDD_IN": 3.48, "VDD_CPU_GPU_CV": 0.608, "VDD_SOC": 1.136}, {"MTS", "fg"}),
            (ORIN, {"VDD_IN": 4.88, "VDD_CPU_GPU_CV": 0.49, "VDD_SOC": 1.44}, set()),
            (NANO, {"POM_5V_IN": 1.5, "POM_5V_CPU": 0.2}, set()),
        ],
    )
    def test_lines(self, line: str, rails: dict[str, float], unknown: set[str]) -> None:
        found = read_line(line)
        assert found.rails_w == pytest.approx(rails)
        assert unknown <= set(found.unknown)
        assert bool(found.unknown) == bool(unknown)

    def test_a_running_tool(self, tools: Path) -> None:
        assert Tegrastats.find(Roots()).state == "absent"
        path = tools / "tegrastats"
        path.write_text(f"#!/bin/sh\nwhile :; do echo '{ORIN} WHAT%IS THIS'; exec sleep 9; done\n")
        path.chmod(0o755)
        meter = Tegrastats()
        channels = meter.open()
        try:
            assert [each.domain for each in channels] == ["node", "other", "other"]
            assert meter.sample().power_w[0] == pytest.approx(4.88)
        finally:
            meter.close()
        assert math.isnan(meter.sample().power_w[0])
        assert meter.unknown > 0


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

    def test_the_tool_is_asked(self, tools: Path) -> None:
        assert Amd.find(Roots()).state == "absent"
        tool(tools, "rocm-smi", json.dumps(ROCM_SMI))
        meter = Amd()
        meter.open()
        assert meter.sample().power_w == (37.0, 120.0)


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


class TestExternal:
    def test_a_file_that_grows(self, tmp_path: Path) -> None:
        import time

        path = tmp_path / "meter.csv"
        path.write_text("time,watts\n1,999\n")
        meter = External(source=str(path))
        meter.open()
        assert math.isnan(meter.sample().power_w[0])
        with path.open("a") as file:
            file.write(f"{time.time()},123.5\n{time.time()},1")
        assert meter.sample().power_w == (123.5,)
        with path.open("a") as file:
            file.write("24\n")
        assert meter.sample().power_w == (124.0,)
        with path.open("a") as file:
            file.write(f"{time.time() - 100},55\n")
        assert math.isnan(meter.sample().power_w[0]), "an old value is no reading of now"
        meter.close()

    def test_what_pinpoint_writes(self, tmp_path: Path) -> None:
        path = tmp_path / "measurements.csv"
        path.write_text("56430\n")
        meter = External(source=f"pinpoint:{path}")
        meter.open()
        assert math.isnan(meter.sample().power_w[0])
        with path.open("a") as file:
            file.write("57260\n")
        assert meter.sample().power_w == (57.26,)
        # At its end stand the times of its beginning and end, which are no readings.
        with path.open("a") as file:
            file.write("52360\n1720917123.31\n1720917200.5\n")
        assert meter.sample().power_w == (52.36,)
        meter.close()

    def test_json_and_prometheus(self, site) -> None:
        address, answers = site
        answers["/status"] = {"meters": [{"power": 77.0}]}
        meter = External(source=f"{address}/status#meters.0.power")
        meter.open()
        assert meter.sample().power_w == (77.0,)
        answers["/api/v1/query?query=node_watts"] = {
            "data": {"result": [{"metric": {}, "value": [1.0, "250.5"]}]}
        }
        prometheus = External(source=f"prometheus:{address}?query=node_watts")
        prometheus.open()
        assert prometheus.sample().power_w == (250.5,)

    def test_what_is_not_there(self, site, tmp_path: Path) -> None:
        with pytest.raises(MeterProblem, match="no 'b' on the way"):
            look_up({"a": {}}, "a.b")
        with pytest.raises(MeterProblem, match="no number"):
            look_up({"a": "n/a"}, "a")
        with pytest.raises(MeterProblem, match="cannot read"):
            External(source=str(tmp_path / "none.csv")).open()
        with pytest.raises(MeterProblem, match="does not answer"):
            External(source=f"{site[0]}/nothing").open()
        with pytest.raises(InvalidInput, match="say where"):
            External().open()


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
        monkeypatch.setattr("lowtide.meters.usage.time.monotonic", lambda: now[0])
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
        meter = Estimate(model=model, roots=tree(tmp_path, {}))
        meter.open()
        assert meter.sample().power_w == (50.0,), "90 % and 10 %"
        meter.close()
        assert not library.open


def test_nothing_is_counted_twice() -> None:
    def drawn(**watts: float) -> float:
        return total_w(
            [(Channel(name=name, domain=name.rstrip("01")), each) for name, each in watts.items()]
        )

    assert drawn(package0=50, package1=60, dram0=5, gpu0=300) == 415
    assert drawn(node=500, package0=50, gpu0=300) == 500
    assert drawn(psys=90, package0=50, gpu0=300) == 390
    assert math.isnan(drawn(other=5))


def test_without_a_sensor_there_is_an_estimate(tmp_path: Path, tools: Path) -> None:
    roots = tree(tmp_path, {"proc/stat": "cpu 1 1 1 1 1 1 1 1\n"})
    chosen = choose_meters([], roots)
    assert [each.name for each in chosen] == ["estimate"]
    roots = rapl_tree(tmp_path)
    assert [each.name for each in choose_meters([], roots)] == ["rapl"]


def test_meters_are_named(tmp_path: Path) -> None:
    meter = choose_meters(["external:meter.csv"])[0]
    assert isinstance(meter, External)
    assert meter.source == "meter.csv"
    with pytest.raises(InvalidInput, match="takes nothing after its name"):
        choose_meters(["rapl:x"])
    assert set(METERS.names()) >= {"rapl", "nvml", "hwmon", "ipmi", "redfish", "cray", "estimate"}
