"""What goes wrong during a measurement, told once however often it happens."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# A number that stands by itself: that of `gpu-0` is part of a name.
_NUMBER = re.compile(r"(?<=\s)[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?=[\s,;]|$)", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class _Trouble:
    """One thing that went wrong."""

    first: str
    worst: float | None = None
    started: float | None = None
    count: int = 1
    told: str | None = None

    def words(self) -> str:
        if self.count == 1:
            return self.first
        worst = "" if self.worst == self.started else f", at worst {self.worst:g}"
        return f"{self.first} ({self.count} times{worst})"


@dataclass(slots=True)
class Troubles:
    """Everything that went wrong, in the order in which it first did.

    >>> troubles = Troubles()
    >>> for watts in (2e6, 3e6, 2.5e6):
    ...     troubles.add_value(f"meter nvml: gpu-0 read {watts:g} W, which a gpu cannot draw")
    >>> troubles.notes()
    ['meter nvml: gpu-0 read 2e+06 W, which a gpu cannot draw (3 times, at worst 3e+06)']
    """

    _found: dict[str, _Trouble] = field(default_factory=dict, init=False)

    def add(self, text: str, *, kind: str | None = None, value: float | None = None) -> None:
        """Keep what went wrong; the first of a kind is told in its own words, others are counted.

        Args:
            kind: What it shares with others; by default all its words.
        """
        known = self._found.get(kind or text)
        if known is None:
            self._found[kind or text] = _Trouble(first=text, worst=value, started=value)
            return
        known.count += 1
        if value is not None and (known.worst is None or abs(value) > abs(known.worst)):
            known.worst = value

    def add_value(self, text: str) -> None:
        """Keep a value that cannot be; texts that differ in their numbers are of one kind."""
        numbers = _NUMBER.findall(text)
        value = float(numbers[0]) if numbers else None
        self.add(text, kind=_NUMBER.sub("#", text), value=value)

    def notes(self) -> list[str]:
        """Return everything in words."""
        return [each.words() for each in self._found.values()]

    def news(self, *, counts: bool = False) -> list[tuple[str, str | None]]:
        """Return what was not told yet, each with the words that told less of the same before."""
        found = []
        for each in self._found.values():
            words = each.words()
            if each.told is None or (counts and words != each.told):
                found.append((words, each.told))
                each.told = words
        return found
