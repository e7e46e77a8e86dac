"""NVML: power and energy of NVIDIA GPUs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lowtide.errors import MeterProblem, MissingExtra
from lowtide.meters.meter import (
    MOST_W,
    Channel,
    Counter,
    Found,
    Reading,
    Roots,
    checked,
    tried,
)


@dataclass(slots=True)
class _Gpu:
    handle: Any
    channel: Channel
    counter: Counter
    asked: int = 0  # until when what its processes do is known, microseconds


@dataclass(slots=True, kw_only=True)
class Nvml:
    """Each GPU's power, and its energy counter where it has one (Volta and later).

    Power is that of the last tenth of a second where the GPU tells it: what it is usually asked
    for is the mean of a whole second, and so half a second late. The counter is read
    every few seconds.

    Attributes:
        library: The `pynvml` module, or one that answers like it.
        count_s: How often the energy counter is read, at most. That takes the driver of an H200
            5.6 ms of CPU time, and reading power 0.1 ms: ten times a second it would be 6 % of a
            core.
        use_s: How often it is asked what each process does, at most; that takes 2.2 ms.
        heeded: The GPUs whose use is asked for, by name; None for all. Power is read of all.
    """

    name: ClassVar[str] = "nvml"
    measured: ClassVar[bool] = True
    means: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    library: Any = None
    count_s: float = 5.0
    use_s: float = 2.0
    heeded: frozenset[str] | None = None
    _gpus: list[_Gpu] = field(default_factory=list, init=False)
    _counted: float = field(default=-math.inf, init=False)
    _used: tuple[float, dict[str, float]] = field(default=(-math.inf, {}), init=False)

    @classmethod
    def find(cls, roots: Roots) -> Found:  # noqa: ARG003 - asks the driver, not the kernel
        """Say whether there are NVIDIA GPUs."""
        return tried(cls())

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
            self._gpus.append(_Gpu(handle, channel, Counter(unit_j=1e-3, most_w=MOST_W["gpu"])))
        if not self._gpus:
            raise MeterProblem("NVML knows no GPU")
        self.sample()
        return tuple(gpu.channel for gpu in self._gpus)

    def sample(self) -> Reading:
        """Read all GPUs."""
        nvml = self._nvml()
        now = time.time()
        moment = time.monotonic()
        count = moment - self._counted >= self.count_s
        powers, energies, resets = [], [], []
        for gpu in self._gpus:
            powers.append(_power_w(nvml, gpu.handle))
            total = math.nan
            if count:
                total = _asked(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, gpu.handle)
            energies.append(gpu.counter.add(total, moment))
            if gpu.counter.was_reset:
                resets.append(gpu.channel)
        if count:
            self._counted = moment
        channels = [gpu.channel for gpu in self._gpus]
        return checked(now, channels, powers, energies, resets=resets)

    def usage(self, pids: set[int]) -> dict[str, float]:
        """Return how many GPUs some processes keep busy, and what memory they hold on them.

        It is asked for every `use_s` at most, and is the same in between.
        """
        at, used = self._used
        now = time.monotonic()
        if now - at >= self.use_s:
            nvml = self._nvml()
            held = [_held_bytes(nvml, gpu.handle, pids) for gpu in self._gpus]
            busy = [
                _busy(nvml, gpu, pids) if memory else 0.0
                for gpu, memory in zip(self._gpus, held, strict=True)
            ]
            used = {"gpu_busy": sum(busy), "gpu_memory_bytes": sum(held)}
            self._used = (now, used)
        return dict(used)

    def busy_share(self) -> float:
        """Return the share of the time in which the GPUs were busy lately, their mean."""
        nvml = self._nvml()
        gpus = [gpu for gpu in self._gpus if self.heeded is None or gpu.channel.name in self.heeded]
        try:
            rates = [nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu for gpu in gpus]
        except nvml.NVMLError:
            return math.nan
        # Drivers are known to say more than all of it.
        possible = all(0 <= rate <= 100 for rate in rates)
        return sum(rates) / (100 * len(rates)) if rates and possible else math.nan

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


def _power_w(nvml: Any, handle: Any) -> float:
    instant = getattr(nvml, "NVML_FI_DEV_POWER_INSTANT", None)
    if instant is not None:
        try:
            answer = nvml.nvmlDeviceGetFieldValues(handle, [instant])[0]
            if answer.nvmlReturn == 0:
                return 1e-3 * float(answer.value.uiVal)
        except nvml.NVMLError:
            pass
    return 1e-3 * _asked(nvml, nvml.nvmlDeviceGetPowerUsage, handle)


def _held_bytes(nvml: Any, handle: Any, pids: set[int]) -> float:
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return 0.0
    return float(sum(each.usedGpuMemory or 0 for each in processes if each.pid in pids))


def _busy(nvml: Any, gpu: _Gpu, pids: set[int]) -> float:
    """Return what share of a GPU some processes keep busy, by the newest word on each."""
    try:
        said = nvml.nvmlDeviceGetProcessUtilization(gpu.handle, gpu.asked)
    except (nvml.NVMLError, AttributeError):
        # It does not tell processes apart, or none did anything; the GPU's own use stands for them.
        try:
            return float(nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu) / 100
        except nvml.NVMLError:
            return math.nan
    possible = [each for each in said if 0 <= each.smUtil <= 100]
    newest = {each.pid: each for each in sorted(possible, key=lambda each: each.timeStamp)}
    gpu.asked = max((each.timeStamp for each in said), default=gpu.asked)
    return float(sum(each.smUtil for pid, each in newest.items() if pid in pids)) / 100


def _asked(nvml: Any, question: Any, handle: Any) -> float:
    try:
        return float(question(handle))
    except nvml.NVMLError:
        return math.nan
