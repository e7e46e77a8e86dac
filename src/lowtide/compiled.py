"""Kernels: functions that numba compiles, and where the machine code is kept until next time.

Nothing that can happen to a folder ends a command. Machine code is looked for, and kept, in

1. the folder that `LOWTIDE_CACHE` names, which may be shared and read-only;
2. `lowtide/kernels` in the user's cache folder;
3. a private folder of the user's among the temporary files,

and in memory alone where none of them can be written. A file is known by all that its code was
made of: the function, the kernels and constants that it uses, the versions, the processor. So a
kernel that has changed is compiled anew wherever it is used, and a damaged file counts as none.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import glob
import hashlib
import os
import pickle
import platform
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, TypeVar, cast

from lowtide import files
from lowtide.errors import FileProblem

F = TypeVar("F", bound=Callable[..., Any])

# Compiling is told of once it has taken this long.
_LONG_S = 1.0
# How long to wait for another process that compiles: what it keeps need not be done twice.
_PATIENCE_S = 60.0
_LOOK_AGAIN_S = 0.05
# Machine code of what a kernel was before is kept for so long.
_STALE_S = 90 * 86400.0
_DIGEST_SIZE = 32

# Who is told, once per process, of compiling that takes long and of folders that fail.
tell: Callable[[str], object] = lambda _: None  # noqa: E731 - replaced by whoever wants to know


def compiled(*, inner: bool = False, fastmath: Any = False) -> Callable[[F], F]:
    """Return a decorator that makes a function a kernel.

    Args:
        inner: Whether kernels alone call it: that compiles sooner, as Python needs no way in. A
            call from Python would end the process.
        fastmath: Which liberties may be taken with floats, in numba's words.
    """

    def decorate(function: F) -> F:
        numba = _part("numba")
        config, lock = numba.config, _part("numba.core.compiler_lock").global_compiler_lock
        kernel = numba.njit(
            nogil=True,
            error_model="numpy",
            fastmath=fastmath,
            no_cfunc_wrapper=True,
            no_cpython_wrapper=inner,
        )(function)
        compile_for, thorough = kernel.compile, (config.OPT, config.LOOP_VECTORIZE)
        # What only kernels call is optimised with each of them, and need not be before.
        effort = (type(config.OPT)(1), 0) if inner else thorough

        def compile_one(signature: Any) -> Any:
            with lock, _work.compiling():
                before = config.OPT, config.LOOP_VECTORIZE
                config.OPT, config.LOOP_VECTORIZE = effort
                try:
                    return compile_for(signature)
                finally:
                    config.OPT, config.LOOP_VECTORIZE = before

        # Numba's own cache raises where it cannot write, and sees no changes in other modules.
        kernel._cache = _Cache(kernel)
        kernel.compile = compile_one
        return cast(F, kernel)

    return decorate


def _part(name: str) -> Any:
    """Return a part of the compiler, which takes half a second to import, where it is needed."""
    return import_module(name)


class Folder(NamedTuple):
    """Where machine code may be kept.

    Attributes:
        path: The folder.
        private: Whether it must be nobody else's, as others can write beside it.
    """

    path: Path
    private: bool = False

    @property
    def safe(self) -> bool:
        """Whether nobody else can have put machine code there that is not wanted."""
        if not self.private:
            return True
        try:
            found = self.path.lstat()
        except OSError:
            return False
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        return own and not found.st_mode & 0o077

    def make(self) -> None:
        """Make the folder where it is not there, or raise an OSError."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700 if self.private else 0o777)
        if not self.safe:
            raise PermissionError(errno.EPERM, "it is not this user's alone")

    def keep(self, name: str, data: bytes) -> None:
        """Write a file, or raise an OSError.

        Args:
            name: What it is called.
            data: What it holds.
        """
        self.make()
        try:
            files.write_whole(self.path / name, data, lasting=False)
        except FileProblem as error:
            raise error.__cause__ or error from None


def folders(environment: Mapping[str, str] | None = None) -> list[Folder]:
    """Return where machine code is looked for and kept, the first that can be had.

    Args:
        environment: The environment, by default this process's.

    >>> [each.path.as_posix() for each in folders({"HOME": "/home/ada"})][:1]
    ['/home/ada/.cache/lowtide/kernels']
    """
    environment = os.environ if environment is None else environment
    home = environment.get("HOME")
    caches = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    own = f"lowtide-kernels-{os.geteuid()}"
    return [
        *(Folder(Path(said)) for said in (environment.get("LOWTIDE_CACHE"),) if said),
        *([Folder(Path(caches) / "lowtide" / "kernels")] if caches else []),
        Folder(Path(environment.get("TMPDIR") or "/tmp") / own, private=True),  # noqa: S108
    ]


