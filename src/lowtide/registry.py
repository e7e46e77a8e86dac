"""Plug-ins by name: policies, file formats and whatever else strangers may add.

Built-ins register as anyone would: by an entry point of the installed package.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from contextlib import suppress
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from lowtide.errors import LowtideError, UnknownName

T = TypeVar("T")
# The names of modules that are somebody's own: an error in one of them is not ours.
_OWN: set[str] = set()


class Registry(Generic[T]):
    """The plug-ins of one entry-point group.

    Args:
        group: The entry-point group, e.g. `lowtide.policies`.
        methods: What every class among them has one of. Where any are given, a name may also say
            where a class is that nobody registered: `package.module:Class`, or
            `path/to/file.py:Class`, the class left out where the file has just one such.
    """

    def __init__(self, group: str, what: str, *, methods: tuple[str, ...] = ()) -> None:
        self.group = group
        self.what = what
        self.methods = methods

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """Return the known names, sorted."""
        return sorted(self._points)

    def load(self, name: str) -> T:
        """Return the plug-in of that name.

        Args:
            name: One of the known names, or where it is.
        """
        if name not in self._points:
            if self.methods and is_place(name):
                return cast(T, load_own(name, self.what, self.methods))
            raise UnknownName(self.what, name, self._points)
        point = self._points[name]
        try:
            return cast(T, point.load())
        except Exception as error:
            raise LowtideError(
                f"{self.what} {name!r} is registered as {point.value} but cannot be loaded: {error}"
            ) from error


# Who draws what. Values know nothing of charts; whoever has one in hand asks it for its picture.
_CHARTS = {
    "signal": "lowtide.page.looks:signal_chart",
    "plan": "lowtide.page.looks:schedules_chart",
    "cluster plan": "lowtide.studies.together:plan_chart",
    "sites plan": "lowtide.studies.together:sites_chart",
    "grid": "lowtide.studies.together:grid_chart",
    "plans": "lowtide.studies.together:plans_chart",
    "simulation": "lowtide.studies.together:simulation_chart",
}


def chart_of(what: str, *of: Any, **more: Any) -> Any:
    """Return the chart of a value, as Altair draws it; it takes the extra `figures`.

    Args:
        what: What the value is, one of those above.
        of: The value, and whatever else its chart needs.
    """
    module, _, name = _CHARTS[what].partition(":")
    return getattr(importlib.import_module(module), name)(*of, **more)


def is_place(name: str) -> bool:
    """Return whether a name says where a class is: in a file, or in a module."""
    return ":" in name or name.endswith(".py")


def source_of(name: str) -> Path | None:
    """Return the file of a class that a name says the place of; None where it says none."""
    if not is_place(name):
        return None
    place = name.rpartition(":")[0] if ":" in name else name
    if place.endswith(".py"):
        return _resolved(Path(place))
    with suppress(Exception):
        found = _module(place).__file__
        return None if found is None else Path(found)
    return None


def place_of(error: BaseException) -> str | None:
    """Return where in somebody's own class an error arose, None for one that arose elsewhere."""
    frames = [(at.f_globals.get("__name__"), at, line) for at, line in walk_tb(error.__traceback__)]
    for name, at, line in reversed(frames):
        if name in _OWN:
            return f"{Path(at.f_code.co_filename).name}, line {line}, in {at.f_code.co_name}"
    return None


def load_own(name: str, what: str, methods: tuple[str, ...]) -> Any:
    """Return the class that a name says the place of.

    Args:
        what: What it is to be, in words.
        methods: What it has one of.
    """
    place, _, wanted = name.rpartition(":") if ":" in name else (name, "", "")
    words = " or ".join(methods)
    try:
        module = _file(Path(place)) if place.endswith(".py") else _module(place)
    except LowtideError:
        raise
    except Exception as error:
        raise LowtideError(
            f"{what} {name!r}: {place} cannot be imported, {type(error).__name__}: {error}"
        ) from error

    _OWN.add(module.__name__)

    def fits(each: object) -> bool:
        return isinstance(each, type) and any(callable(getattr(each, m, None)) for m in methods)

    there = {
        key: each
        for key, each in vars(module).items()
        if fits(each) and each.__module__ == module.__name__
    }
    if wanted and hasattr(module, wanted):
        found = getattr(module, wanted)
        if fits(found):
            return found
        raise LowtideError(f"{what} {name!r}: {wanted} is no class with a method {words}")
    if not wanted and len(there) == 1:
        return next(iter(there.values()))
    if not there:
        raise LowtideError(f"{what} {name!r}: {place} has no class with a method {words}")
    if wanted:
        raise UnknownName(f"class of {place}", wanted, there)
    raise LowtideError(
        f"{what} {name!r}: {place} has {', '.join(sorted(there))}: say which, {place}:{min(there)}"
    )


def _module(name: str) -> ModuleType:
    # A command does not look where it is run for modules, and whoever writes one there means it.
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)


def _resolved(path: Path) -> Path:
    with suppress(RuntimeError):  # A user whom the system does not know has no home.
        path = path.expanduser()
    return path.resolve()


def _file(path: Path) -> ModuleType:
    """Import a file, once, under a name of its own, so that what it makes can be pickled."""
    path = _resolved(path)
    name = f"lowtide_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise LowtideError(f"no such file: {path}")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
