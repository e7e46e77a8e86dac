"""Who says what a zone's grid emits now: what a provider is, how zones are named, and the keys.

A provider is a class with the attributes and the one method of `GridProvider`, registered under
the entry-point group `lowtide.grid_providers`. It asks and finds times and values in the answer;
keeping, merging and telling the age of what it said are the same for all and live in `cache` and
`live`. Keys come from the environment, or from a file that nobody else may read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from lowtide.errors import InvalidInput, LowtideError, ProviderProblem
from lowtide.registry import Registry

if TYPE_CHECKING:
    from lowtide.formats.signals import Series
import stat
import tomllib
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.errors import FileProblem

PROVIDERS: Registry[Callable[[], GridProvider]] = Registry("lowtide.grid_providers", "provider")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Values out of one answer.

    Attributes:
        series: Times, values and labels, as the readers of files find them.
        forecast: Whether the values are what was expected rather than what came.
    """

    series: Series
    forecast: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a provider said when it was asked once.

    Attributes:
        parts: The values; later ones count where two tell of the same step.
        problems: What could not be had, in words.
        wait_s: How long it asks not to be asked again; 0 where it does not say.
    """

    parts: Sequence[Part]
    problems: Sequence[str] = ()
    wait_s: float = 0.0


class GridProvider(Protocol):
    """Someone who says what the electricity of a zone emits.

    Attributes:
        name: What it is called in names such as `gb:13`, and in the cache.
        title: What it calls itself.
        kind: What its values are: `average` or `marginal` intensity.
        keys: What the keys it needs are called; empty where it needs none.
        zones: A regular expression for the names of its zones.
        example: One of them.
        default_zone: The zone that is meant where none is named; empty if one must be.
        refresh_s: For how long an answer is new enough.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    zones: ClassVar[str]
    example: ClassVar[str]
    default_zone: ClassVar[str]
    refresh_s: ClassVar[float]

    def ask(self, zone: str, *, since: float, now: float) -> Answer:
        """Return what there is from a moment on, and what is expected; may take a while."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneName:
    """A zone of a provider.

    Attributes:
        provider: The provider's name.
        zone: The zone, as the provider calls it.
    """

    provider: str
    zone: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.zone}"


def names_a_zone(text: str) -> bool:
    """Return whether a text begins with the name of a provider."""
    return text.partition("+")[0].partition(":")[0] in PROVIDERS.names()


def parse_zones(text: str) -> tuple[ZoneName, ...]:
    """Return the zones that a text names: `gb`, `gb:13`, `electricitymaps:DE+watttime:DE`.

    Args:
        text: A zone with average intensity, one with marginal intensity, or one of each.

    >>> [str(name) for name in parse_zones("gb")]
    ['gb:GB']
    """
    names, kinds = [], []
    for part in text.split("+"):
        provider, _, zone = part.partition(":")
        known = PROVIDERS.load(provider)()
        names.append(name_zone(known, zone))
        kinds.append(known.kind)
    if len(set(kinds)) < len(kinds):
        raise InvalidInput(
            f"{text!r} names {kinds[0]} intensity twice: name one zone of each kind, such as "
            "electricitymaps:US-CAL-CISO+watttime:CAISO_NORTH"
        )
    return tuple(names)


def name_zone(provider: GridProvider, zone: str = "") -> ZoneName:
    """Return the name of a zone, or say what such names look like.

    Args:
        zone: The zone; empty for the one that is meant where none is named.
    """
    zone = zone or provider.default_zone
    # Names become names of files: nothing else than these characters may be in one.
    if not re.fullmatch(provider.zones, zone) or not re.fullmatch(r"[\w-]+", zone, re.ASCII):
        given = f"not {zone!r}" if zone else "and none is named"
        raise InvalidInput(
            f"a zone of {provider.name} is named as in {provider.name}:{provider.example}, {given}"
        )
    return ZoneName(provider=provider.name, zone=zone)


def base_url(provider: str, usual: str) -> str:
    """Return the address that a provider is asked at, without a slash at its end.

    `LOWTIDE_GRID_URL_GB` and the like say another one: a proxy, or a stand-in for tests.
    """
    variable = f"LOWTIDE_GRID_URL_{provider}".upper().replace("-", "_")
    return (os.environ.get(variable) or usual).rstrip("/")


def gather(askings: Mapping[str, Callable[[], Sequence[Part]]]) -> Answer:
    """Ask several things of a provider: the first must be answered, the others may fail."""
    parts: list[Part] = []
    problems: list[str] = []
    wait_s = 0.0
    for number, (what, asking) in enumerate(askings.items()):
        try:
            parts += asking()
        except LowtideError as error:
            if number == 0:
                raise
            problems.append(f"no {what}: {error}")
            if isinstance(error, ProviderProblem):
                wait_s = max(wait_s, error.wait_s)
    return Answer(parts=parts, problems=problems, wait_s=wait_s)


def cut(since: float, until: float, longest_s: float) -> Iterator[tuple[float, float]]:
    """Cut a stretch of time into as few as may be asked for at once.

    >>> list(cut(0.0, 5.0, 2.0))
    [(0.0, 2.0), (2.0, 4.0), (4.0, 5.0)]
    """
    while since < until:
        end = min(since + longest_s, until)
        yield since, end
        since = end


def keys_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return where the file with keys is, whether or not there is one.

    Args:
        environment: The environment, by default this process's.

    >>> keys_file({"XDG_CONFIG_HOME": "/home/ada/.config"}).as_posix()
    '/home/ada/.config/lowtide/keys.toml'
    """
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
