"""Which control groups there are, followed as they come and go."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from lowtide.monitor.cgroups import Hierarchy, Layout
from lowtide.monitor.changes import Changes
from lowtide.monitor.groups import Named, name_group
from lowtide.monitor.kernel_files import Problems

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
class Event:
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

    def update(self, now: float) -> list[Event]:
        """Return what happened since the last time; the first time, all that is there.

        Args:
            now: Seconds by a clock that nobody sets.
        """
        events: list[Event] = []
        for change in self.changes.pending():
            if change.kind == "missed":
                self._missed = True
            elif change.kind == "changed":
                folder = change.path.rpartition("/")[0]
                if (found := self.layout.split(folder)) is not None:
                    events.append(Event(kind="changed", path=found[1], folder=folder))
            elif (found := self.layout.split(change.path)) is not None:
                hierarchy, path = found
                if change.kind == "came":
                    there = list(self._walk(hierarchy, path))
                    for at, number, named in there:
                        events += self._came(hierarchy, at, number, named)
                    if not there and path not in self.groups and name_group(path) is not None:
                        events.append(Event(kind="missed", path=path, folder=change.path))
                else:
                    events += self._went(hierarchy, path)
        # A folder that may not be watched is looked at again now and then.
        if self._missed or (self._blind and now - self._walked >= WALK_S):
            self._walked = now
            self._missed = False
            events += self._walk_all()
        return events

    def _walk_all(self) -> list[Event]:
        events: list[Event] = []
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

    def _came(self, hierarchy: Hierarchy, path: str, number: int, named: Named) -> list[Event]:
        folder = hierarchy.folder + path
        present = self.groups.get(path)
        events: list[Event] = []
        if present is not None and folder in present.folders:
            if present.folders[folder] == number:
                return []
            # Another of the same name: a job that was requeued.
            events += self._went(hierarchy, path)
        present = self.groups.setdefault(path, Present(named=named))
        present.folders[folder] = number
        return [*events, Event(kind="came", path=path, folder=folder)]

    def _went(self, hierarchy: Hierarchy, path: str) -> list[Event]:
        gone = [path] if path in self.groups else []
        if not gone:
            gone = [each for each in self.groups if each.startswith(path + "/")]
        events = []
        for each in gone:
            folder = hierarchy.folder + each
            present = self.groups[each]
            if present.folders.pop(folder, None) is not None:
                events.append(Event(kind="went", path=each, folder=folder))
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
