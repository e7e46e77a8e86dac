"""What keeps each part of a machine busy: arithmetic, copying, writing, a GPU's multiplications.

Each load does its work in pieces of a few milliseconds at most, so that a level can be made of work
and rest. NumPy and a GPU's library are imported when a load is made, in the process that bears it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from lowtide.errors import FileProblem, InvalidInput

MIB = 1024**2
# The file that is written over and over; it is taken from the disk before anything starts.
FILE_BYTES = 64 * MIB
# Beyond any cache that one core has to itself.
_COPIED_BYTES = 128 * MIB
_PIECE_BYTES = 4 * MIB
_CACHED_MATRIX = 96
_LARGEST_MATRIX = 8192
# How long a piece of work should take where that can be chosen.
_PIECE_S = (0.002, 0.01)

# What can drive a GPU, in the order of preference, and how to get it.
GPU_LIBRARIES = {"torch": "pip install torch", "cupy": "pip install cupy-cuda12x"}

# Long against a piece of work, short against a step and against what meters average over.
SLICE_S = 0.025


class Arithmetic:
    """Keeps one CPU core busy with multiplying matrices that fit its cache; done in operations."""

    def __init__(self) -> None:
        import numpy as np

        self._numpy = np
        self._one = np.random.default_rng(0).random((_CACHED_MATRIX, _CACHED_MATRIX))
        self._other = self._one.T.copy()
        self._product = np.empty_like(self._one)

    def busy_s(self) -> float:
        """Return the CPU time of this thread."""
        return time.thread_time()

    def work(self) -> float:
        """Multiply once."""
        self._numpy.matmul(self._one, self._other, out=self._product)
        return 2.0 * _CACHED_MATRIX**3


class Copying:
    """Keeps the memory busy with copying what no cache holds; done in bytes read and written."""

    def __init__(self) -> None:
        import numpy as np

        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        size = max(min(_COPIED_BYTES, free_bytes // 8), _PIECE_BYTES)
        # Pages are the process's own only once they are written.
        self._source = np.ones(size // _PIECE_BYTES * _PIECE_BYTES, dtype=np.uint8)
        self._target = np.zeros_like(self._source)
        self._place = 0

    def busy_s(self) -> float:
        """Return the CPU time of this thread: waiting for memory counts as such."""
        return time.thread_time()

    def work(self) -> float:
        """Copy a few megabytes."""
        piece = slice(self._place, self._place + _PIECE_BYTES)
        self._target[piece] = self._source[piece]
        self._place = (self._place + _PIECE_BYTES) % self._source.size
        return 2.0 * _PIECE_BYTES


class Writing:
    """Keeps a disk busy with writing and waiting until it is there; done in bytes written.

    The file has no name once it is made, so that it is gone with the process, however that ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Random, since some file systems keep what repeats itself in less space.
        self._bytes = os.urandom(_PIECE_BYTES)
        try:
            self._file, name = tempfile.mkstemp(dir=folder, prefix=".lowtide-stress-")
            Path(name).unlink()
            # Written whole once, so that the disk cannot be full later, and so that writing over it
            # changes nothing but data: the journal of a file system can take longer than a step.
            for place in range(0, FILE_BYTES, _PIECE_BYTES):
                os.pwrite(self._file, self._bytes, place)
            os.fsync(self._file)
        except OSError as error:
            cure = "free some space, or " if error.errno == errno.ENOSPC else ""
            raise FileProblem(
                f"the disk load needs {FILE_BYTES // MIB} MiB in {folder}: {error.strerror}; "
                f"{cure}name another folder with --folder, or run --without disk",
                path=folder,
            ) from error
        self._size = _PIECE_BYTES // 16
        self._place = 0

    def busy_s(self) -> float:
        """Return the time: the disk works while this process waits."""
        return time.monotonic()

    def work(self) -> float:
        """Write a piece and wait until the disk has it."""
        size, begun = self._size, time.monotonic()
        if self._place + size > FILE_BYTES:
            self._place = 0
        try:
            os.pwrite(self._file, memoryview(self._bytes)[:size], self._place)
            os.fdatasync(self._file)
        except OSError as error:
            raise FileProblem(
                f"the disk load in {self._folder} broke off: {error.strerror}", path=self._folder
            ) from error
        self._place += size
        took_s = time.monotonic() - begun
        # A slow disk gets smaller pieces, lest a step ends late.
        if took_s > _PIECE_S[1]:
            self._size = max(size // 2, 4096)
        elif took_s < _PIECE_S[0]:
            self._size = min(size * 2, _PIECE_BYTES)
        return float(size)


class Multiplying:
    """Keeps every GPU that is visible busy with multiplying matrices; done in operations."""

    def __init__(self) -> None:
        name = gpu_library()
        if name is None:
            raise InvalidInput(gpu_cure("neither torch nor CuPy is installed"))
        library: Any = import_module(name)
        self._devices = _torch_devices(library) if name == "torch" else _cupy_devices(library)
        if not self._devices:
            raise InvalidInput(gpu_cure(f"{name} is installed but sees no GPU"))
        self._size = 1024
        self._fill()
        # The first work waits for the library to load its kernels.
        self.work()
        while self._size < _LARGEST_MATRIX and self._piece_s() < _PIECE_S[0]:
            self._size *= 2
            self._fill()
            self.work()

    def busy_s(self) -> float:
        """Return the time: the GPUs work while this process waits."""
        return time.monotonic()

    def work(self) -> float:
        """Multiply once on every GPU, and wait for all of them."""
        for device in self._devices:
            device.begin()
        for device in self._devices:
            device.wait()
        return 2.0 * self._size**3 * len(self._devices)

    def _piece_s(self) -> float:
        """Return how long a piece of work takes, undisturbed."""
        took_s = []
        for _ in range(3):
            begun = time.monotonic()
            self.work()
            took_s.append(time.monotonic() - begun)
        return min(took_s)

    def _fill(self) -> None:
        for device in self._devices:
            device.fill(self._size)


class _TorchDevice:
    def __init__(self, torch: Any, number: int) -> None:
        self._torch = torch
        self._device = torch.device("cuda", number)

    def fill(self, size: int) -> None:
        self._matrix = self._torch.rand((size, size), device=self._device)
        self._product = self._torch.empty_like(self._matrix)

    def begin(self) -> None:
        self._torch.matmul(self._matrix, self._matrix, out=self._product)

    def wait(self) -> None:
        self._torch.cuda.synchronize(self._device)


class _CupyDevice:
    def __init__(self, cupy: Any, number: int) -> None:
        self._cupy = cupy
        self._device = cupy.cuda.Device(number)

    def fill(self, size: int) -> None:
        with self._device:
            self._matrix = self._cupy.random.random((size, size), dtype="float32")
            self._product = self._cupy.empty_like(self._matrix)

    def begin(self) -> None:
        with self._device:
            self._cupy.matmul(self._matrix, self._matrix, out=self._product)

    def wait(self) -> None:
        self._device.synchronize()


def _torch_devices(torch: Any) -> list[_TorchDevice]:
    if not torch.cuda.is_available():
        return []
    return [_TorchDevice(torch, number) for number in range(torch.cuda.device_count())]


def _cupy_devices(cupy: Any) -> list[_CupyDevice]:
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return []
    return [_CupyDevice(cupy, number) for number in range(count)]


def gpu_library() -> str | None:
    """Return the name of the library that can drive a GPU here, None if there is none."""
    for name in GPU_LIBRARIES:
        # One that is half installed raises where it is looked for.
        with contextlib.suppress(ValueError, ImportError):
            if find_spec(name) is not None:
                return name
    return None


def gpu_cure(why: str) -> str:
    """Say that a GPU cannot be loaded, and what to do."""
    ways = " or ".join(GPU_LIBRARIES.values())
    return f"the plan loads a GPU, and {why} here: {ways}, or leave it out, --without gpu"


def make_load(part: str, *, folder: Path) -> Load:
    """Return what keeps a part busy, ready to work.

    Args:
        part: One of `plan.PARTS`.
    """
    makers: dict[str, Callable[[], Load]] = {
        "cpu": Arithmetic,
        "memory": Copying,
        "disk": lambda: Writing(folder),
        "gpu": Multiplying,
    }
    return makers[part]()


class Load(Protocol):
    """Something that keeps one part of the machine busy."""

    def busy_s(self) -> float:
        """Return a clock that runs while the part is busy."""

    def work(self) -> float:
        """Work for a few milliseconds at most; return how much was done, in the load's unit."""


def keep_level(
    load: Load,
    share: float,
    *,
    start: float,
    end: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[float, float]:
    """Keep a load busy for a share of a stretch of time; return seconds worked and what was done.

    What a slice could not do because the machine was busy, the next slices make up for.

    Args:
        share: From 0, never, to 1, always.
        start: When the stretch begins, by the clock; it may be past.
        end: When it ends. The last piece of work begun before it may end later.
        sleep: Waits for so many seconds.
    """
    slices = max(round((end - start) / SLICE_S), 1)
    worked_s = done = piece_s = 0.0
    if (early_s := start - clock()) > 0:
        sleep(early_s)
    for number in range(1, slices + 1):
        until = start + (end - start) * number / slices
        owed_s = share * (until - start)
        # Stopping half a piece early as often as late leaves no bias.
        while worked_s + min(piece_s, SLICE_S) / 2 < owed_s and clock() < until:
            before_s = load.busy_s()
            done += load.work()
            piece_s = load.busy_s() - before_s
            worked_s += piece_s
        if (left_s := until - clock()) > 0:
            sleep(left_s)
    return worked_s, done
