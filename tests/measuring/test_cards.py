"""Only the program's GPUs are its power."""
# ruff: noqa: N802 - a stub has the names of NVML

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.errors import InvalidInput
from lowtide.formats.recording_parts import GPUS, MEASURES, SUM
from lowtide.measuring import Sampler
from lowtide.measuring.tasks import Companions, SlurmTask
from lowtide.meters.nvml import Nvml
from lowtide.monitor.owners import Card, visible_gpus
from support.steady import Steady

WATTS = (300, 250, 60, 60)
VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_JOB_ID"),
)


class Plain:
    """Four GPUs of a library that answers few questions."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(WATTS)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 1000 * WATTS[handle]

    def nvmlDeviceGetTotalEnergyConsumption(self, _: int) -> int:
        raise self.NVMLError

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=(100, 80, 0, 0)[handle])

    def nvmlDeviceGetComputeRunningProcesses(self, _: int) -> list[Any]:
        return []


class Full(Plain):
    """The same with a library that answers all."""

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{'abcd'[handle] * 8}-1111"

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetMigMode(self, _: int) -> Any:
        raise self.NVMLError

    NVML_CLOCK_SM = 1

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return (1980, 1980, 345, 345)[handle] * kind

    def nvmlDeviceGetMemoryInfo(self, _: int) -> Any:
        return SimpleNamespace(total=80, used=10)

    def nvmlDeviceGetGraphicsRunningProcesses(self, _: int) -> list[Any]:
        return []


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in VARIABLES:
        monkeypatch.delenv(each, raising=False)


def drawn_w(library: Any, *more: Any, **options: Any) -> tuple[float, dict[str, float]]:
    sampler = Sampler(meters=[Nvml(library=library), *more], **options)
    sampler.open()
    try:
        sampler.restart()
        sampler.sample(None)
        sample = sampler.sample(None)
        assert sample is not None
        return sample.power_w, sample.columns
    finally:
        sampler.close()


@pytest.mark.parametrize("library", [Plain, Full])
@pytest.mark.parametrize(
    ("environment", "expected_w"),
    [
        ({}, 670),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 300),
        ({"CUDA_VISIBLE_DEVICES": "1,3"}, 310),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, 250),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "7,0"}, 0),
        ({"SLURM_JOB_GPUS": "1,2"}, 310),
        ({"SLURM_JOB_GPUS": "0-2", "SLURM_STEP_GPUS": "1"}, 250),
        # Numbers of the node, where the driver shows more than the job has.
        ({"SLURM_JOB_GPUS": "1,2", "CUDA_VISIBLE_DEVICES": "1"}, 250),
        # They cannot be: so they count from the job's first one.
        ({"SLURM_JOB_GPUS": "1,2", "CUDA_VISIBLE_DEVICES": "0"}, 250),
        # The driver shows the job's alone.
        ({"SLURM_JOB_GPUS": "4,5,6,7", "CUDA_VISIBLE_DEVICES": "0,1"}, 550),
        ({"ROCR_VISIBLE_DEVICES": "0"}, 670),
    ],
)
def test_the_environment_says_which(
    monkeypatch: pytest.MonkeyPatch, library: Any, environment: dict[str, str], expected_w: float
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    power_w, columns = drawn_w(library())
    assert power_w == pytest.approx(expected_w) or (expected_w == 0 and not power_w > 0)
    # The others are kept beside it.
    assert [columns[f"nvml.gpu-{n}_w"] for n in range(4)] == list(WATTS)


@pytest.mark.parametrize(
    ("said", "expected_w"),
    [("GPU-aaaaaaaa", 300), ("GPU-b", 250), ("GPU-bbbbbbbb-1111,0", 550), ("GPU-zzzz,0", 0)],
)
def test_identities_name_gpus(
    monkeypatch: pytest.MonkeyPatch, said: str, expected_w: float
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    power_w, _ = drawn_w(Full())
    assert power_w == pytest.approx(expected_w) or (expected_w == 0 and not power_w > 0)


def test_what_is_said_counts_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert drawn_w(Full(), gpus="1")[0] == 250
    assert drawn_w(Full(), gpus="2,GPU-aaaa")[0] == 360
    assert drawn_w(Full(), gpus="all")[0] == 670
    assert not drawn_w(Full(), gpus="none")[0] > 0
    for wrong in ("4", "GPU-zz", "one"):
        with pytest.raises(InvalidInput, match="--gpus takes"):
            drawn_w(Full(), gpus=wrong)
    with pytest.raises(InvalidInput, match="--gpus takes"):
        Sampler(meters=[Steady()], gpus="0").open()


def test_amd_goes_by_variables_of_its_own() -> None:
    cards = [Card(name=f"gpu-{n}") for n in range(4)]

    def seen(**environment: str) -> list[str] | None:
        return visible_gpus(environment, cards, amd=True)

    assert seen() is None
    assert seen(ROCR_VISIBLE_DEVICES="2,3") == ["gpu-2", "gpu-3"]
    assert seen(HIP_VISIBLE_DEVICES="1") == ["gpu-1"]
    assert seen(GPU_DEVICE_ORDINAL="3") == ["gpu-3"]
    assert seen(CUDA_VISIBLE_DEVICES="3") == ["gpu-3"]
    assert seen(SLURM_JOB_GPUS="1", ROCR_VISIBLE_DEVICES="0") == ["gpu-1"]


def test_instances_are_of_their_card() -> None:
    whole = Card(name="gpu-0", identities=("GPU-aaaa1111",))
    cards = [whole, Card(name="gpu-1", identities=("GPU-bbbb", "MIG-cccc", "MIG-dddd"))]

    def seen(said: str) -> list[str] | None:
        return visible_gpus({"CUDA_VISIBLE_DEVICES": said}, cards)

    assert seen("MIG-dddd") == ["gpu-1"]
    assert seen("MIG-GPU-aaaa1111/3/0") == ["gpu-0"]
    assert seen("MIG-cccc,MIG-dddd,GPU-aaaa") == ["gpu-1", "gpu-0"]


def test_how_busy_gpus_are_is_asked_of_the_programs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn_w(Full())[1]["machine.gpu_share"] == pytest.approx(0.45)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert drawn_w(Full())[1]["machine.gpu_share"] == pytest.approx(0.8)


def test_clocks_memory_and_open_contexts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    columns = drawn_w(Full())[1]
    assert columns["machine.gpu_clock_mhz"] == pytest.approx((1980 + 345) / 2)
    assert columns["machine.gpu_memory_share"] == pytest.approx(10 / 80)
    assert columns["machine.gpu_open"] == 0.0
    # What a library cannot be asked is missing, and not 0.
    assert "machine.gpu_clock_mhz" not in drawn_w(Plain())[1]


def test_each_gpu_is_read_by_one_task_that_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = []
    read_w = []
    for rank, visible in enumerate(("0", "0,1", "2")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        companions = Companions(task=SlurmTask(job=str(os.getpid()), rank=rank, tasks=4))
        companions.lead()
        sampler = Sampler(meters=[Nvml(library=Full())], companions=companions, named=False)
        sampler.open()
        samplers.append(sampler)
        sampler.sample(None)
        sample = sampler.sample(None)
        assert sample is not None
        read_w.append(sample.power_w)
    assert read_w == [300.0, 250.0, 60.0]
    assert [each.facts[MEASURES] for each in samplers] == [SUM, GPUS, GPUS]
    # One whose GPUs others read has no meter to read.
    none = Sampler(meters=[Nvml(library=Full())], named=False)
    none.companions = Companions(task=SlurmTask(job=str(os.getpid()), rank=3, tasks=4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    none.open()
    assert none.names == []
    for each in (none, *samplers):
        each.close()