class _Cache:
    """The machine code of one kernel, as numba asks for it and hands it over."""

    cache_path = None

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        function = kernel.py_func
        self._name = f"{function.__module__.removeprefix('lowtide.')}.{function.__qualname__}-"

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return what was compiled for a signature before, None if that is to be done now."""
        target.refresh()
        name = self._file_name(signature, target.codegen())
        found = self._load(name, target)
        if found is None and _work.wait_for_others():
            found = self._load(name, target)
        if found is None:
            _work.begin()
        return found

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keep what was compiled, in the first folder that takes it."""
        if not made.library.has_dynamic_globals:
            payload = _part("numba.core.serialize").dumps(made._reduce())
            name = self._file_name(signature, made.codegen)
            _work.keep(name, hashlib.sha256(payload).digest() + payload, self._name)

    def flush(self) -> None:
        """Do nothing: what has changed has another name."""

    def _file_name(self, signature: Any, codegen: Any) -> str:
        made_of = repr((signature, codegen.magic_tuple(), _versions(), _content(self._kernel)))
        return f"{self._name}{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.kernel"

    def _load(self, name: str, target: Any) -> Any:
        rebuild = _part("numba.core.compiler").CompileResult._rebuild
        for folder in folders():
            data = files.read_or_empty(str(folder.path / name)) if folder.safe else b""
            payload = data[_DIGEST_SIZE:]
            if payload and hashlib.sha256(payload).digest() == data[:_DIGEST_SIZE]:
                # Whatever is the matter with it, compiling anew mends it.
                with suppress(Exception):
                    return rebuild(target, *pickle.loads(payload))  # noqa: S301
        return None


@cache
def _versions() -> tuple[str, ...]:
    names = (_part(name).__version__ for name in ("numba", "llvmlite", "numpy"))
    return (*names, platform.python_implementation(), platform.python_version())


_contents: dict[int, str] = {}


def _content(kernel: Any) -> str:
    """Return a text that changes with a kernel, the kernels it calls and the constants it knows."""
    if id(kernel) not in _contents:
        function = kernel.py_func
        _contents[id(kernel)] = function.__qualname__  # for one that calls itself
        options = {
            name: sorted(each) if isinstance(each, set) else each
            for name, each in kernel.targetoptions.items()
        }
        parts = [repr(sorted(options.items())), repr(function.__defaults__)]
        for code in _codes(function.__code__):
            parts += [code.co_code.hex(), repr(code.co_varnames)]
            parts += [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]
            parts += [f"{name}={_value(function.__globals__.get(name))}" for name in code.co_names]
        parts += [_value(cell.cell_contents) for cell in function.__closure__ or ()]
        _contents[id(kernel)] = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return _contents[id(kernel)]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _value(value: Any) -> str:
    """Return what a kernel knows of a global: its value, or which thing it is."""
    if hasattr(value, "py_func"):
        return _content(value)
    if hasattr(value, "tobytes"):
        return f"{value.dtype!r} {value.tobytes().hex()}"
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", repr(value)))


class _Work:
    """The compiling of this process."""

    def __init__(self) -> None:
        self.took_s = 0.0
        self._depth = 0
        self._began: float | None = None
        self._collects = self._announced = False
        self._lock: int | None = None
        self._patient = True
        self._failed: dict[Path, str] = {}
        self._fallback: Path | str | None = ""

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Bring all to an end when a kernel is there, with those that it calls."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                if self._began is not None:
                    self.took_s += time.monotonic() - self._began
                    self._began = None
                    if self._collects:
                        gc.enable()
                if self._lock is not None:
                    os.close(self._lock)
                    self._lock = None

    def begin(self) -> None:
        """Mind that a kernel is now compiled, and say so if that takes long."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
            # A compiler makes much and drops little: to look for garbage takes a sixth of its time.
            self._collects = gc.isenabled()
            gc.disable()
        elif not self._announced and self.took_s + now - self._began > _LONG_S:
            self._announced = True
            tell(
                "compiling for this processor: some seconds, and only this once "
                "(`lowtide warm` compiles everything beforehand)"
            )

    def wait_for_others(self) -> bool:
        """Wait until no other process compiles; return whether there is anything to look for."""
        if self._lock is not None or not self._patient:
            return False
        for folder in folders():
            with suppress(OSError):
                folder.make()
                path = folder.path / ".lock"
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                break
        if self._lock is None:
            return False
        deadline = time.monotonic() + _PATIENCE_S
        while self._patient:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_AGAIN_S)
                self._patient = time.monotonic() < deadline
            except OSError:
                self._patient = False  # This folder knows no locks.
            else:
                break
        return True

    def keep(self, name: str, data: bytes, family: str) -> None:
        """Write machine code into the first folder that takes it, and say so if that is another.

        Args:
            name: What the file is called.
            data: What it holds.
            family: How the names of all files of this kernel begin.
        """
        taken: Path | None = None
        for folder in folders():
            if folder.path not in self._failed:
                try:
                    folder.keep(name, data)
                except OSError as error:
                    self._failed[folder.path] = error.strerror or str(error)
                else:
                    taken = folder.path
                    _drop_stale(taken, name, family)
                    break
        if self._failed and taken != self._fallback:
            self._fallback = taken
            why = "; ".join(f"{path}: {reason}" for path, reason in self._failed.items())
            tell(
                f"compiled kernels are kept in {taken} instead ({why})"
                if taken is not None
                else f"compiled kernels cannot be kept ({why}), so that each command compiles "
                "again: let LOWTIDE_CACHE name a folder with some 20 MB of room"
            )


def _drop_stale(folder: Path, name: str, family: str) -> None:
    """Remove what a kernel was before, long ago."""
    with suppress(OSError):
        for path in folder.glob(f"{glob.escape(family)}*.kernel"):
            if path.name != name and path.stat().st_mtime < time.time() - _STALE_S:
                path.unlink()


_work = _Work()


def kept_in() -> Path | None:
    """Return the folder in which machine code is kept, None for memory alone."""
    for folder in folders():
        with suppress(OSError):
            folder.keep(".probe", b"")
            (folder.path / ".probe").unlink(missing_ok=True)
            return folder.path
    return None


def compiling_s() -> float:
    """Return how long this process has compiled."""
    return _work.took_s
