"""Who holds which GPU."""
# ruff: noqa: N802 - a stub has the names of NVML

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.errors import MeterProblem
from lowtide.meters.nvml import NvmlGpus
from lowtide.monitor.gpus import GpuProcess, GpuReading, hold, match_devices, match_gpus
from lowtide.monitor.owners import list_gpus
from lowtide.monitor.reader import NodeReader
from support.trees import NODE, write, write_group, write_legacy, write_process, write_unified

GIB = 2**30


def gpu(name: str = "gpu-0", *processes: GpuProcess, uuid: str = "") -> GpuReading:
    return GpuReading(name=name, uuid=uuid, minor=int(name[4]), processes=processes)


def run(pid: int, busy: float = math.nan, memory: float = math.nan) -> GpuProcess:
    return GpuProcess(pid=pid, busy=busy, memory_bytes=memory)


UNITS = {10: 0, 11: 0, 20: 1}


@pytest.mark.parametrize(
    ("processes", "holders"),
    [
        # Nobody runs for the one it was given to, which holds it all the same.
        ([run(10)], {0: 1.0, 1: 0.0}),
        ([run(10, busy=0.6), run(20, busy=0.2)], {0: 0.75, 1: 0.25}),
        ([run(10, busy=0.3), run(11, busy=0.3), run(20, busy=0.2)], {0: 0.75, 1: 0.25}),
        ([run(10, busy=0.0, memory=3.0), run(20, busy=0.0, memory=1.0)], {0: 0.75, 1: 0.25}),
        ([run(10), run(20)], {0: 0.5, 1: 0.5}),
        # Somebody else's share is nobody's.
        ([run(10, busy=0.1), run(99, busy=0.3)], {0: 0.25, 1: 0.0}),
        ([run(99)], {1: 0.0}),
        # Nobody runs on it, so it is theirs to whom it was given.
        ([], {1: 1.0}),
    ],
)
def test_shares(processes: list[GpuProcess], holders: dict[int, float]) -> None:
    (found,) = hold([gpu("gpu-0", *processes)], UNITS.get, {"gpu-0": [1, 1]})
    assert found.holders == pytest.approx(holders)


def test_an_idle_gpu_is_theirs_to_whom_it_was_given_whatever_else_has_it_open() -> None:
    watched = replace(gpu("gpu-0", run(10, memory=4.0)), busy=0.0)
    (found,) = hold([watched], UNITS.get, {"gpu-0": [1]})
    assert found.holders == {1: 1.0}
    (found,) = hold([watched], UNITS.get, {})
    assert found.holders == {0: 1.0}


def test_a_gpu_that_was_given_to_two() -> None:
    first, second = hold([gpu("gpu-0"), gpu("gpu-1")], UNITS.get, {"gpu-0": [3, 1]})
    assert first.holders == {1: 0.5, 3: 0.5}
    assert second.holders == {}


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, ["gpu-0", "gpu-2/0", "gpu-2/1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa1111"}, ["gpu-0"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-dddd"}, ["gpu-2/1"]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["gpu-1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, []),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ["gpu-1"]),
        # Inside of a job they are counted from its first one.
        ({"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0"}, []),
        ({"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "1"}, ["gpu-1"]),
        ({"SLURM_JOB_GPUS": "0-1", "SLURM_STEP_GPUS": "1"}, ["gpu-1"]),
        ({"SLURM_JOB_GPUS": "0-1"}, ["gpu-0", "gpu-1"]),
        # Slurm counts instances as GPUs: its second one is not the node's.
        ({"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": "MIG-cccc"}, ["gpu-2/0"]),
    ],
)
def test_what_an_environment_says(environment: dict[str, str], names: list[str]) -> None:
    gpus = [
        gpu("gpu-0", uuid="GPU-aaaa1111-22"),
        gpu("gpu-1", uuid="GPU-bbbb1111-22"),
        gpu("gpu-2/0", uuid="MIG-cccc"),
        gpu("gpu-2/1", uuid="MIG-dddd"),
    ]
    assert match_gpus(list_gpus(environment), gpus) == names


def test_what_devices_say() -> None:
    gpus = [gpu("gpu-0"), gpu("gpu-1")]
    assert match_devices("c 1:3 rwm\nc 195:1 rw\nc 195:255 rwm\n", gpus) == ["gpu-1"]
    assert match_devices("a *:* rwm\n", gpus) == []
    assert match_devices("c 195:* rwm\n", gpus) == []


class NvmlError(Exception):
    pass


