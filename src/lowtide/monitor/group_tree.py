"""Which control groups there are, followed as they come and go; the kernel tells where it can."""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from lowtide.monitor.cgroups import Hierarchy, Layout, Named, name_group
from lowtide.monitor.kernel_files import Problems

_MODIFY = 0x2
_CAME = 0x100 | 0x80  # created, moved here
_WENT = 0x200 | 0x40  # deleted, moved away
_OVERFLOW = 0x4000
_IGNORED = 0x8000
_ONLY_FOLDERS = 0x01000000
_IS_FOLDER = 0x40000000
_HEAD = struct.Struct("iIII")
_BUFFER = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that happened.

    Attributes:
        kind: `came` or `went` of a folder, `changed` of a file, `missed` if too much happened to
            be told.
        path: The folder or file; empty for `missed`.
    """

    kind: str
    path: str = ""


@dataclass(slots=True)
class Changes:
    """Folders and files that are watched, by inotify.

    Attributes:
        events: A file descriptor that can be read when something has happened, for `select`;
            -1 where the kernel tells nothing.
    """

    events: int = field(default=-1, init=False)
    _paths: dict[int, str] = field(default_factory=dict, init=False)
    _library: ctypes.CDLL | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        try:
            library = ctypes.CDLL(None, use_errno=True)
            self.events = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self._library = library
        except (AttributeError, OSError):
            self.events = -1

    def watch_folder(self, path: str) -> bool:
        """Be told of folders that come and go in a folder; say whether that works."""
        return self._watch(path, _CAME | _WENT | _ONLY_FOLDERS)

    def watch_file(self, path: str) -> bool:
        """Be told when a file says something else; say whether that works."""
        return self._watch(path, _MODIFY)

    def pending(self) -> Iterator[Change]:
        """Yield what has happened since the last time, in order."""
        while self.events >= 0:
            try:
                said = os.read(self.events, _BUFFER)
            except BlockingIOError:
                return
            yield from self._told(said)

    def close(self) -> None:
        """Watch nothing any more."""
        if self.events >= 0:
            os.close(self.events)
            self.events = -1
            self._paths.clear()

    def _watch(self, path: str, mask: int) -> bool:
        if self.events < 0 or self._library is None:
            return False
        number = self._library.inotify_add_watch(self.events, os.fsencode(path), mask)
        if number >= 0:
            self._paths[number] = path
        return bool(number >= 0)

    def _told(self, said: bytes) -> Iterator[Change]:
        at = 0
        while at + _HEAD.size <= len(said):
            number, mask, _, length = _HEAD.unpack_from(said, at)
            at += _HEAD.size
            name = os.fsdecode(said[at : at + length].rstrip(b"\0"))
            at += length
            if mask & _OVERFLOW:
                yield Change(kind="missed")
            elif mask & _IGNORED:
                self._paths.pop(number, None)
            elif (path := self._paths.get(number)) is None:
                continue
            elif mask & _MODIFY:
                yield Change(kind="changed", path=path)
            elif mask & _IS_FOLDER:
                kind = "came" if mask & _CAME else "went"
                yield Change(kind=kind, path=f"{path}/{name}")


# Deeper trees are somebody's mistake; jobs are at depths of three to six.
_DEPTH = 16
# How often the trees are walked where the kernel tells nothing.
WALK_S = 60.0


@dataclass(slots=True)
class Present:
    """A group that is there.

    Attributes:
        named: What it is.
        folders: Where it is, in each hierarchy, with the number of the folder.
    """

    named: Named
    folders: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvent:
    """What happened to a group.

    Attributes:
        kind: `came`, `went`, `changed` (it has no processes any more, or has some again), or
            `missed` (it came, and was gone before anybody looked).
        path: The group.
        folder: Where it is or was.
    """

    kind: str
    path: str
    folder: str


@dataclass(slots=True, kw_only=True)
class GroupTree:
    """All groups that are jobs, services or containers.

    Attributes:
        layout: Where the hierarchies are.
        problems: Where to name what goes wrong.
        changes: How the kernel tells of changes.
    """

    layout: Layout
    problems: Problems
    changes: Changes = field(default_factory=Changes)
    groups: dict[str, Present] = field(default_factory=dict, init=False)
    _walked: float = field(default=-math.inf, init=False)
    _blind: bool = field(default=False, init=False)
    _missed: bool = field(default=True, init=False)

    def update(self, now: float) -> list[GroupEvent]:
        """Return what happened since the last time; the first time, all that is there.

        Args:
            now: Seconds by a clock that nobody sets.
        """
        events: list[GroupEvent] = []
        for change in self.changes.pending():
            if change.kind == "missed":
                self._missed = True
            elif change.kind == "changed":
                folder = change.path.rpartition("/")[0]
                if (found := self.layout.split(folder)) is not None:
                    events.append(GroupEvent(kind="changed", path=found[1], folder=folder))
            elif (found := self.layout.split(change.path)) is not None:
                hierarchy, path = found
                if change.kind == "came":
                    there = list(self._walk(hierarchy, path))
                    for at, number, named in there:
                        events += self._came(hierarchy, at, number, named)
                    if not there and path not in self.groups and name_group(path) is not None:
                        events.append(GroupEvent(kind="missed", path=path, folder=change.path))
                else:
                    events += self._went(hierarchy, path)
        # A folder that may not be watched is looked at again now and then.
        if self._missed or (self._blind and now - self._walked >= WALK_S):
            self._walked = now
            self._missed = False
            events += self._walk_all()
        return events

    def _walk_all(self) -> list[GroupEvent]:
        events: list[GroupEvent] = []
        for hierarchy in self.layout.hierarchies:
            there = {at: (number, named) for at, number, named in self._walk(hierarchy, "")}
            for path, present in list(self.groups.items()):
                folder = hierarchy.folder + path
                if folder in present.folders and path not in there:
                    events += self._went(hierarchy, path)
            for at, (number, named) in there.items():
                events += self._came(hierarchy, at, number, named)
        return events

    def _walk(self, hierarchy: Hierarchy, path: str) -> Iterator[tuple[str, int, Named]]:
        """Yield the groups at a path and below, each with the number of its folder."""
        named = name_group(path)
        folder = hierarchy.folder + path
        if named is not None:
            try:
                number = os.stat(folder).st_ino  # noqa: PTH116 - a Path would cost more
            except OSError:
                return
            yield path, number, named
            if named.whole:
                if hierarchy.unified:
                    self.changes.watch_file(f"{folder}/cgroup.events")
                return
        if path.count("/") >= _DEPTH:
            return
        # Watched before it is looked at: what comes in between is told twice, never missed.
        if not self.changes.watch_folder(folder) and os.path.isdir(folder):  # noqa: PTH112
            self._blind = True
            self.problems.name(
                "blind",
                "the kernel does not tell of groups that come and go, so that jobs of less than "
                f"{WALK_S:.0f} s may be missed: raise fs.inotify.max_user_watches and "
                "fs.inotify.max_user_instances",
            )
        try:
            with os.scandir(folder) as entries:
                names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        except PermissionError:
            self.problems.forbidden(folder)
            return
        except OSError:
            return
        for name in names:
            yield from self._walk(hierarchy, f"{path}/{name}")

    def _came(self, hierarchy: Hierarchy, path: str, number: int, named: Named) -> list[GroupEvent]:
        folder = hierarchy.folder + path
        present = self.groups.get(path)
        events: list[GroupEvent] = []
        if present is not None and folder in present.folders:
            if present.folders[folder] == number:
                return []
            # Another of the same name: a job that was requeued.
            events += self._went(hierarchy, path)
        present = self.groups.setdefault(path, Present(named=named))
        present.folders[folder] = number
        return [*events, GroupEvent(kind="came", path=path, folder=folder)]

    def _went(self, hierarchy: Hierarchy, path: str) -> list[GroupEvent]:
        gone = [path] if path in self.groups else []
        if not gone:
            gone = [each for each in self.groups if each.startswith(path + "/")]
        events = []
        for each in gone:
            folder = hierarchy.folder + each
            present = self.groups[each]
            if present.folders.pop(folder, None) is not None:
                events.append(GroupEvent(kind="went", path=each, folder=folder))
            if not present.folders:
                del self.groups[each]
        return events

    def home(self, said: str) -> dict[str, set[str]]:
        """Return the groups that a process is in, each with the controllers that say so.

        Args:
            said: Its file /proc/PID/cgroup. Version 2 is the controller without a name.
        """
        found: dict[str, set[str]] = {}
        for line in said.splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            while len(path) > 1:
                if path in self.groups:
                    found.setdefault(path, set()).update(controllers.split(","))
                    break
                path = path.rpartition("/")[0]
        return found

    def close(self) -> None:
        """Follow nothing any more."""
        self.changes.close()
