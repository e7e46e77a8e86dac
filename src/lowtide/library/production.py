"""Learning a library from runs that happened anyway: what is used, what is left out, and why.

Phases come from the newest runs of a program. All its runs say how far off a run is from what was
expected of it, each by what others came to, and intervals are made of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from scipy import special

from lowtide.errors import LowtideError
from lowtide.files import toml_text
from lowtide.learning import learn
from lowtide.learning.intervals import next_one
from lowtide.learning.learned import SPREAD_LEVEL, Learned, profile_document
from lowtide.library.entry import Entry, Expectation
from lowtide.library.folder import Library
from lowtide.library.programs import Kind, PastRun, Program, tell_apart
from lowtide.profile import Spread
from lowtide.recording import Recording, Run
from lowtide.signal import FloatArray
from lowtide.units import format_count, format_energy, format_hours, format_time

# So many runs of a program are looked at, and phases come from so many of those: the newest.
LOOKED_AT = 40
_LEARNED_FROM = 8
# To say that a program drifts takes so many newer runs, and less chance than this.
_LEAST_NEW = 3
_CHANCE = 0.01
# Where nothing was expected before, the newest runs are compared with those before them: a quarter
# of all, so many at most, and only where enough remain to expect something by.
_MOST_NEW = 10
_LEAST_OLD = 9
# When a run began is written to the microsecond.
_WRITTEN_S = 1e-5
# With fewer runs than this little is known of how a program varies.
_FEW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run that nothing was learned from.

    Attributes:
        id: Which one.
        why: Why not, in a few words that others share.
        more: What else is known of that.
    """

    id: str
    why: str
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRuns:
    """The runs of one name, as a source tells them.

    Attributes:
        runs: Those that can be learned from, at most the newest `LOOKED_AT`.
        left_out: The others.
        called: What all runs are called, to the letter; empty where that differs.
        companions: Stops, kills and resumptions: they tell startup from work.
    """

    program: Program
    runs: tuple[PastRun, ...]
    left_out: tuple[LeftOut, ...]
    called: str = ""
    companions: tuple[Run, ...] = ()


class RunSource(Protocol):
    """Where runs are known from."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know of that."""
        ...

    def programs(self) -> Iterator[SeenRuns]:
        """Yield the runs of each program."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of one program.

    Attributes:
        entry: What is kept of it; None where nothing could be learned.
        status: `new`, `updated` or `unchanged`; `left out` where nothing could be learned.
        used: The runs that it rests on.
        left_out: Runs that nothing was learned from.
        why: Why nothing could be learned.
    """

    program: Program
    entry: Entry | None
    status: str
    used: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    why: str = ""

    def reasons(self) -> str:
        """Return why runs were left out, and how many each."""
        counts = Counter(each.why for each in self.left_out)
        return ", ".join(f"{count} {why}" for why, count in counts.most_common())

    def document(self) -> dict[str, Any]:
        """Return it as plain lists and numbers."""
        known: dict[str, Any] = {"profile": None, "user": self.program.user}
        known |= {"name": self.program.name} if self.entry is None else self.entry.document()
        return known | {
            "status": self.status,
            "why": self.why,
            "used": list(self.used),
            "left_out": [
                {"id": each.id, "why": each.why, "more": each.more} for each in self.left_out
            ],
        }


@dataclass(slots=True)
class Harvest:
    """What came of all programs.

    Attributes:
        found: Each of them.
        notes: What a reader should know of where they come from.
    """

    found: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def learn_from(
    source: RunSource,
    library: Library,
    *,
    tell: Callable[[str, int], None] = lambda _name, _done: None,
) -> Harvest:
    """Learn every program that a source knows, and keep it in the library.

    Args:
        tell: Told which program is next, and how many are done.
    """
    harvest = Harvest(notes=list(source.notes))
    for done, seen in enumerate(source.programs()):
        tell(seen.program.name, done)
        harvest.found += _learn_program(seen, library)
    return harvest


def _learn_program(seen: SeenRuns, library: Library) -> Iterator[Found]:
    left_out = list(seen.left_out)
    runs = _of_one_power(seen.runs, left_out)
    if not runs:
        why = "no uninterrupted run of it can be learned from"
        yield Found(
            program=seen.program, entry=None, status="left out", left_out=tuple(left_out), why=why
        )
        return
    kinds, strays = tell_apart(runs)
    left_out += (_left(each, "unlike the others in use") for each in strays)
    known = library.counterparts(seen.program, [kind.uses.mean(axis=0) for kind in kinds])
    for kind, before in zip(kinds, known, strict=True):
        left_out += (_left(each, "of before it changed") for each in kind.former)
        found = Found(
            program=seen.program,
            entry=before,
            status="unchanged",
            used=tuple(each.run.id for each in kind.runs),
            left_out=tuple(left_out),
        )
        left_out.clear()
        if before is not None and not _since(before, kind.runs[-1:]):
            yield found
            continue
        try:
            # Nobody knows which of several programs was stopped.
            beside = seen.companions if len(kinds) == 1 else ()
            entry, gone, unlike = make_entry(seen.program, kind, before, beside)
        except LowtideError as error:
            yield replace(found, entry=None, status="left out", used=(), why=str(error))
            continue
        name = before.name if before else library.free_name(seen.program, seen.called)
        entry = replace(entry, name=name)
        library.put(entry)
        drifted_away = tuple(_left(each, "of before it drifted") for each in gone)
        kept = {*found.used[len(gone) :]} - {each.id for each in unlike}
        yield replace(
            found,
            entry=entry,
            status="updated" if before else "new",
            used=tuple(each for each in found.used if each in kept),
            left_out=(*found.left_out, *drifted_away, *unlike),
        )


