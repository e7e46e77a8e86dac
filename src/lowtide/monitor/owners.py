"""Whose a group or process is, and since when it runs."""

from __future__ import annotations

import math
import os
import pwd
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from lowtide.files import read_or_empty
from lowtide.monitor.kernel_files import NONSENSE
from lowtide.monitor.processes import read_stat

# A directory server that does not answer must not stop the watching.
_PATIENCE_S = 1.0
# The kernel numbers no more than four million processes.
_PID_DIGITS = 7
# A group that is looked up long after it was made may look younger than it is, by more than this.
_YOUNGER_S = 5.0


@dataclass(slots=True)
class UserNames:
    """The names of users, each asked for once, and no longer than a second."""

    _names: dict[int, str] = field(default_factory=dict, init=False)

    def __call__(self, uid: int) -> str:
        """Return a user's name, the number where it has none."""
        if uid not in self._names:
            self._names[uid] = str(uid)
            asking = threading.Thread(target=self._ask, args=(uid,), daemon=True)
            asking.start()
            # Should the answer come later, it is used from then on.
            asking.join(_PATIENCE_S)
        return self._names[uid]

    def _ask(self, uid: int) -> None:
        try:
            self._names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            return


def list_pids(folder: str) -> list[int]:
    """Return the processes of a group and of all below it."""
    pids: list[int] = []
    for at, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            said = read_or_empty(f"{at}/cgroup.procs").split()
            pids += [int(each) for each in said if each.isdigit() and len(each) <= _PID_DIGITS]
    return pids


def find_uid(folders: Iterable[str], pids: Iterable[int], procfs: str) -> int | None:
    """Return whose a group is, None where it cannot be told yet.

    Root starts the jobs of others, so that anyone else comes first.
    """
    owners = [uid for each in folders if (uid := _owner(each)) not in (None, 0)]
    # A group's folder is root's unless it was given away, so that root says nothing there.
    owners = owners or [uid for each in pids if (uid := _owner(f"{procfs}/{each}")) is not None]
    return next((uid for uid in owners if uid != 0), owners[0] if owners else None)


def find_start(folders: Iterable[str], pids: Iterable[int], procfs: str, boot: float) -> float:
    """Return when a group began, epoch seconds: the age of its folder or of its oldest process.

    Args:
        boot: When the node was started, epoch seconds.
    """
    made = math.inf
    for folder in folders:
        try:
            times = os.stat(folder)  # noqa: PTH116
        except OSError:
            continue
        # The kernel keeps no time of birth for these; the earliest of the others is the closest.
        made = min(made, times.st_mtime, times.st_ctime, times.st_atime)
    oldest = math.inf
    for pid in pids:
        said = read_or_empty(f"{procfs}/{pid}/stat")
        try:
            oldest = min(oldest, boot + read_stat(said.decode(errors="replace")).started_s)
        except NONSENSE:
            continue
    return oldest if oldest < made - _YOUNGER_S else made


def _owner(place: str) -> int | None:
    try:
        return os.stat(place).st_uid  # noqa: PTH116 - a Path would cost more
    except OSError:
        return None
