"""Kernels: functions that numba compiles, and where the machine code is kept until next time.

Nothing that can happen to a folder ends a command. Machine code is looked for, and kept, in

1. the folder that `LOWTIDE_CACHE` names, which may be shared and read-only;
2. `lowtide/kernels` in the user's cache folder;
3. a private folder of the user's among the temporary files,

and in memory alone where none of them can be written. A file is known by all that its code was
made of: the function, the kernels and constants that it uses, the versions, the processor. So a
kernel that has changed is compiled anew wherever it is used, and a damaged file counts as none,
as does one that somebody else could have written: machine code that is read is run.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import pickle
import platform
import secrets
import stat
import threading
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
# Machine code that nobody uses is kept for so long.
_DAY_S = 86400.0
_STALE_S = 90 * _DAY_S
_OTHERS_WRITE = 0o022
_DIGEST_SIZE = 32
# What is kept of a kernel: to be changed with `_libraries`.
_FORM = "within kernels"
_UNSAFE = "others can write there, or it is another user's"

# Who is told, once per process, of compiling that takes long and of folders that fail.
tell: Callable[[str], object] = lambda _: None  # noqa: E731 - replaced by whoever wants to know
# Whether the first folder gets what is found in another: one that serves a site has to be whole.
gather = False


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
        compile_for, codegen = kernel.compile, kernel.targetdescr.target_context.codegen()
        # What only kernels call is optimised with each of them, and need not be much before.
        thorough = (config.OPT, config.LOOP_VECTORIZE)
        effort = (type(config.OPT)(1), 0) if inner else thorough

        def compile_one(signature: Any) -> Any:
            with lock, _work.compiling():
                before = config.OPT, config.LOOP_VECTORIZE, codegen._library_class
                config.OPT, config.LOOP_VECTORIZE = effort
                codegen._library_class = _libraries(None if inner else function.__qualname__)
                try:
                    return compile_for(signature)
                finally:
                    config.OPT, config.LOOP_VECTORIZE, codegen._library_class = before

        # Numba's own cache raises where it cannot write, and sees no changes in other modules.
        kernel._cache = _Cache(kernel)
        kernel.compile = compile_one
        return cast(F, kernel)

    return decorate


@cache
def _libraries(kernel: str | None) -> Any:
    """Return the kind of library that a kernel is compiled into, with all that it calls.

    What only kernels call becomes part of each of them: it need not be made machine code of by
    itself as well.

    Args:
        kernel: What Python is to be given a way into, None where there is no such thing.
    """

    class Library(_part("numba.core.codegen").JITCodeLibrary):  # type: ignore[misc]
        def __init__(self, codegen: Any, name: str) -> None:
            super().__init__(codegen, name)
            self._called = name == kernel

        @property
        def codegen(self) -> Any:
            return super().codegen if self._called else self

        def set_env(self, name: str, environment: Any) -> None:
            """Do nothing: kernels compute, and know no objects of Python's."""

        def get_pointer_to_function(self, name: str) -> int:
            if self._called:
                return int(super().get_pointer_to_function(name))
            self._ensure_finalized()
            return 0

        def serialize_using_object_code(self) -> Any:
            if self._called:
                return super().serialize_using_object_code()
            return self.serialize_using_bitcode()

        def _finalize_final_module(self) -> None:
            if self._called:
                super()._finalize_final_module()
            else:
                self._finalize_dynamic_globals()
                self._finalized = True

    return Library


def _part(name: str) -> Any:
    """Return a part of the compiler, which takes half a second to import, where it is needed."""
    return import_module(name)


