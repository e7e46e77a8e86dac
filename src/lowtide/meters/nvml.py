"""NVIDIA GPUs by NVML: what they draw, how busy and full they are, and who runs on them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lowtide.errors import MeterProblem, MissingExtra
from lowtide.files import read_or_empty
from lowtide.meters.meter import (
    MOST_W,
    BaseMeter,
    Channel,
    Counter,
    Reading,
    checked,
)
from lowtide.monitor.gpus import NVIDIA_MAJOR, GpuProcess, GpuReading, check

# Shares of a GPU by process take milliseconds to ask for, and are asked for only where they are
# shared out: one process alone has all of it.
_SHARED = 2
# GPUs are divided anew, taken out and brought back while the node runs.
_LISTED_S = 60.0


def _load(library: Any, extra: str) -> Any:
    """Return a library that answers like NVML: the one given, or else the real one."""
    if library is not None:
        return library
    try:
        import pynvml
    except ImportError:
        raise MissingExtra("reading NVIDIA GPUs", extra=extra) from None
    return pynvml


def _start(nvml: Any) -> list[Any]:
    """Start the library and return what it knows each GPU by."""
    try:
        nvml.nvmlInit()
        return _handles(nvml)
    except nvml.NVMLError as error:
        raise MeterProblem(f"NVML: {error}") from None


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]


def _asked(nvml: Any, question: Callable[..., Any], *about: Any) -> Any:
    """Return the answer to a question, None where the driver has none."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None


def _number(nvml: Any, question: Callable[..., Any], *about: Any) -> float:
    answer = _asked(nvml, question, *about)
    return math.nan if answer is None else float(answer)


def _uuid(nvml: Any, handle: Any) -> str:
    said = _asked(nvml, getattr(nvml, "nvmlDeviceGetUUID", _silent), handle) or ""
    return said.decode() if isinstance(said, bytes) else str(said)


def _busy_by_process(nvml: Any, gpu: _Gpu | _Metered) -> dict[int, list[float]] | None:
    """Return what share of a GPU each process kept busy since this was last asked, oldest first.

    None where the driver does not tell processes apart, or none did anything.
    """
    try:
        said = nvml.nvmlDeviceGetProcessUtilization(gpu.handle, gpu.asked)
    except (nvml.NVMLError, AttributeError):
        return None
    shares: dict[int, list[float]] = {}
    for each in sorted(said, key=lambda each: each.timeStamp):
        gpu.asked = max(gpu.asked, each.timeStamp)
        # Drivers are known to say more than all of it.
        if 0 <= each.smUtil <= 100:
            shares.setdefault(each.pid, []).append(each.smUtil / 100)
    return shares


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
        self.library = _load(self.library, "watch")
        self._list(_start(self.library))
        if not self._gpus:
            raise MeterProblem("NVML knows no GPU")

    def read(self) -> list[GpuReading]:
        """Return all GPUs; instances instead of a GPU that is divided."""
        if time.monotonic() - self._listed_s >= _LISTED_S:
            try:
                self._list(_handles(self.library))
            except self.library.NVMLError:
                # A driver that is being exchanged knows none for a while: those known say nothing.
                self._listed_s = time.monotonic()
        return [self._read(gpu) for gpu in self._gpus]

    def close(self) -> None:
        """Let go of the library."""
        if self._gpus:
            self._gpus.clear()
            self.library.nvmlShutdown()

    def _list(self, handles: list[Any]) -> None:
        asked = {gpu.uuid: gpu.asked for gpu in self._gpus}
        found = [gpu for at, handle in enumerate(handles) for gpu in self._find(at, handle)]
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
        memory = self._asked(self.library.nvmlDeviceGetMemoryInfo, handle)
        return _Gpu(
            name=name,
            handle=handle,
            uuid=_uuid(self.library, handle),
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
        shared = len(runs) >= _SHARED and not gpu.is_instance
        by_process = (_busy_by_process(nvml, gpu) if shared else None) or {}
        mean = {pid: sum(parts) / len(parts) for pid, parts in by_process.items()}
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
                GpuProcess(pid=pid, memory_bytes=held, busy=mean.get(pid, math.nan))
                for pid, held in runs.items()
            ),
            rejected=rejected,
        )

    def _asked(self, question: Callable[..., Any], *about: Any) -> Any:
        return _asked(self.library, question, *about)


@dataclass(slots=True)
class _Metered:
    handle: Any
    channel: Channel
    counter: Counter
    asked: int = 0  # until when what its processes do is known, microseconds


