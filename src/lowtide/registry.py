"""Plug-ins by name: policies, file formats and whatever else strangers may add.

Built-ins register as anyone would: by an entry point of the installed package.
"""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from lowtide.errors import LowtideError, UnknownName

T = TypeVar("T")


class Registry(Generic[T]):
    """The plug-ins of one entry-point group.

    Args:
        group: The entry-point group, e.g. `lowtide.policies`.
        what: What one of them is called in messages.
    """

    def __init__(self, group: str, what: str) -> None:
        self.group = group
        self.what = what

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """Return the known names, sorted."""
        return sorted(self._points)

    def load(self, name: str) -> T:
        """Return the plug-in of that name.

        Args:
            name: One of the known names.
        """
        if name not in self._points:
            raise UnknownName(self.what, name, self._points)
        point = self._points[name]
        try:
            return cast(T, point.load())
        except (ImportError, AttributeError) as error:
            raise LowtideError(
                f"{self.what} {name!r} is registered as {point.value} but cannot be loaded: {error}"
            ) from error