class Folder(NamedTuple):
    """Where machine code may be kept.

    Attributes:
        path: The folder.
        named: Whether the user named it: then it may be another's, such as the site's.
    """

    path: Path
    named: bool = False

    @property
    def safe(self) -> bool:
        """Whether nobody can have put machine code there whom this user does not trust.

        Code that is read is run. So the folder must be this user's or root's, and writable by its
        owner alone. One that the user named may be another's where nobody can have put it there in
        another's stead; root trusts nobody.
        """
        try:
            found = self.path.stat() if self.named else self.path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_mode & _OTHERS_WRITE:
                return False
            if found.st_uid in (0, os.geteuid()):
                return True
            above = [each.stat().st_mode for each in self.path.resolve().parents]
        except OSError:
            return False
        return self.named and os.geteuid() != 0 and not any(m & _OTHERS_WRITE for m in above)

    def make(self) -> None:
        """Make the folder where it is not there, or raise an OSError."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o755 if self.named else 0o700)
        if not self.safe:
            raise PermissionError(errno.EPERM, _UNSAFE)

    def keep(self, name: str, data: bytes) -> None:
        """Write a file, or raise an OSError."""
        self.make()
        try:
            files.write_whole(self.path / name, data, lasting=False)
        except FileProblem as error:
            raise error.__cause__ or error from None
        # Whatever a generous umask allows, others could make another program of it.
        (self.path / name).chmod(0o644)

    def read(self, name: str) -> bytes:
        """Return what a file holds, nothing where there is none that can be trusted."""
        path = self.path / name
        try:
            found = path.lstat()
            if not self.safe or not stat.S_ISREG(found.st_mode) or found.st_mode & _OTHERS_WRITE:
                return b""
        except OSError:
            return b""
        if time.time() - found.st_mtime > _DAY_S:
            with suppress(OSError):  # What is in use is not stale.
                os.utime(path)
        return files.read_or_empty(str(path))

    def drop_stale(self) -> None:
        """Remove what nobody has used for long, and what a process left that was killed."""
        with suppress(OSError):
            for path in self.path.glob("*.kernel*"):
                if path.stat().st_mtime < time.time() - _STALE_S:
                    path.unlink()


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
        *(Folder(Path(said), named=True) for said in (environment.get("LOWTIDE_CACHE"),) if said),
        *([Folder(Path(caches) / "lowtide" / "kernels")] if caches else []),
        Folder(Path(environment.get("TMPDIR") or "/tmp") / own),  # noqa: S108
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
            _work.keep(name, hashlib.sha256(payload).digest() + payload)

    def flush(self) -> None:
        """Do nothing: what has changed has another name."""

    def _file_name(self, signature: Any, codegen: Any) -> str:
        made_of = repr((signature, codegen.magic_tuple(), _versions(), _content(self._kernel)))
        return f"{self._name}{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.kernel"

    def _load(self, name: str, target: Any) -> Any:
        rebuild = _part("numba.core.compiler").CompileResult._rebuild
        for folder in folders():
            _work.mind(folder)
            data = folder.read(name)
            payload = data[_DIGEST_SIZE:]
            if payload and hashlib.sha256(payload).digest() == data[:_DIGEST_SIZE]:
                # Whatever is the matter with it, compiling anew mends it.
                with suppress(Exception):
                    found = rebuild(target, *pickle.loads(payload))  # noqa: S301
                    if gather and folder != folders()[0]:
                        _work.keep(name, data)
                    return found
        return None


@cache
def _versions() -> tuple[str, ...]:
    names = (_part(name).__version__ for name in ("numba", "llvmlite", "numpy"))
    return (_FORM, *names, platform.python_implementation(), platform.python_version())


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
        self._collects = self._announced = self._tidied = False
        self._soon = threading.Timer(0.0, self._announce)
        self._lock: int | None = None
        self._patient = True
        self._failed: dict[Path, str] = {}
        self._told: set[Path] = set()

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
                    self.took_s += time.thread_time() - self._began
                    self._began = None
                    self._soon.cancel()
                    if self._collects:
                        gc.enable()
                if self._lock is not None:
                    os.close(self._lock)
                    self._lock = None

    def begin(self) -> None:
        """Mind that a kernel is now compiled, and say so if that takes long."""
        now = time.thread_time()
        if self._began is None:
            self._began = now
            # A compiler makes much and drops little: to look for garbage takes a sixth of its time.
            self._collects = gc.isenabled()
            gc.disable()
            if not self._announced:
                # One kernel may take all the time: another thread says so meanwhile.
                self._soon = threading.Timer(max(_LONG_S - self.took_s, 0.0), self._announce)
                self._soon.daemon = True
                self._soon.start()

    def _announce(self) -> None:
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
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                break
        if self._lock is None:
            return False
        deadline = time.monotonic() + _PATIENCE_S
        while self._patient and not (locked := files.try_lock(self._lock)):
            if locked is None:
                self._patient = False
                break
            time.sleep(_LOOK_AGAIN_S)
            self._patient = time.monotonic() < deadline
        return True

    def mind(self, folder: Folder) -> None:
        """Say once of a folder that the user named, and that is there, why it is not used."""
        if not folder.named or folder.path in self._failed:
            return
        if os.path.isdir(folder.path) and not folder.safe:  # noqa: PTH112 - never raises
            self._failed[folder.path] = _UNSAFE
            self._told.add(folder.path)
            tell(
                f"{folder.path}, which LOWTIDE_CACHE names, is not used: {_UNSAFE}. What is read "
                f"there is run, so only you or root may own it, and only its owner may write: "
                f"chmod go-w {folder.path}"
            )

    def keep(self, name: str, data: bytes) -> None:
        """Write machine code into the first folder that takes it, and say so if that is another."""
        taken: Path | None = None
        for folder in folders():
            if folder.path not in self._failed:
                try:
                    folder.keep(name, data)
                except OSError as error:
                    self._failed[folder.path] = error.strerror or str(error)
                else:
                    taken = folder.path
                    if not self._tidied:
                        self._tidied = True
                        folder.drop_stale()
                    break
        if not self._failed.keys() <= self._told:
            self._told |= self._failed.keys()
            why = "; ".join(f"{path}: {reason}" for path, reason in self._failed.items())
            tell(
                f"compiled kernels are kept in {taken} instead ({why})"
                if taken is not None
                else f"compiled kernels cannot be kept ({why}), so that each command compiles "
                "again: let LOWTIDE_CACHE name a folder with some 20 MB of room"
            )


_work = _Work()


def kept_in() -> Path | None:
    """Return the folder in which machine code is kept, None for memory alone."""
    for folder in folders():
        with suppress(OSError):
            # Others try at the same time, perhaps on other nodes; what is left is stale some day.
            name = f".probe-{secrets.token_hex(4)}.kernel"
            folder.keep(name, b"")
            (folder.path / name).unlink(missing_ok=True)
            return folder.path
    return None


def compiling_s() -> float:
    """Return how long this process has compiled, in CPU-seconds."""
    return _work.took_s