def _of_one_power(runs: Sequence[PastRun], left_out: list[LeftOut]) -> list[PastRun]:
    """Return the runs whose power is known in the same way: most, or else those measured."""
    kinds = Counter(each.run.power for each in runs)
    if len(kinds) < 2:
        return list(runs)
    kept = "measured" if kinds["measured"] >= kinds["estimated"] else "estimated"
    why = "estimated, unlike the others" if kept == "measured" else "measured, unlike the others"
    left_out += (_left(each, why) for each in runs if each.run.power != kept)
    return [each for each in runs if each.run.power == kept]


def _left(each: PastRun, why: str) -> LeftOut:
    return LeftOut(id=each.run.id, why=why)


def make_entry(
    program: Program, kind: Kind, before: Entry | None, companions: Sequence[Run] = ()
) -> tuple[Entry, tuple[PastRun, ...], tuple[LeftOut, ...]]:
    """Return what is known of a program by its runs, and the runs that say nothing of it.

    These are two: those of before it drifted, and those whose marks nobody can believe.

    Args:
        before: What was known of it; newer runs are compared with that.
    """
    runs = kind.runs
    new = _newer(runs, before)
    drift = ""
    if new:
        known = _by(runs[: -len(new)]) if before is None else (before.energy_j, before.duration_s)
        drift = drifted(known, new)
    if kind.former:
        drift = _changed(kind)
    gone: tuple[PastRun, ...] = ()
    if drift and not kind.former and len(new) < len(runs):
        runs, gone = new, runs[: -len(new)]
    newest = _with_own_names([*(each.run for each in runs[-_LEARNED_FROM:]), *companions])
    # All runs of the program say how good it is, below: none has to be left out for that.
    learned = learn(Recording(runs=newest, source=str(program)), validated=False)
    profile = learned.profile
    unlike = _unlike_by_marks(learned, runs[-_LEARNED_FROM:], newest)
    since, until = runs[0].start, runs[-1].start
    runs = tuple(each for each in runs if each.run.id not in {other.id for other in unlike})
    learned_from = min(len(runs), _LEARNED_FROM - len(unlike))
    energy_j = expect(_energies_j(runs), profile.energy_j, learned_from)
    duration_s = expect(_durations_s(runs), profile.run_s, learned_from)
    profile = replace(profile, spread=spread_of(energy_j, duration_s))
    return (
        Entry(
            name="",
            program=program,
            profile=profile,
            text=toml_text(profile_document(replace(learned, profile=profile))),
            energy_j=energy_j,
            duration_s=duration_s,
            use=kind.uses[-_LEARNED_FROM:].mean(axis=0),
            runs=len(runs),
            learned_from=learned_from,
            since=since,
            until=until,
            power=runs[-1].run.power,
            drift=drift,
            notes=tuple(_notes(learned, runs)),
        ),
        gone,
        unlike,
    )


def _unlike_by_marks(
    learned: Learned, runs: Sequence[PastRun], called: Sequence[Run]
) -> tuple[LeftOut, ...]:
    """Return the runs that contradict others, or themselves, by what they said, and how.

    Args:
        called: The same runs as they were learned from, by what they are called there.
    """
    if learned.fit.model.marks is None:
        return ()
    found = []
    for each, run in zip(runs, called, strict=False):
        if run.id not in learned.fit.model.runs:
            said = (note for note in learned.notes if note.startswith(f"run {run.id} "))
            found.append(
                LeftOut(id=each.run.id, why="unlike the others by its marks", more=next(said, ""))
            )
    return tuple(found)


