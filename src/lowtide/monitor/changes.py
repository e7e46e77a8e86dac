"""Being told by the kernel when a folder comes or goes, rather than looking for it."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

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
