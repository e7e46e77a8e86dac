"""Where the store is: a file of the user's or of the system's, or a PostgreSQL server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

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
        reading: Whether nothing will be written.
        system: The system's folder.

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
    state = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '~')}/.local/state"
    own = Path(state).expanduser() / "lowtide" / FILE_NAME
    return str(systems if reading and not own.exists() and systems.exists() else own)