class Stub:
    """Answers like NVML on a node with an H200 and one that is divided in two."""

    NVMLError = NvmlError

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.closed = False
        self.runs = {0: [(50, 40 * GIB), (60, None)], "a": [(70, 5 * GIB)], "b": []}

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetMinorNumber(self, handle: object) -> int:
        return int(handle) + 1

    def nvmlDeviceGetMigMode(self, handle: object) -> list[int]:
        return [handle, handle]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: object) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: object, place: int) -> str:
        if place > 1:
            raise NvmlError("not found")
        return "ab"[place]

    def nvmlDeviceGetGpuInstanceId(self, handle: object) -> int:
        return {"a": 3, "b": 5}[str(handle)]

    def nvmlDeviceGetUUID(self, handle: object) -> str:
        return f"MIG-{handle}{handle}{handle}" if isinstance(handle, str) else f"GPU-000{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> SimpleNamespace:
        total = {"a": 35, "b": 70}.get(str(handle), 140)
        return SimpleNamespace(total=total * GIB, used=30 * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> SimpleNamespace:
        assert isinstance(handle, int), "NVML does not know this of instances"
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.runs[handle]]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: object) -> list[SimpleNamespace]:
        raise NvmlError("not supported")

    def nvmlDeviceGetProcessUtilization(self, handle: object, since: int) -> list[SimpleNamespace]:
        self.asked.append(since)
        samples = [(50, 90, 1000), (50, 30, 2000), (60, 20, 2000), (60, 2_000_000, 2500)]
        return [
            SimpleNamespace(pid=pid, smUtil=busy, timeStamp=when) for pid, busy, when in samples
        ]


def test_nvml() -> None:
    stub = Stub()
    gpus = NvmlGpus(library=stub)
    whole, first, second = gpus.read()
    assert (whole.name, whole.uuid, whole.minor) == ("gpu-0", "GPU-0000", 1)
    assert (whole.busy, whole.memory_bytes, whole.total_bytes) == (0.87, 30 * GIB, 140 * GIB)
    # Readings beyond 100 % are none.
    assert [(each.pid, each.busy) for each in whole.processes] == [(50, 0.6), (60, 0.2)]
    assert whole.processes[0].memory_bytes == 40 * GIB
    assert math.isnan(whole.processes[1].memory_bytes)
    assert (first.name, first.uuid) == ("gpu-1/0", "MIG-aaa")
    assert math.isnan(first.busy)
    assert (first.total_bytes, first.share) == (35 * GIB, 0.25)
    assert [each.pid for each in first.processes] == [70]
    assert (second.name, second.processes) == ("gpu-1/1", ())
    gpus.read()
    assert stub.asked == [0, 2500]
    # The shares take long to ask for, and one alone has all of it.
    stub.runs[0] = [(50, 1)]
    gpus.read()
    assert len(stub.asked) == 2
    gpus.close()
    assert stub.closed


def test_what_a_gpu_cannot_be_is_left_out_and_counted() -> None:
    stub = Stub()
    stub.nvmlDeviceGetUtilizationRates = lambda _: SimpleNamespace(gpu=500)  # type: ignore[method-assign]
    stub.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(  # type: ignore[method-assign]
        total=GIB, used=2 * GIB if handle == 0 else 0
    )
    whole = NvmlGpus(library=stub).read()[0]
    assert math.isnan(whole.busy)
    assert math.isnan(whole.memory_bytes)
    assert len(whole.rejected) == 2


def test_divided_anew_while_the_node_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("lowtide.meters.nvml.time.monotonic", lambda: now[0])
    stub = Stub()
    gpus = NvmlGpus(library=stub)
    assert [each.name for each in gpus.read()] == ["gpu-0", "gpu-1/0", "gpu-1/1"]
    stub.runs[1] = []
    stub.nvmlDeviceGetMigMode = lambda _: [0, 0]  # type: ignore[method-assign]
    assert len(gpus.read()) == 3
    now[0] += 61
    assert [each.name for each in gpus.read()] == ["gpu-0", "gpu-1"]

    def fail() -> int:
        raise NvmlError("Driver Not Loaded")

    stub.nvmlDeviceGetCount = fail  # type: ignore[method-assign]
    now[0] += 61
    assert len(gpus.read()) == 2, "those known say what they can"


