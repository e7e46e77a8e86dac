"""NVIDIA GPUs and their instances, as NVML sees them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lowtide.errors import MeterProblem, MissingExtra
from lowtide.files import read_or_empty
from lowtide.monitor.gpus import NVIDIA_MAJOR, GpuProcess, GpuReading, check

# Shares of a GPU by process take milliseconds to ask for, and are asked for only where they are
# shared out: one process alone has all of it.
_SHARED = 2
# GPUs are divided anew, taken out and brought back while the node runs.
_LISTED_S = 60.0


@dataclass(slots=True)
class _Gpu:
    name: str
    handle: Any
    uuid: str
    major: int
    minor: int
    total_bytes: float
    is_instance: bool
    share: float = 1.0
    asked: int = 0


@dataclass(slots=True, kw_only=True)
class NvmlGpus:
    """All NVIDIA GPUs of the node.

    Attributes:
        library: The `pynvml` module, or one that answers like it.
        procfs: Where /proc is.
    """

    library: Any = None
    procfs: str = "/proc"
    _listed_s: float = field(default=-math.inf, init=False)
    _gpus: list[_Gpu] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.library is None:
            try:
                import pynvml
            except ImportError:
                raise MissingExtra("reading NVIDIA GPUs", extra="watch") from None
            self.library = pynvml
        nvml = self.library
        try:
            nvml.nvmlInit()
            self._list()
        except nvml.NVMLError as error:
            raise MeterProblem(f"NVML: {error}") from None
        if not self._gpus:
            raise MeterProblem("NVML knows no GPU")

    def read(self) -> list[GpuReading]:
        """Return all GPUs; instances instead of a GPU that is divided."""
        if time.monotonic() - self._listed_s >= _LISTED_S:
            try:
                self._list()
            except self.library.NVMLError:
                # A driver that is being exchanged knows none for a while: those known say nothing.
                self._listed_s = time.monotonic()
        return [self._read(gpu) for gpu in self._gpus]

    def close(self) -> None:
        """Let go of the library."""
        if self._gpus:
            self._gpus.clear()
            self.library.nvmlShutdown()

    def _list(self) -> None:
        nvml = self.library
        asked = {gpu.uuid: gpu.asked for gpu in self._gpus}
        found = []
        for number in range(nvml.nvmlDeviceGetCount()):
            found += self._find(number, nvml.nvmlDeviceGetHandleByIndex(number))
        for gpu in found:
            gpu.asked = asked.get(gpu.uuid, 0)
        self._gpus = found
        self._listed_s = time.monotonic()

    def _find(self, number: int, handle: Any) -> list[_Gpu]:
        nvml = self.library
        minor = self._asked(nvml.nvmlDeviceGetMinorNumber, handle)
        minor = -1 if minor is None else int(minor)
        whole = self._made(f"gpu-{number}", handle, (NVIDIA_MAJOR, minor))
        mode = self._asked(nvml.nvmlDeviceGetMigMode, handle)
        if not mode or not mode[0]:
            return [whole]
        most = self._asked(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        instances = []
        for place in range(most):
            found = self._asked(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            if found is not None:
                name, device = f"gpu-{number}/{place}", self._device(found, minor)
                instances.append(self._made(name, found, device, is_instance=True))
        for each in instances:
            share = each.total_bytes / whole.total_bytes if whole.total_bytes > 0 else math.nan
            each.share = share if 0 < share <= 1 else 1 / len(instances)
        return instances or [whole]

    def _device(self, instance: Any, minor: int) -> tuple[int, int]:
        """Return the numbers of the device that a group needs to use an instance, or -1."""
        number = self._asked(self.library.nvmlDeviceGetGpuInstanceId, instance)
        driver = f"{self.procfs}/driver/nvidia/capabilities"
        said = read_or_empty(f"{driver}/gpu{minor}/mig/gi{number}/access").split()
        for line in read_or_empty(f"{self.procfs}/devices").splitlines():
            major, _, kind = line.strip().partition(b" ")
            if kind == b"nvidia-caps" and said[:1] == [b"DeviceFileMinor:"]:
                return int(major), int(said[1])
        return -1, -1

    def _made(
        self, name: str, handle: Any, device: tuple[int, int], *, is_instance: bool = False
    ) -> _Gpu:
        uuid = self._asked(self.library.nvmlDeviceGetUUID, handle) or ""
        memory = self._asked(self.library.nvmlDeviceGetMemoryInfo, handle)
        return _Gpu(
            name=name,
            handle=handle,
            uuid=uuid.decode() if isinstance(uuid, bytes) else uuid,
            major=device[0],
            minor=device[1],
            total_bytes=math.nan if memory is None else float(memory.total),
            is_instance=is_instance,
        )

    def _read(self, gpu: _Gpu) -> GpuReading:
        nvml = self.library
        # What an instance does is not told apart from what its neighbours do.
        rates = (
            None if gpu.is_instance else self._asked(nvml.nvmlDeviceGetUtilizationRates, gpu.handle)
        )
        memory = self._asked(nvml.nvmlDeviceGetMemoryInfo, gpu.handle)
        runs: dict[int, float] = {}
        said = [
            self._asked(question, gpu.handle)
            for question in (
                nvml.nvmlDeviceGetComputeRunningProcesses,
                nvml.nvmlDeviceGetGraphicsRunningProcesses,
            )
        ]
        for each in (process for answer in said for process in answer or ()):
            held = each.usedGpuMemory
            runs[each.pid] = math.nan if held is None else float(held)
        by_process = self._busy(gpu) if len(runs) >= _SHARED and not gpu.is_instance else {}
        busy, memory_bytes, rejected = check(
            gpu.name,
            busy=math.nan if rates is None else rates.gpu / 100,
            memory_bytes=math.nan if memory is None else float(memory.used),
            total_bytes=gpu.total_bytes,
        )
        return GpuReading(
            name=gpu.name,
            uuid=gpu.uuid,
            major=gpu.major,
            minor=gpu.minor,
            busy=busy,
            memory_bytes=memory_bytes,
            total_bytes=gpu.total_bytes,
            share=gpu.share,
            processes=None
            if said[0] is None
            else tuple(
                GpuProcess(pid=pid, memory_bytes=held, busy=by_process.get(pid, math.nan))
                for pid, held in runs.items()
            ),
            rejected=rejected,
        )

    def _busy(self, gpu: _Gpu) -> dict[int, float]:
        """Return the mean share of each process since it was last asked for."""
        said = self._asked(self.library.nvmlDeviceGetProcessUtilization, gpu.handle, gpu.asked)
        shares: dict[int, list[float]] = {}
        for each in said or ():
            gpu.asked = max(gpu.asked, each.timeStamp)
            # Drivers are known to say more than all of it.
            if 0 <= each.smUtil <= 100:
                shares.setdefault(each.pid, []).append(each.smUtil / 100)
        return {pid: sum(parts) / len(parts) for pid, parts in shares.items()}

    def _asked(self, question: Callable[..., Any], *about: Any) -> Any:
        try:
            return question(*about)
        except self.library.NVMLError:
            return None
