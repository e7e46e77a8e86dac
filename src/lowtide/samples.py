"""Profiles and recordings that come with lowtide, measured or made from what was measured."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from lowtide.errors import InvalidInput, UnknownName
from lowtide.profile import PowerProfile

_FOLDER = files("lowtide") / "data"


def sample_names() -> list[str]:
    """Return the names of the profiles there are, sorted."""
    return sorted(
        Path(entry.name).stem for entry in _FOLDER.iterdir() if entry.name.endswith(".toml")
    )


def sample_profile(name: str, *, epochs: int | None = None) -> PowerProfile:
    """Return a profile that comes with lowtide.

    Args:
        name: One of `sample_names`.
        epochs: How many epochs it has; by default as many as were measured.

    >>> sample_profile("h200")
    <PowerProfile: 13.04 s startup + 66.38 s work in 15 phases, 25.53 kJ, 5 checkpoints>
    """
    if name not in sample_names():
        raise UnknownName("sample profile", name, sample_names())
    with as_file(_FOLDER / f"{name}.toml") as path:
        return PowerProfile.load(path, epochs=epochs)


def load_profile(given: object, *, beside: Path = Path()) -> PowerProfile:
    """Return a profile that was given as such, as a file, or by the name of a sample.

    Args:
        given: A profile, a file ending in `.toml` or `.json`, or a sample's name.
        beside: The folder that a file is looked for in, unless its path says all.
    """
    if isinstance(given, PowerProfile):
        return given
    if not isinstance(given, str | Path):
        raise InvalidInput(f"a profile is a file or a sample's name, not {given!r}")
    if Path(given).suffix in (".toml", ".json"):
        return PowerProfile.load(beside / given)
    if str(given) not in sample_names():
        hint = "; files end in .toml or .json"
        raise UnknownName("sample profile", str(given), sample_names(), hint)
    return sample_profile(str(given))


def sample_recordings() -> list[str]:
    """Return the names of the recordings there are, sorted."""
    return sorted(entry.name for entry in (_FOLDER / "recordings").iterdir() if entry.is_dir())


def sample_recording(name: str) -> Path:
    """Return where a recording that comes with lowtide lies; `read_recordings` reads it.

    Args:
        name: One of `sample_recordings`.

    >>> sample_recording("h200").name
    'h200'
    """
    if name not in sample_recordings():
        raise UnknownName("sample recording", name, sample_recordings())
    return Path(str(_FOLDER / "recordings" / name))
