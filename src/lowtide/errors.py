"""What can go wrong, and what each error knows.

Every error says the rule, the value that broke it and what to do. All derive from
`LowtideError`; each also derives from the builtin a caller would expect to catch. `Once` is for
whoever goes on after a problem, and is to say it a single time.

```
LowtideError
├── InvalidInput (ValueError)     a value breaks a rule of the thing it was meant for
│   ├── InvalidTime               naive, unreadable or out of order
│   ├── InvalidUnit               unknown, or not of the kind asked for
│   ├── InvalidSignal
│   ├── InvalidProfile
│   ├── InvalidJob
│   │   ├── DeadlineTooEarly      carries available_s, needed_s
│   │   └── Infeasible            no schedule keeps a job's rules; carries cures
│   ├── TooLaborious              a plan would take too long, or too much memory
│   ├── InvalidTrace
│   └── InvalidSchedule           a schedule that cannot be run; carries over_w
├── NotCovered (LookupError)      a signal was asked about a time outside its span
├── UnknownName (LookupError)     carries name, known
├── FormatError (ValueError)      a file stops making sense; carries path, line, column
├── FileProblem (OSError)         a file cannot be read or written; carries path
├── MeterProblem (OSError)        a meter is absent, may not be read or does not answer
├── SlurmProblem (OSError)        Slurm is absent, does not answer or will not
│   ├── SlurmSilent               nobody answers
│   ├── NoSuchJob
│   ├── NoSuchNode
│   └── NoAccounting              nobody keeps what jobs came to
├── Unreachable (OSError)         whoever runs jobs does not answer: what became of it is not known
├── Refused (OSError)             whoever runs jobs will not do as asked
├── StoreProblem (OSError)        what was watched cannot be kept or read; carries where
├── ProviderProblem (OSError)     a grid's provider refuses or does not answer; carries wait_s
└── MissingExtra (ImportError)    an optional dependency is not installed; carries extra
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that a message speaks of, written as in Python; others spell it their own way.

    Attributes:
        name: What readers of files call it, such as `tz`.
        value: What to give it; None where the message leaves that open.
    """

    name: str
    value: str | None = None

    def __str__(self) -> str:
        return f"{self.name}=" if self.value is None else f"{self.name}={self.value!r}"


class LowtideError(Exception):
    """The root of every error that lowtide raises on purpose.

    Attributes:
        arguments: Those that the message speaks of, in its order.
    """

    arguments: tuple[Argument, ...] = ()

    def __init__(self, *args: object, arguments: Sequence[Argument] = ()) -> None:
        super().__init__(*args)
        if arguments:
            self.arguments = tuple(arguments)

    def spelt(self, spell: Callable[[Argument], str]) -> str:
        """Return the message with its arguments as a command line or a file spells them."""
        text = str(self)
        end = len(text)
        # From the end, where advice stands: what files say of themselves comes before it.
        for argument in reversed(self.arguments):
            end = text.rindex(str(argument), 0, end)
            text = text[:end] + spell(argument) + text[end + len(str(argument)) :]
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew without its constructor, an error with keyword arguments can cross processes.
        return _remake, (type(self), self.args, dict(self.__dict__))


def _remake(kind: type[LowtideError], args: tuple[Any, ...], data: dict[str, Any]) -> LowtideError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(data)
    return error


class InvalidInput(LowtideError, ValueError):
    """A value breaks a rule of the thing it was meant for."""


class InvalidTime(InvalidInput):
    """A time is naive, unreadable or out of order."""


class InvalidUnit(InvalidInput):
    """A unit is unknown, or not of the kind that was asked for."""


class InvalidSignal(InvalidInput):
    """Values, step or labels do not make a signal."""


class InvalidProfile(InvalidInput):
    """Phases do not make a power profile."""


class InvalidJob(InvalidInput):
    """A job contradicts itself."""


class DeadlineTooEarly(InvalidJob):
    """The deadline leaves less time than the job needs.

    Attributes:
        available_s: Seconds between arrival and deadline.
        needed_s: Seconds the job needs when it is never stopped.
    """

    def __init__(self, message: str, *, available_s: float, needed_s: float) -> None:
        super().__init__(message)
        self.available_s = available_s
        self.needed_s = needed_s


@dataclass(frozen=True, slots=True)
class Cure:
    """A change that lets a job be planned, by itself.

    Attributes:
        of: Whose argument is to be changed: the `job`'s, the `state`'s, or the policy's,
            `Exact(...)`.
        argument: Its name, such as `deadline`.
        value: What to give it.
        text: The same in words.
    """

    of: Literal["job", "policy", "state"]
    argument: str
    value: Any
    text: str