@dataclass(slots=True, kw_only=True)
class Nvml(BaseMeter):
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
        held_s: How often it is asked how full they are and who runs on them, at most.
        heeded: The GPUs whose use is asked for, by name; None for all. Power is read of all.
    """

    name: ClassVar[str] = "nvml"
    library: Any = None
    count_s: float = 5.0
    use_s: float = 2.0
    held_s: float = 1.0
    heeded: frozenset[str] | None = None
    _gpus: list[_Metered] = field(default_factory=list, init=False)
    _counted: float = field(default=-math.inf, init=False)
    _used: tuple[float, dict[str, float]] = field(default=(-math.inf, {}), init=False)
    _held: tuple[float, list[tuple[float, float]]] = field(default=(-math.inf, []), init=False)

    def open(self) -> tuple[Channel, ...]:
        """Start the library and find the GPUs."""
        for number, handle in enumerate(_start(self._nvml())):
            channel = Channel(name=f"gpu-{number}", domain="gpu")
            self._gpus.append(_Metered(handle, channel, Counter(unit_j=1e-3, most_w=MOST_W["gpu"])))
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
                total = _number(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, gpu.handle)
            energies.append(gpu.counter.add(total, moment))
            if gpu.counter.was_reset:
                resets.append(gpu.channel)
        if count:
            self._counted = moment
        channels = [gpu.channel for gpu in self._gpus]
        return checked(now, channels, powers, energies, resets=resets)

    def identities(self, name: str) -> tuple[str, ...]:
        """Return by what a GPU is named beside its channel; nothing where the driver is silent."""
        nvml = self._nvml()
        uuid = next((_uuid(nvml, gpu.handle) for gpu in self._gpus if gpu.channel.name == name), "")
        return (uuid,) if uuid else ()

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
                _busy_by(nvml, gpu, pids) if memory else 0.0
                for gpu, memory in zip(self._gpus, held, strict=True)
            ]
            used = {"gpu_busy": sum(busy), "gpu_memory_bytes": sum(held)}
            self._used = (now, used)
        return dict(used)

    def use(self) -> dict[str, float]:
        """Return how busy the GPUs are, how full, how fast, and whether anybody has one open.

        Means over those that are heeded; what the driver does not tell is NaN. A GPU on which a
        program has opened a context draws more than an idle one, however little it does.
        """
        nvml = self._nvml()
        gpus = [gpu for gpu in self._gpus if self.heeded is None or gpu.channel.name in self.heeded]
        now = time.monotonic()
        if now - self._held[0] >= self.held_s:
            self._held = (now, [_held_share(nvml, gpu.handle) for gpu in gpus])
        rates = [_asked(nvml, nvml.nvmlDeviceGetUtilizationRates, gpu.handle) for gpu in gpus]
        clock = getattr(nvml, "nvmlDeviceGetClockInfo", None)
        clocks = [
            math.nan if clock is None else _number(nvml, clock, gpu.handle, nvml.NVML_CLOCK_SM)
            for gpu in gpus
        ]
        full, opened = zip(*self._held[1], strict=True) if self._held[1] else ((), ())
        return {
            "gpu": _mean([_share(rate, "gpu") for rate in rates]),
            "gpu_memory_busy": _mean([_share(rate, "memory") for rate in rates]),
            "gpu_clock": _mean(clocks),
            "gpu_memory": _mean(full),
            "gpu_open": _mean(opened),
        }

    def close(self) -> None:
        """Let go of the library."""
        if self._gpus:
            self._gpus.clear()
            self._nvml().nvmlShutdown()

    def _nvml(self) -> Any:
        self.library = _load(self.library, "nvidia")
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
    return 1e-3 * _number(nvml, nvml.nvmlDeviceGetPowerUsage, handle)


def _share(rates: Any, name: str) -> float:
    """Return a share of the last moments; drivers are known to say more than all of it."""
    rate = getattr(rates, name, math.nan)
    return rate / 100 if 0 <= rate <= 100 else math.nan


def _held_share(nvml: Any, handle: Any) -> tuple[float, float]:
    """Return what share of a GPU's memory is in use, and whether a program has it open."""
    memory = _asked(nvml, getattr(nvml, "nvmlDeviceGetMemoryInfo", _silent), handle)
    full = math.nan if memory is None or not memory.total > 0 else memory.used / memory.total
    runs = _asked(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return full if 0 <= full <= 1 else math.nan, math.nan if runs is None else float(bool(runs))


def _silent(*_: Any) -> None:
    """Answer for a library that does not know a question."""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _held_bytes(nvml: Any, handle: Any, pids: set[int]) -> float:
    processes = _asked(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return float(sum(each.usedGpuMemory or 0 for each in processes if each.pid in pids))


def _busy_by(nvml: Any, gpu: _Metered, pids: set[int]) -> float:
    """Return what share of a GPU some processes keep busy, by the newest word on each."""
    by_process = _busy_by_process(nvml, gpu)
    if by_process is None:
        # The GPU's own use stands for them.
        rates = _asked(nvml, nvml.nvmlDeviceGetUtilizationRates, gpu.handle)
        return math.nan if rates is None else float(rates.gpu) / 100
    return float(sum(shares[-1] for pid, shares in by_process.items() if pid in pids))
