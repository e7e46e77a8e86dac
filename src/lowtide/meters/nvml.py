"""NVML: power and energy of NVIDIA GPUs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lowtide.errors import MeterProblem, MissingExtra
from lowtide.meters.meter import Channel, Counter, Found, Reading, Roots, checked


@dataclass(slots=True)
class _Gpu:
    handle: Any
    channel: Channel
    counter: Counter


@dataclass(slots=True, kw_only=True)
class Nvml:
    """Each GPU's power, and its energy counter where it has one (Volta and later).

    Attributes:
        library: The `pynvml` module, or one that answers like it.
    """

    name: ClassVar[str] = "nvml"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    library: Any = None
    _gpus: list[_Gpu] = field(default_factory=list, init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks the driver, not the kernel
        """Say whether there are NVIDIA GPUs.

        Args:
            roots: Not looked at.
        """
        try:
            meter = cls()
            channels = meter.open()
            watts = meter.sample().power_w
            meter.close()
        except MissingExtra as error:
            return Found(meter=cls.name, state="absent", what=str(error))
        except MeterProblem as error:
            return Found(meter=cls.name, state="absent", what=str(error))
        names = ", ".join(channel.name for channel in channels)
        if all(math.isnan(each) for each in watts):
            return Found(meter=cls.name, state="constant 0", what=f"{names}: no power reading")
        return Found(meter=cls.name, state="works", what=names)

    def open(self) -> tuple[Channel, ...]:
        """Start the library and find the GPUs."""
        nvml = self._nvml()
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise MeterProblem(f"NVML: {error}") from None
        for number in range(count):
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            channel = Channel(name=f"gpu-{number}", domain="gpu")
            self._gpus.append(_Gpu(handle, channel, Counter(unit_j=1e-3)))
        if not self._gpus:
            raise MeterProblem("NVML knows no GPU")
        self.sample()
        return tuple(gpu.channel for gpu in self._gpus)

    def sample(self) -> Reading:
        """Read all GPUs."""
        nvml = self._nvml()
        now = time.time()
        powers, energies = [], []
        for gpu in self._gpus:
            powers.append(1e-3 * _asked(nvml, nvml.nvmlDeviceGetPowerUsage, gpu.handle))
            total = _asked(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, gpu.handle)
            energies.append(gpu.counter.add(total))
        return checked(now, [gpu.channel for gpu in self._gpus], powers, energies)

    def usage(self, pids: set[int]) -> dict[str, float]:
        """Return how busy the GPUs are, and what memory some processes hold on them.

        Args:
            pids: The processes.
        """
        nvml = self._nvml()
        busy, held = 0.0, 0.0
        for gpu in self._gpus:
            try:
                busy += nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle):
                    if process.pid in pids:
                        held += process.usedGpuMemory or 0
            except nvml.NVMLError:
                continue
        return {"gpu_busy": busy, "gpu_memory_bytes": held}

    def close(self) -> None:
        """Let go of the library."""
        if self._gpus:
            self._gpus.clear()
            self._nvml().nvmlShutdown()

    def _nvml(self) -> Any:
        if self.library is None:
            try:
                import pynvml
            except ImportError:
                raise MissingExtra("reading NVIDIA GPUs", extra="nvidia") from None
            self.library = pynvml
        return self.library


def _asked(nvml: Any, question: Any, handle: Any) -> float:
    try:
        return float(question(handle))
    except nvml.NVMLError:
        return math.nan
