"""What a job draws as a function of its progress.

A `PowerProfile` is startup phases, which come on top of the work, work phases, and optionally stop
phases: what stopping on demand costs. Every start repeats the startup, unless restart phases say
what one after the first does instead. Progress counts seconds of work; the other phases make none.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import files
from lowtide.errors import FormatError, InvalidInput, InvalidProfile, guess_at
from lowtide.signal import FloatArray
from lowtide.units import DurationLike, format_count, format_energy, format_hours, parse_duration

# No job draws a terawatt; what does is a slip of units.
_MOST_W = 1e12
# More phases than this take seconds to lay out, and no job has them.
_MOST_PHASES = 1_000_000
# Who knows no more than this of how long a run takes knows nothing.
_MOST_SPREAD = 1e6


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Phase:
    """A named stretch of constant power.

    Attributes:
        name: What the job does in it.
        duration_s: How long it takes, more than 0.
        power_w: What the job draws, 0 or more.
        checkpoint: Whether its end is a point that a later start can resume from.

    >>> Phase(name="train", duration_s="30m", power_w=665).energy_j
    1197000.0
    """

    name: str
    duration_s: float
    power_w: float
    checkpoint: bool

    def __init__(
        self, *, name: str, duration_s: DurationLike, power_w: float, checkpoint: bool = False
    ) -> None:
        seconds = parse_duration(duration_s)
        if seconds <= 0:
            raise InvalidProfile(f"phase {name!r} must last longer than 0 s, not {seconds:g}")
        if isinstance(power_w, bool) or not isinstance(power_w, int | float | np.number):
            raise InvalidProfile(
                f"phase {name!r} needs its power as a number of watts: {power_w!r}"
            )
        if not 0 <= power_w <= _MOST_W:
            shown = power_w if isinstance(power_w, int) else f"{power_w:g}"
            raise InvalidProfile(
                f"phase {name!r} must draw 0 W or more, up to {_MOST_W:g} W, not {shown}: "
                "give its measured mean"
            )
        if not isinstance(name, str) or not name or "/" in name:
            raise InvalidProfile(f"a phase's name is a text without '/', not {name!r}")
        if not isinstance(checkpoint, bool | np.bool_):
            raise InvalidProfile(
                f"whether phase {name!r} ends in a checkpoint is true or false, not {checkpoint!r}"
            )
        for attribute, value in (
            ("name", name),
            ("duration_s", seconds),
            ("power_w", float(power_w)),
            ("checkpoint", bool(checkpoint)),
        ):
            object.__setattr__(self, attribute, value)

    @property
    def energy_j(self) -> float:
        """What the phase draws in all."""
        return self.power_w * self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Between what a run lies that nobody has seen, as shares of what the profile says.

    Attributes:
        level: How often it does.
        runs: How many runs that was learned from.
        duration: The least and the most that a run takes.
        energy: The least and the most that it draws.

    >>> spread = Spread(level=0.9, runs=5, duration=(0.95, 1.1), energy=(0.97, 1.03))
    >>> spread.late_s(1000.0)
    100.0
    """

    level: float
    runs: int
    duration: tuple[float, float]
    energy: tuple[float, float]

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise InvalidProfile(f"the level of a spread lies between 0 and 1, not {self.level!r}")
        for name in ("duration", "energy"):
            ends = getattr(self, name)
            if len(ends) != 2 or not 0 <= ends[0] <= 1 <= ends[1] <= _MOST_SPREAD:
                raise InvalidProfile(
                    f"the {name} of a spread is the least and the most as shares of the profile's, "
                    f"such as [0.95, 1.1], not {list(ends)!r}"
                )
            object.__setattr__(self, name, (float(ends[0]), float(ends[1])))

    def widened(self, factor: float) -> Spread:
        """Return one that is so many times as wide.

        >>> Spread(level=0.9, runs=5, duration=(0.95, 1.1), energy=(0.97, 1.03)).widened(2).duration
        (0.9, 1.2)
        """

        def wider(ends: tuple[float, float]) -> tuple[float, float]:
            low, high = (round(1 + factor * (end - 1), 6) for end in ends)
            return max(low, 0.0), high

        return replace(self, duration=wider(self.duration), energy=wider(self.energy))

    def late_s(self, run_s: float) -> float:
        """Return how much later than expected a run may end.

        Args:
            run_s: How long it takes as expected.
        """
        return round((self.duration[1] - 1) * run_s, 6)


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False)
class PowerProfile:
    """Watts as a function of progress.

    Attributes:
        startup: Phases of a start, before any work.
        restart: Phases of every start but the first, where they differ: data that was read once
            is read faster again, or a checkpoint has to be loaded. None for those of the startup;
            none at all for a start that takes nothing.
        work: Phases of the work itself, in order; at least one.
        stop: Phases that every stop before the end costs, such as writing a checkpoint.
        suspended_power_w: What the stopped job goes on drawing.
        spread: Between what a run lies that nobody has seen, None where that is not known.
        work_edges_s: Progress at which each work phase begins, and the end of the last.

    >>> profile = PowerProfile(
    ...     startup=[Phase(name="import", duration_s=10, power_w=80)],
    ...     work=[Phase(name="train", duration_s=50, power_w=600, checkpoint=True)],
    ... )
    >>> profile.run_s, profile.energy_j
    (60.0, 30800.0)
    """

    startup: tuple[Phase, ...]
    restart: tuple[Phase, ...] | None
    work: tuple[Phase, ...]
    stop: tuple[Phase, ...]
    suspended_power_w: float
    spread: Spread | None
    work_edges_s: FloatArray = field(init=False, compare=False)

    def __init__(
        self,
        *,
        work: Iterable[Phase],
        startup: Iterable[Phase] = (),
        stop: Iterable[Phase] = (),
        suspended_power_w: float = 0.0,
        restart: Iterable[Phase] | None = None,
        spread: Spread | None = None,
    ) -> None:
        groups = {"startup": tuple(startup), "work": tuple(work), "stop": tuple(stop)}
        if restart is None:
            object.__setattr__(self, "restart", None)
        else:
            groups["restart"] = tuple(restart)
        for group, phases in groups.items():
            for phase in phases:
                if not isinstance(phase, Phase):
                    raise InvalidProfile(f"{group} is a list of phases, but holds {phase!r}")
                if phase.checkpoint and group != "work":
                    raise InvalidProfile(
                        f"phase {phase.name!r} of {group} is marked as a checkpoint: "
                        "only work can be resumed from, so mark a phase of work"
                    )
            object.__setattr__(self, group, phases)
        if not self.work:
            raise InvalidProfile("a profile needs at least one phase of work")
        if isinstance(suspended_power_w, bool | str) or not (
            isinstance(suspended_power_w, int | float | np.number)
            # Whole numbers may be larger than any float.
            and 0 <= suspended_power_w <= sys.float_info.max
        ):
            raise InvalidProfile(
                f"a suspended job must draw 0 W or more, not {suspended_power_w!r}"
            )
        object.__setattr__(self, "suspended_power_w", float(suspended_power_w))
        if spread is not None and not isinstance(spread, Spread):
            raise InvalidProfile(f"the spread of a profile is a Spread or None, not {spread!r}")
        object.__setattr__(self, "spread", spread)
        if not math.isfinite(sum(phase.duration_s for phase in self.work)):
            raise InvalidProfile("the phases last longer than any number of seconds: check units")
        edges = np.concatenate(([0.0], np.cumsum([phase.duration_s for phase in self.work])))
        edges.flags.writeable = False
        object.__setattr__(self, "work_edges_s", edges)

    @classmethod
    def constant(cls, power_w: float, duration_s: DurationLike) -> PowerProfile:
        """Return the profile of a job that draws the same power throughout.

        Args:
            power_w: What it draws.
            duration_s: How long it works.

        >>> PowerProfile.constant(200, "2h").energy_j
        1440000.0
        """
        return cls(work=[Phase(name="work", duration_s=duration_s, power_w=power_w)])

    @classmethod
    def ml(
        cls,
        *,
        epochs: int,
        train: tuple[DurationLike, float],
        evaluate: tuple[DurationLike, float] | None = None,
        save: tuple[DurationLike, float] | None = None,
        startup: tuple[DurationLike, float] | None = None,
        restart: tuple[DurationLike, float] | None = None,
    ) -> PowerProfile:
        """Return the profile of a training job: epochs that each end in a checkpoint.

        Args:
            epochs: How many epochs.
            train: Duration and watts of an epoch's training.
            evaluate: Duration and watts of its evaluation, if there is one.
            save: Duration and watts of writing its checkpoint, if that takes time.
            startup: Duration and watts of importing, loading and building, at every start.
            restart: Duration and watts of that at every start but the first, if they differ.

        >>> run = PowerProfile.ml(epochs=5, train=("20m", 660), save=("1m", 120))
        >>> len(run.checkpoints_s), run.work_s
        (5, 6300.0)
        """
        if epochs < 1:
            raise InvalidProfile(f"a training job has at least one epoch, not {epochs}")
        parts = [("train", train), ("evaluate", evaluate), ("save", save)]
        given = [(name, part) for name, part in parts if part is not None]
        epoch = [
            Phase(name=name, duration_s=part[0], power_w=part[1], checkpoint=name == given[-1][0])
            for name, part in given
        ]
        first, again = (
            None if part is None else [Phase(name=name, duration_s=part[0], power_w=part[1])]
            for name, part in (("startup", startup), ("restart", restart))
        )
        return cls(startup=first or (), restart=again, work=epoch * epochs)

    @classmethod
    def periodic(
        cls,
        phases: Sequence[Phase],
        duration_s: DurationLike,
        *,
        startup: Iterable[Phase] = (),
        restart: Iterable[Phase] | None = None,
    ) -> PowerProfile:
        """Return the profile of phases repeated, the last one cut, to fill a duration.

        Args:
            phases: One period.
            duration_s: How long the work is in all.
            startup: Phases at every start, on top of the duration.
            restart: Phases at every start but the first, None for those of the startup.

        >>> high = Phase(name="high", duration_s="1h", power_w=200)
        >>> low = Phase(name="low", duration_s="30m", power_w=100)
        >>> [phase.duration_s for phase in PowerProfile.periodic([high, low], "2h").work]
        [3600.0, 1800.0, 1800.0]
        """
        total = parse_duration(duration_s)
        if not phases or total <= 0:
            raise InvalidProfile("a periodic profile needs phases and a duration longer than 0 s")
        work: list[Phase] = []
        left = total
        while left > 1e-9 * total:
            phase = phases[len(work) % len(phases)]
            work.append(
                phase
                if phase.duration_s <= left + 1e-9 * total
                else replace(phase, duration_s=left, checkpoint=False)
            )
            left -= phase.duration_s
        return cls(startup=startup, restart=restart, work=work)

    def starting(self, before: int) -> tuple[Phase, ...]:
        """Return the phases of a start that so many others came before."""
        return self.startup if self.restart is None or not before else self.restart

    def starting_s(self, before: int) -> float:
        """Return how long a start takes that so many others came before."""
        return sum(phase.duration_s for phase in self.starting(before))

    @property
    def startup_s(self) -> float:
        """How long the first start takes, and each other where restart says nothing else."""
        return self.starting_s(0)

    @property
    def restart_s(self) -> float:
        """How long each start after the first takes."""
        return self.starting_s(1)

    @property
    def work_s(self) -> float:
        """How much work there is."""
        return float(self.work_edges_s[-1])

    @property
    def stop_s(self) -> float:
        """How long stopping on demand takes."""
        return sum(phase.duration_s for phase in self.stop)

    @property
    def run_s(self) -> float:
        """How long the job takes when it is never stopped: one startup and the work."""
        return self.startup_s + self.work_s

    @property
    def energy_j(self) -> float:
        """What the job draws when it is never stopped: one startup and the work."""
        return sum(phase.energy_j for phase in (*self.startup, *self.work))

    @property
    def checkpoints_s(self) -> tuple[float, ...]:
        """Progress at which a stop keeps all work, in order."""
        ends = self.work_edges_s[1:]
        return tuple(
            float(end) for phase, end in zip(self.work, ends, strict=True) if phase.checkpoint
        )

    def __repr__(self) -> str:
        startup = f"{format_hours(self.startup_s)} startup + " if self.startup else ""
        return (
            f"<PowerProfile: {startup}{format_hours(self.work_s)} work in "
            f"{format_count(len(self.work), 'phase')}, {format_energy(self.energy_j)}, "
            f"{format_count(len(self.checkpoints_s), 'checkpoint')}"
            + ("" if self.restart is None else f", {format_hours(self.restart_s)} to restart")
            + ">"
        )

    def averaged(self) -> PowerProfile:
        """Return the same phases and checkpoints, all at the mean power of one whole run.

        What a planner sees that knows how long a job takes and what it draws in all, but not when.
        """
        mean_w = self.energy_j / self.run_s

        def flat(phases: tuple[Phase, ...]) -> list[Phase]:
            return [replace(phase, power_w=mean_w) for phase in phases]

        return PowerProfile(
            startup=flat(self.startup),
            restart=None if self.restart is None else flat(self.restart),
            work=flat(self.work),
            stop=self.stop,
            suspended_power_w=self.suspended_power_w,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers that `from_dict` reads back."""

        def plain(phase: Phase) -> dict[str, Any]:
            row: dict[str, Any] = {
                "name": phase.name,
                "duration_s": phase.duration_s,
                "power_w": phase.power_w,
            }
            return row | {"checkpoint": True} if phase.checkpoint else row

        document: dict[str, Any] = {
            group: [plain(phase) for phase in getattr(self, group)]
            for group in ("startup", "restart", "work", "stop")
            # A restart that takes nothing is something else than one that nobody spoke of.
            if getattr(self, group) or (group == "restart" and self.restart is not None)
        }
        if self.suspended_power_w:
            document["suspended_power_w"] = self.suspended_power_w
        if self.spread is not None:
            document["spread"] = {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(self.spread).items()
            }
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, epochs: int | None = None) -> PowerProfile:
        """Return the profile that a mapping describes.

        Instead of a phase, a list may hold `{repeat = 5, phases = [...]}`.

        Args:
            epochs: How often what is repeated in the work is to be; by default as it says.
            document: `work`, and optionally `startup`, `restart`, `stop`, `suspended_power_w`,
                `about` and `program`, which are for people and for the library.
        """
        if not isinstance(document, Mapping):
            raise InvalidProfile(f"a profile is a table with a list 'work', not {document!r}")
        known = (
            "startup",
            "restart",
            "work",
            "stop",
            "suspended_power_w",
            "spread",
            "about",
            "program",
        )
        _known_keys(document, known, "a profile")
        if "work" not in document:
            raise InvalidProfile("a profile needs a list of phases called 'work'")
        work = document["work"] if epochs is None else _with_epochs(document["work"], epochs)
        return cls(
            startup=_phases(document.get("startup", []), "startup"),
            restart=_phases(document["restart"], "restart") if "restart" in document else None,
            work=_phases(work, "work"),
            stop=_phases(document.get("stop", []), "stop"),
            suspended_power_w=document.get("suspended_power_w", 0.0),
            spread=_spread(document["spread"]) if "spread" in document else None,
        )

    @classmethod
    def load(cls, path: Path | str, *, epochs: int | None = None) -> PowerProfile:
        """Read a profile from a TOML or JSON file, told apart by its name.

        Args:
            path: A file ending in `.toml` or `.json`.
            epochs: How often what is repeated in the work is to be; by default as the file says.
        """
        path = profile_path(path)
        document = files.read_document(path, path.suffix[1:])
        try:
            return cls.from_dict(document, epochs=epochs)
        except InvalidInput as error:
            raise FormatError(str(error), path=path) from error

    def dump(self, path: Path | str, *, about: str = "") -> None:
        """Write the profile as TOML or JSON, by the file's name; it reads back equal.

        Args:
            path: A file ending in `.toml` or `.json`.
            about: What was measured, where and how; kept in the file.
        """
        document = ({"about": about} if about else {}) | self.to_dict()
        files.write_document(document, profile_path(path))


def profile_path(path: Path | str) -> Path:
    """Return the path of a profile; refuse what is no TOML or JSON by its name."""
    path = Path(path)
    if path.suffix not in (".toml", ".json"):
        raise InvalidProfile(f"a profile is a .toml or .json file, not {path.name!r}")
    return path


def _known_keys(table: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for key in table:
        if key not in known:
            raise InvalidProfile(
                f"unknown key {key!r} in {what}{guess_at(key, known)}: known are "
                f"{', '.join(sorted(known))}"
            )


def _phases(rows: Any, group: str) -> list[Phase]:
    if not isinstance(rows, list):
        raise InvalidProfile(f"{group} is a list of phases, not {rows!r}")
    phases: list[Phase] = []
    for row in rows:
        if not isinstance(row, dict):
            raise InvalidProfile(
                f"a phase of {group} has name, duration_s and power_w, not {row!r}"
            )
        if "phases" in row:
            times = row.get("repeat", 1)
            if not all(map(_is_count, (times, row.get("epochs", 1)))) or set(row) - {
                "repeat",
                "epochs",
                "phases",
            }:
                raise InvalidProfile(
                    f"a repeated block of {group} is 'phases' and a whole number 'repeat', "
                    "at least 1, and may say how many 'epochs' these phases are"
                )
            block = _phases(row["phases"], group)
            if len(block) * times + len(phases) > _MOST_PHASES:
                raise InvalidProfile(
                    f"{group} has at most {_MOST_PHASES:,} phases, and repeating one of its blocks "
                    "as often makes more: let a phase stand for several"
                )
            phases.extend(block * times)
            continue
        _known_keys(row, ("name", "duration_s", "power_w", "checkpoint"), f"a phase of {group}")
        if missing := sorted({"name", "duration_s", "power_w"} - set(row)):
            raise InvalidProfile(f"a phase of {group} lacks {', '.join(missing)}")
        phases.append(Phase(**row))
    return phases


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _with_epochs(rows: Any, epochs: int) -> Any:
    """Return the rows of work with another number of epochs in all.

    Epochs that differ from the others, such as a first one that takes longer, stand before the
    block that is repeated, and count. A block may be several epochs, of which one saves, say, and
    what comes after it some further ones.
    """
    if not _is_count(epochs):
        raise InvalidProfile(f"epochs are a whole number, at least 1, not {epochs!r}")
    if not isinstance(rows, list):
        return rows
    groups = [place for place, row in enumerate(rows) if isinstance(row, dict) and "phases" in row]
    blocks = [place for place in groups if "repeat" in rows[place] or "epochs" not in rows[place]]
    if len(blocks) != 1:
        lack = "nothing of its work is repeated" if not blocks else "several blocks are repeated"
        raise InvalidProfile(
            f"a profile has {epochs} epochs where one block of its work is repeated, and {lack}: "
            "learn it from runs of several epochs, or write one as { repeat = 5, phases = [...] }"
        )
    (place,) = blocks
    block = rows[place]
    names = [_plain_name(row) for row in block["phases"]]
    before = 0
    while _is_epoch(rows[: place - before * len(names)][-len(names) :], block["phases"], names):
        before += 1
    each = block.get("epochs", 1)
    other = each * before + sum(rows[at].get("epochs", 1) for at in groups if at != place)
    if epochs < other:
        raise InvalidProfile(
            f"{other} of its epochs differ from the others, so that it has {other} or more, "
            f"not {epochs}"
        )
    times, over = divmod(epochs - other, each)
    if over:
        raise InvalidProfile(
            f"what its work repeats are {each} epochs, so that it has {epochs - over} or "
            f"{epochs - over + each}, not {epochs}"
        )
    return [*rows[:place], *([{**block, "repeat": times}] if times else []), *rows[place + 1 :]]


def _is_epoch(rows: list[Any], phases: list[Any], names: list[str]) -> bool:
    """Return whether phases are those of a block: by their names, of which one is the same."""
    return [_plain_name(row) for row in rows] == names and any(
        row.get("name") == phase.get("name") for row, phase in zip(rows, phases, strict=True)
    )


def _plain_name(row: Any) -> str:
    name = row.get("name") if isinstance(row, dict) else None
    return str(name).rstrip("0123456789").rstrip(" _")


def _spread(table: Any) -> Spread:
    keys = ("level", "runs", "duration", "energy")
    if not isinstance(table, Mapping):
        raise InvalidProfile(f"spread is a table with {', '.join(keys)}, not {table!r}")
    _known_keys(table, keys, "a spread")
    if missing := sorted(set(keys) - set(table)):
        raise InvalidProfile(f"a spread lacks {', '.join(missing)}")
    level, runs = table["level"], table["runs"]
    ends = [table[name] for name in ("duration", "energy")]
    numbers = [level, *(end for each in ends if isinstance(each, list) for end in each)]
    if (
        not all(isinstance(each, list) for each in ends)
        or any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers)
        or isinstance(runs, bool)
        or not isinstance(runs, int)
    ):
        raise InvalidProfile(
            "a spread has a level, a whole number of runs, and duration and energy as two numbers "
            f"each, such as [0.95, 1.1], not {dict(table)!r}"
        )
    return Spread(level=level, runs=runs, duration=tuple(ends[0]), energy=tuple(ends[1]))