def test_the_device_of_an_instance(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        devices = Character devices:\\n195 nvidia\\n236 nvidia-caps
        driver/nvidia/capabilities/gpu2/mig/gi5/access = DeviceFileMinor: 48\\nDeviceFileMode: 292
        """,
    )
    _, first, second = NvmlGpus(library=Stub(), procfs=str(tmp_path)).read()
    assert (second.major, second.minor) == (236, 48)
    assert first.minor == -1
    assert match_devices("c 195:1 rw\nc 236:48 r\n", [first, second]) == ["gpu-1/1"]


def test_a_node_without_gpus() -> None:
    stub = Stub()
    stub.nvmlDeviceGetCount = lambda: 0  # type: ignore[method-assign]
    with pytest.raises(MeterProblem, match="no GPU"):
        NvmlGpus(library=stub)

    def fail() -> None:
        raise NvmlError("Driver Not Loaded")

    stub.nvmlInit = fail  # type: ignore[method-assign]
    with pytest.raises(MeterProblem, match="Driver Not Loaded"):
        NvmlGpus(library=stub)


def test_jobs_hold_gpus(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    two = write_unified(tmp_path / "cgroup")
    scope = two / "system.slice/slurmstepd.scope"
    write_group(scope / "job_1")
    write(scope / "job_2/step_0", "cgroup.procs = 80")
    write_group(scope / "job_2")
    inside = "0::/system.slice/slurmstepd.scope/job_1/step_0"
    write_process(tmp_path / "proc", 50, cgroup=inside)
    # 60 is outside and hardly does anything, but it is on a GPU.
    write_process(tmp_path / "proc", 60, cpu_s=0.0, pages=1)
    told = {"SLURM_JOB_ID": "2", "CUDA_VISIBLE_DEVICES": "MIG-bbb"}
    inside = "0::/system.slice/slurmstepd.scope/job_2/step_0"
    write_process(tmp_path / "proc", 80, cgroup=inside, environment=told)
    places = {"procfs": tmp_path / "proc", "sysfs": tmp_path / "sys", "cgroupfs": two}
    with NodeReader(**places, gpus=NvmlGpus(library=Stub()), name=str) as node:
        snapshot = node.read()
    where = {unit.job_id: place for place, unit in enumerate(snapshot.units)}
    assert set(where) == {"1", "2", "60"}
    whole, first, second = snapshot.gpus
    assert whole.holders == pytest.approx({where["1"]: 0.75, where["60"]: 0.25})
    assert first.holders == {}
    assert second.holders == {where["2"]: 1.0}


def test_an_idle_gpu_is_no_shells_though_its_environment_names_it(tmp_path: Path) -> None:
    """A container names its GPUs to all that runs in it."""
    write(tmp_path, NODE)
    told = {"NVIDIA_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}
    write_process(tmp_path / "proc", 60, name="bash", pages=50_000, environment=told)
    job = {"SLURM_JOB_ID": "2", "SLURM_JOB_GPUS": "0"}
    stub = Stub()
    stub.nvmlDeviceGetMigMode = lambda _: [0, 0]  # type: ignore[method-assign]
    stub.runs = {0: [], 1: []}
    places = {"procfs": tmp_path / "proc", "sysfs": tmp_path / "sys"}
    with NodeReader(
        **places, cgroupfs=tmp_path / "cgroup", gpus=NvmlGpus(library=stub), name=str
    ) as node:
        busy = node.read()
        assert busy.gpus[0].holders == {0: 1.0}
        stub.nvmlDeviceGetUtilizationRates = lambda _: SimpleNamespace(gpu=0)  # type: ignore[method-assign]
        assert node.read().gpus[0].holders == {}
        write_process(tmp_path / "proc", 70, environment=job)
        idle = node.read()
        (place,) = [at for at, unit in enumerate(idle.units) if unit.source == "slurm"]
        assert idle.gpus[0].holders == {place: 1.0}


def test_devices_of_version_1_tell_who_was_given_a_gpu(tmp_path: Path) -> None:
    write(tmp_path, NODE)
    root = tmp_path / "cgroup"
    write_legacy(root, "/slurm/uid_0/job_1", devices="c 195:0 rw\\nc 195:255 rw", procs="40")
    write_legacy(root, "/slurm/uid_0/job_2", devices="c 195:1 rw", procs="41")
    stub = Stub()
    stub.nvmlDeviceGetMigMode = lambda _: [0, 0]  # type: ignore[method-assign]
    stub.runs = {0: [], 1: []}
    places = {"procfs": tmp_path / "proc", "sysfs": tmp_path / "sys", "cgroupfs": root}
    with NodeReader(**places, gpus=NvmlGpus(library=stub), name=str) as node:
        snapshot = node.read()
    where = {unit.job_id: place for place, unit in enumerate(snapshot.units)}
    # The stub's first GPU is /dev/nvidia1.
    assert [each.holders for each in snapshot.gpus] == [{where["2"]: 1.0}, {}]