def _with_own_names(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return runs of which no two have the same name: numbers of jobs are used again."""
    counts = Counter(run.id for run in runs)
    return tuple(
        run if counts[run.id] == 1 else replace(run, id=f"{run.id}@{run.start:.3f}") for run in runs
    )


def expect(values: FloatArray, predicted: float, learned: int) -> Expectation:
    """Return what the next run comes to, with an interval by what runs came to.

    Args:
        values: What each run came to, oldest first.
        predicted: What a profile says that was made from the last of them.
        learned: How many of them it was made from, at most.
    """
    between = next_one((values / predicted).tolist(), level=SPREAD_LEVEL) if predicted > 0 else None
    if between is None:
        return Expectation(value=predicted, runs=values.size)
    # What the profile would have said without a run: nearly what the others came to on average.
    own = values[-learned:]
    without = (own.sum() - own) / max(own.size - 1, 1) / own.mean()
    said = predicted * np.concatenate([np.ones(values.size - own.size), without])
    return Expectation(
        value=predicted,
        low=predicted * min(max(between[0], 0.0), 1.0),
        high=predicted * max(between[1], 1.0),
        level=SPREAD_LEVEL,
        runs=values.size,
        error=float(np.abs(values / said - 1).mean()),
    )


def spread_of(energy_j: Expectation, duration_s: Expectation) -> Spread | None:
    """Return what is expected as planners take it; None where runs do not tell."""
    ends = []
    for each in (duration_s, energy_j):
        if each.low is None or each.high is None:
            return None
        low, high = each.low / each.value, each.high / each.value
        # Six digits, as all numbers of a profile have.
        ends.append((float(f"{low:.6g}"), float(f"{high:.6g}")))
    return Spread(level=SPREAD_LEVEL, runs=energy_j.runs, duration=ends[0], energy=ends[1])


def drifted(expected: Sequence[Expectation], new: Sequence[PastRun]) -> str:
    """Return how new runs differ from what was expected of them; empty where they do not.

    Of runs like those before, so many or more outside of the interval are seen by chance now and
    then: by a beta-binomial distribution, as the interval itself rests on few runs. What is seen
    by chance once in a hundred times or less is called drift.

    Args:
        expected: What was expected of energy and duration.
    """
    said = []
    for what, each, values, show in (
        ("drew", expected[0], _energies_j(new), format_energy),
        ("took", expected[1], _durations_s(new), format_hours),
    ):
        if each.low is None or each.high is None or each.level is None or len(new) < _LEAST_NEW:
            continue
        over, under = int((values > each.high).sum()), int((values < each.low).sum())
        chance = tail(over + under, len(new), each.runs, each.level)
        if chance < _CHANCE / len(expected):
            direction = "more" if over >= under else "less"
            said.append(
                f"{over + under} of {format_count(len(new), 'newer run')} {what} {direction} than "
                f"the {show(each.low)} to {show(each.high)} expected ({each.level:.0%}): "
                f"{show(float(np.median(values)))}, p = {chance:.1g}"
            )
    return "; ".join(said)


def tail(outside: int, new: int, runs: int, level: float) -> float:
    """Return how likely so many of some new runs, or more, lie outside of an interval by chance.

    Args:
        runs: How many runs the interval was made from.
        level: How often a run lies within it.

    >>> round(tail(1, 1, 9, 0.9), 3), round(tail(10, 10, 9, 0.9), 6)
    (0.1, 1.1e-05)
    """
    a, b = (1 - level) * (runs + 1), level * (runs + 1)
    counts = np.arange(outside, new + 1)
    ways = (
        special.gammaln(new + 1) - special.gammaln(counts + 1) - special.gammaln(new - counts + 1)
    )
    logs = ways + special.betaln(counts + a, new - counts + b) - special.betaln(a, b)
    return float(min(np.exp(logs).sum(), 1.0))


def _newer(runs: Sequence[PastRun], before: Entry | None) -> tuple[PastRun, ...]:
    """Return the runs that are compared with those before; none where there are too few."""
    if before is not None:
        return _since(before, runs)
    count = min(max(len(runs) // 4, _LEAST_NEW), _MOST_NEW)
    return tuple(runs[-count:]) if len(runs) >= count + _LEAST_OLD else ()


def _since(before: Entry, runs: Sequence[PastRun]) -> tuple[PastRun, ...]:
    """Return the runs that began after the last one that an entry rests on."""
    return tuple(each for each in runs if each.start > before.until + _WRITTEN_S)


def _by(runs: Sequence[PastRun]) -> tuple[Expectation, Expectation]:
    """Return what would have been expected by some runs alone."""
    energies_j, durations_s = _energies_j(runs), _durations_s(runs)
    return (
        expect(energies_j, float(energies_j.mean()), len(runs)),
        expect(durations_s, float(durations_s.mean()), len(runs)),
    )


def _changed(kind: Kind) -> str:
    then, now = (
        float(np.median([each.run.mean_w for each in runs])) for runs in (kind.former, kind.runs)
    )
    return (
        f"it changed by {format_time(kind.runs[0].start)}: {then:.4g} W on average before, "
        f"{now:.4g} W since"
    )


def _energies_j(runs: Sequence[PastRun]) -> FloatArray:
    return np.array([each.run.energy_j() for each in runs])


def _durations_s(runs: Sequence[PastRun]) -> FloatArray:
    return np.array([each.run.duration_s for each in runs])


def few_runs(runs: int) -> str:
    """Return what has to be said of a program that few runs are known of; empty for others."""
    if runs >= _FEW:
        return ""
    return f"{format_count(runs, 'run')} only, which tells little of how it varies"


def _notes(learned: Learned, runs: Sequence[PastRun]) -> Iterator[str]:
    if few := few_runs(len(runs)):
        yield few
    if runs[-1].run.power == "estimated":
        yield "its power was estimated, not measured"
    yield from learned.notes