class Infeasible(InvalidJob):
    """No schedule keeps a job's rules, from where it stands.

    Attributes:
        what: What cannot be, without the cures.
        cures: What would let it be planned, each by itself; empty where nothing short of new
            rules would, or `what` says it.
    """

    def __init__(self, what: str, cures: Sequence[Cure] | None) -> None:
        helps = ", or ".join(cure.text for cure in cures or ())
        told = "" if cures is None else f": {helps or 'nothing short of new rules helps'}"
        super().__init__(f"{what}{told}")
        self.what = what
        self.cures = tuple(cures or ())


class TooLaborious(InvalidInput):
    """A plan that could be made would take too long, or too much memory."""


class InvalidTrace(InvalidInput):
    """Columns do not make a job trace."""


class InvalidSchedule(InvalidInput):
    """A schedule that its job, or the machines, could not run.

    Attributes:
        over_w: By how much a power cap would be exceeded at most; 0 where it is not about that.
    """

    def __init__(self, message: str, *, over_w: float = 0.0) -> None:
        super().__init__(message)
        self.over_w = over_w


class NotCovered(LowtideError, LookupError):
    """A signal was asked about a time outside its span."""


class UnknownName(LowtideError, LookupError):
    """A name is not among the known ones.

    Attributes:
        name: What was asked for.
        known: The names there are, sorted.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.name = name
        self.known = sorted(known)
        super().__init__(
            f"unknown {what} {name!r}{guess_at(name, self.known)}: known are "
            f"{', '.join(self.known) or 'none'}{hint}"
        )


def guess_at(name: str, known: Iterable[str]) -> str:
    """Return which known name was meant by another, to be told behind it; empty without a guess.

    >>> guess_at("pwoer", ["power", "energy"])
    " (did you mean 'power'?)"
    """
    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def require_known(keys: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse a key that means nothing, with the nearest that does."""
    known = tuple(known)
    for key in keys:
        if key not in known:
            raise UnknownName(what, str(key), known)


class FormatError(LowtideError, ValueError):
    """A file stops making sense.

    Attributes:
        path: The file.
        line: The line, counted from 1, where one can be named.
        column: The column's name, where one can be named.
    """

    def __init__(
        self,
        message: str,
        *,
        path: Path | str,
        line: int | None = None,
        column: str | None = None,
        arguments: Sequence[Argument] = (),
    ) -> None:
        where = str(path)
        if line is not None:
            where += f", line {line}"
        if column is not None:
            where += f", column {column!r}"
        super().__init__(f"{where}: {message}", arguments=arguments)
        self.path = Path(path)
        self.line = line
        self.column = column


class FileProblem(LowtideError, OSError):
    """A file cannot be read or written.

    Attributes:
        path: The file.
    """

    def __init__(self, message: str, *, path: Path | str) -> None:
        super().__init__(message)
        self.path = Path(path)


class MeterProblem(LowtideError, OSError):
    """A meter is absent, may not be read or does not answer."""


class SlurmProblem(LowtideError, OSError):
    """Slurm is absent, does not answer or will not do as asked."""


class SlurmSilent(SlurmProblem):
    """Slurm does not answer, so that it is not known what became of a request."""


class NoSuchJob(SlurmProblem):
    """Slurm does not know a job, or has forgotten it."""


class NoSuchNode(SlurmProblem):
    """Slurm knows no node of that name."""


class NoAccounting(SlurmProblem):
    """This Slurm keeps no accounting."""


class Unreachable(LowtideError, OSError):
    """Whoever runs jobs does not answer, so that it is not known what became of a request."""


class Refused(LowtideError, OSError):
    """Whoever runs jobs answers, and will not do what it was asked."""


class StoreProblem(LowtideError, OSError):
    """What was watched cannot be kept or read.

    Attributes:
        where: The store, without any password.
    """

    def __init__(self, message: str, *, where: str) -> None:
        super().__init__(message)
        self.where = where


class ProviderProblem(LowtideError, OSError):
    """A grid's provider refuses, lacks its key or does not answer.

    Attributes:
        wait_s: How long it asks not to be asked again; 0 where it does not say.
    """

    def __init__(self, message: str, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class MissingExtra(LowtideError, ImportError):
    """An optional dependency is not installed.

    Attributes:
        extra: The extra that brings it.
    """

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'lowtide[{extra}]'")
        self.extra = extra


class Once:
    """Tells what is new from what was there before, so that nothing is said twice."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: set[str] = set()

    def is_new(self, what: str) -> bool:
        """Say whether this is the first time that somebody asks for it."""
        if what in self._known:
            return False
        self._known.add(what)
        return True
