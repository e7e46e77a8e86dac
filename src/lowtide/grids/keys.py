"""Keys for providers: from the environment, or from a file that nobody else may read."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.errors import FileProblem, InvalidInput, ProviderProblem

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keys_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return where the file with keys is, whether or not there is one.

    Args:
        environment: The environment, by default this process's.

    >>> keys_file({"XDG_CONFIG_HOME": "/home/ada/.config"}).as_posix()
    '/home/ada/.config/lowtide/keys.toml'
    """
    environment = os.environ if environment is None else environment
    return files.user_folder(environment, "XDG_CONFIG_HOME", ".config") / "lowtide" / "keys.toml"


def find_keys(provider: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return a provider's keys, or say how to give them.

    Args:
        names: What its keys are called, e.g. `user` and `password`.
    """
    if not names:
        return ()
    found: dict[str, str] = {}
    path = keys_file()
    said = {name: os.environ.get(variable_of(provider, name), "").strip() for name in names}
    # Who has all in the environment needs no file, nor a home to have one in.
    written = {} if all(said.values()) else _section(path, provider, names)
    for name in names:
        key = said[name] or written.get(name, "")
        if not key:
            continue
        if not (key.isascii() and key.isprintable()):
            raise InvalidInput(
                f"the {name} for {provider} has characters that no key has: copy it again into "
                f"{variable_of(provider, name)} or {path}"
            )
        found[name] = key
    if lacking := [name for name in names if name not in found]:
        raise ProviderProblem(f"{provider} needs a key: {cure(provider, lacking)}")
    return tuple(found[name] for name in names)


def variable_of(provider: str, name: str) -> str:
    """Return the environment's variable for a key.

    >>> variable_of("watttime", "user")
    'LOWTIDE_WATTTIME_USER'
    """
    return f"LOWTIDE_{provider}_{name}".upper().replace("-", "_")


def cure(provider: str, names: Sequence[str]) -> str:
    """Return how to give keys, in words."""
    variables = " and ".join(variable_of(provider, name) for name in names)
    return f"set {variables}, or write [{provider}] {', '.join(names)} into {keys_file()}"


def _section(path: Path, provider: str, names: Sequence[str]) -> Mapping[str, str]:
    """Return what the file says of a provider; no message repeats any of it."""
    try:
        with path.open("rb") as file:
            # What was opened is what is asked about: a name could be changed in between.
            mode = os.fstat(file.fileno()).st_mode & 0o777
            data = b"" if mode & _OTHERS else file.read()
    except OSError as error:
        # In a home that is another's nobody can look: that is as good as none.
        if not os.path.exists(path):  # noqa: PTH110 - Path would raise an error there
            return {}
        raise FileProblem(f"cannot read {path}: {error.strerror}", path=path) from None
    if mode & _OTHERS:
        raise FileProblem(
            f"{path} holds keys and others may read it (mode {mode:04o}): chmod 600 {path}, and "
            "ask for new keys if others use this machine",
            path=path,
        )
    try:
        section: Any = tomllib.loads(data.decode()).get(provider, {})
    except ValueError:
        section = None
    if not isinstance(section, dict) or not all(isinstance(key, str) for key in section.values()):
        raise FileProblem(
            f'{path} has no keys that can be read: write {names[0]} = "..." below a line '
            f"[{provider}]",
            path=path,
        )
    if not set(section) <= set(names):
        # What stands in the place of a name may be the key itself.
        raise FileProblem(
            f"{path}: below [{provider}] there is {', '.join(names)}, and nothing else", path=path
        )
    return {name: key.strip() for name, key in section.items()}
