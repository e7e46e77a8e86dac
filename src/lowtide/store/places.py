"""Where the store is: a file of the user's or of the system's, or a PostgreSQL server."""

from __future__ import annotations

import grp
import os
from collections.abc import Mapping
from pathlib import Path

from lowtide import files
from lowtide.errors import StoreProblem

FILE_NAME = "store.sqlite"
SYSTEM_FOLDER = Path("/var/lib/lowtide")


def default_place(
    *,
    environment: Mapping[str, str] | None = None,
    is_root: bool | None = None,
    reading: bool = False,
    system: Path = SYSTEM_FOLDER,
) -> str:
    """Return the path or address to use where none is named.

    That is what `LOWTIDE_STORE` says; else the system's file for root, and one below the user's
    state folder for everybody else. Whoever only reads and has none of their own gets the
    system's, if there is one.

    Args:
        environment: The environment, by default this process's.
        is_root: Whether the user is root, by default whether this process's is.

    >>> default_place(environment={"HOME": "/home/ada"}, is_root=False)
    '/home/ada/.local/state/lowtide/store.sqlite'
    """
    environment = os.environ if environment is None else environment
    if named := environment.get("LOWTIDE_STORE"):
        return named
    if is_root is None:
        is_root = os.geteuid() == 0
    systems = system / FILE_NAME
    if is_root:
        return str(systems)
    own = files.user_folder(environment, "XDG_STATE_HOME", ".local/state") / "lowtide" / FILE_NAME
    if not reading or _is_there(own):
        return str(own)
    if system.is_dir():
        check_may_read(systems)
    return str(systems if _is_there(systems) else own)


def check_may_read(path: Path) -> None:
    """Refuse a store that the user may not read, with how to get to.

    Args:
        path: The file, whether it is there or not.
    """
    try:
        path.stat()
        closed = not os.access(path, os.R_OK)
    except PermissionError:
        closed = True
    except OSError:
        closed = False
    if closed:
        raise StoreProblem(
            f"the store {path} may not be read by you: {_join(path)}read it as its owner, or name "
            "another with --store or LOWTIDE_STORE",
            where=str(path),
        )


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _join(path: Path) -> str:
    """Return how to get into the group that may read, where there is one."""
    for place in (path, path.parent):
        try:
            found = place.stat()
            group = grp.getgrgid(found.st_gid).gr_name
        except (OSError, KeyError):
            continue
        if found.st_mode & 0o040 and found.st_gid:
            return f"join the group {group} (usermod -aG {group} YOU, then log in again), "
    return ""
