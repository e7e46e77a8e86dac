"""Who says what a zone's grid emits now: what a provider is, and how a zone of one is named.

A provider is a class with the attributes and the one method of `GridProvider`, registered under
the entry-point group `lowtide.grid_providers`. It asks and finds times and values in the answer;
keeping, merging and telling the age of what it said are the same for all and live in `cache` and
`feed`.
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


PROVIDERS: Registry[Callable[[], GridProvider]] = Registry("lowtide.grid_providers", "provider")


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
