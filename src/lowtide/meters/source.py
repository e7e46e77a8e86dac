"""Meters in use: how they are looked for, which ones, read how, and what of them counts."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from lowtide.errors import InvalidInput, LowtideError, MeterProblem
from lowtide.meters.estimate import Estimate
from lowtide.meters.external import External
from lowtide.meters.hwmon import Hwmon
from lowtide.meters.meter import METERS, Channel, Found, Meter, Reading, Roots, plausible
from lowtide.meters.power_model import UtilisationModel
from lowtide.meters.redfish import Redfish

# A slow meter is asked again so long after its last answer.
_PAUSE_S = 0.5
# What a slow meter said so many turns ago, and so many seconds at least, is no longer so.
_STALE_TURNS = 3
_LEAST_STALE_S = 3.0
# Until then it is not silent, only slow.
_FIRST_S = 6.0
# How long meters that nobody named are looked for: tools have given up by then.
FIND_S = 5.5
# The meters that read GPUs and nothing else.
_OF_GPUS = ("nvml", "amd")

T = TypeVar("T")


def choose_meters(
    said: Sequence[str],
    roots: Roots | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Meter]:
    """Return the meters that were asked for, or all that this machine offers.

    Args:
        said: Names, each maybe with more after a colon (`external:meter.csv`); empty for all that
            work here, and an estimate where none does.
        tell: Told of every meter that did not answer in time and is left out.
    """
    roots = roots or Roots()
    found: list[Meter] = [_named(each, roots) for each in said]
    if not said:
        names = METERS.names()
        answers = side_by_side([partial(_working, name, roots) for name in names], FIND_S)
        for name, kind in zip(names, answers, strict=True):
            if kind is None:
                tell(late(name, FIND_S))
            elif isinstance(kind, type):
                found.append(made(kind, roots))
    tell_apart(found)
    return found or [Estimate(roots=roots)]


def gpu_meters(roots: Roots | None = None) -> list[Meter]:
    """Return the meters that read GPUs and nothing else, as far as they work here."""
    roots = roots or Roots()
    answers = side_by_side([partial(_working, name, roots) for name in _OF_GPUS], FIND_S)
    return [made(kind, roots) for kind in answers if isinstance(kind, type)]


def late(name: str, within_s: float) -> str:
    """Say that a meter is left out because it did not answer in time."""
    return (
        f"meter {name} did not answer within {within_s:g} s while meters were looked for, and is "
        f"left out: lowtide doctor shows its state, --meter {name} insists on it"
    )


def side_by_side(actions: Sequence[Callable[[], T]], within_s: float) -> list[T | Exception | None]:
    """Do things that may hang for ever beside each other; return what each returns or raises.

    Args:
        actions: What to do. One that does not come back in time is left behind, and has None.
    """
    came: SimpleQueue[tuple[int, T | Exception]] = SimpleQueue()

    def act(number: int) -> None:
        try:
            came.put((number, actions[number]()))
        except Exception as error:  # noqa: BLE001 - it is handed to whoever asked
            came.put((number, error))

    for number in range(len(actions)):
        # Unlike those of a pool, such threads keep no process from ending.
        threading.Thread(target=act, args=(number,), daemon=True).start()
    answers: list[T | Exception | None] = [None] * len(actions)
    until_s = time.monotonic() + within_s
    for _ in actions:
        try:
            number, answer = came.get(timeout=max(until_s - time.monotonic(), 0.0))
        except Empty:
            break
        answers[number] = answer
    return answers


def tell_apart(meters: Iterable[Meter]) -> None:
    """Tell sensors of the kernel's which cards other meters read as well."""
    meters = list(meters)
    names = frozenset(meter.name for meter in meters)
    for meter in meters:
        if isinstance(meter, Hwmon):
            meter.beside = names


def kinds_here(roots: Roots) -> list[type[Meter]]:
    """Return the kinds of meters to look for: of a recorded tree, those that read it."""
    kinds: list[type[Meter]] = []
    for name in METERS.names():
        # A plug-in that cannot be loaded is told by `lowtide doctor`, and keeps nobody.
        with suppress(LowtideError):
            kinds.append(METERS.load(name))
    return [kind for kind in kinds if _is_of(kind, roots)]


def _is_of(kind: type[Meter], roots: Roots) -> bool:
    return kind.measured and (roots.is_here or _reads(kind))


def _working(name: str, roots: Roots) -> type[Meter] | bool:
    """Return a kind of meter that works here; False where it does not, or breaks on the way."""
    try:
        kind = METERS.load(name)
        return kind if _is_of(kind, roots) and kind.find(roots).state == "works" else False
    except Exception:  # noqa: BLE001 - a broken driver or plug-in is no reason to measure nothing
        return False


def _named(text: str, roots: Roots) -> Meter:
    name, _, more = text.partition(":")
    kind = METERS.load(name)
    if kind is External:
        return External(source=more)
    if kind is Redfish and more:
        return Redfish(address=more)
    if kind is Estimate and more:
        return Estimate(model=UtilisationModel.load(more), roots=roots)
    if more:
        raise InvalidInput(f"meter {name} takes nothing after its name, unlike {text!r}")
    return made(kind, roots)


def made(kind: type[Meter], roots: Roots) -> Meter:
    """Return a meter of a kind."""
    return kind(**({"roots": roots} if _reads(kind) else {}))


def _reads(kind: type[Meter]) -> bool:
    """Return whether a kind of meter reads files of the kernel's."""
    return "roots" in getattr(kind, "__dataclass_fields__", {})


@dataclass(slots=True)
class PowerSource:
    """A meter in use, read by itself where it is slow, and what it said last.

    Attributes:
        meter: The meter.
        channels: What it sees.
        last: The last reading that said anything.
        silent_since: Since when it says nothing; None while it does.
        problem: Why it does not answer, in words; empty while it does.
        pause_s: How long after its last answer a slow meter is asked again.
    """

    meter: Meter
    channels: tuple[Channel, ...]
    last: Reading | None = None
    silent_since: float | None = None
    problem: str = ""
    pause_s: float = _PAUSE_S
    # What a slow meter said last, or why it did not; when, and how long that holds.
    _newest: tuple[Reading | None, str, float, float] | None = field(default=None, init=False)
    _begun_s: float = field(default=0.0, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    # Whether a meter that is not slow is being asked, and whether nobody waits for that any more.
    _asking: bool = field(default=False, init=False)
    _stuck: bool = field(default=False, init=False)
    _turns: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def name(self) -> str:
        """The meter and its channels, in words."""
        return f"{self.meter.name} ({', '.join(channel.name for channel in self.channels)})"

    def begin(self, *, first: bool = False) -> None:
        """Read a slow meter beside the others, so that none waits for it."""
        self._begun_s = time.monotonic()
        if first:
            self._turn()
        if self.meter.slow:
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()

    def read(self) -> Reading | None:
        """Return the newest reading, None where the meter does not answer; `problem` says why."""
        if self._stuck:
            reading, problem = None, "it has not come back since it was last asked"
        elif self._thread is None:
            reading, problem = self._ask_here()
        elif self._newest is None:
            return None
        else:
            reading, problem, at_s, holds_s = self._newest
            if reading is not None and time.monotonic() - at_s > holds_s:
                reading, problem = None, f"it has not answered for over {holds_s:.0f} s"
        self.problem = problem
        return reading

    @property
    def is_new(self) -> bool:
        """Whether it has just begun, so that a slow meter had no time to say anything yet."""
        begun = self.meter.slow and self._newest is None
        return begun and time.monotonic() - self._begun_s < _FIRST_S

    def end(self) -> None:
        """Let go of the meter."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        if not self._stuck:
            self.meter.close()

    def set_aside(self) -> bool:
        """Go on without a meter that is being asked and does not come back; return whether it is.

        It is asked again once it has come back. Whoever was asking it finds an error then.
        """
        with self._turns:
            self._stuck = self._stuck or self._asking
            aside, self._asking = self._asking, False
            return aside

    def _ask_here(self) -> tuple[Reading | None, str]:
        self._asking = True
        said = self._ask()
        with self._turns:
            self._asking = False
            if self._stuck:
                self._stuck = False
                raise MeterProblem(f"meter {self.meter.name} came back too late")
        return said

    def _listen(self) -> None:
        while not self._stop.wait(self.pause_s if self._newest is not None else 0.0):
            self._turn()

    def _turn(self) -> None:
        asked_s = time.monotonic()
        said = self._ask()
        turn_s = self.pause_s + time.monotonic() - asked_s
        self._newest = (*said, asked_s, max(_STALE_TURNS * turn_s, _LEAST_STALE_S))

    def _ask(self) -> tuple[Reading | None, str]:
        try:
            reading = self.meter.sample()
            return self._understood(reading), ""
        except LowtideError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001
            # Meters meet half an answer, a field that holds words, a driver that is unloaded. No
            # list of errors is complete, and one that is missed would end the thread, so that the
            # last value stood for all that came after it.
            return None, f"{type(error).__name__}: {error}"

    def _understood(self, reading: Reading) -> Reading:
        """Return a reading whose values can be, one for each channel; raise where it is none."""
        count = len(self.channels)
        energies_j = tuple(float(each) for each in reading.energy_j) or (math.nan,) * count
        if len(reading.power_w) != count or len(energies_j) != count:
            raise MeterProblem(
                f"it has {count} channels and said {len(reading.power_w)} powers and "
                f"{len(energies_j)} energies"
            )
        powers_w = tuple(float(each) for each in reading.power_w)
        pairs = [plausible(*each) for each in zip(self.channels, powers_w, strict=True)]
        wrong = tuple(f"{why}; left out" for _, why in pairs if why)
        if not wrong and powers_w == reading.power_w and energies_j == reading.energy_j:
            return reading
        return replace(
            reading,
            power_w=tuple(watts for watts, _ in pairs),
            energy_j=energies_j,
            problems=(*reading.problems, *wrong),
            rejected=reading.rejected + len(wrong),
        )


def counted(channels: Sequence[Channel]) -> list[bool]:
    """Return which channels make up what was drawn in all, so that nothing is counted twice.

    A node's meter sees everything. Else the platform's counter stands for packages and memory, and
    GPUs are added to either. Channels of other kinds are parts of something, and not added. A
    counter that says nothing is no channel: its meter leaves it out.

    >>> counted([Channel(name="package-0", domain="package"), Channel(name="node", domain="node")])
    [False, True]
    """
    domains = [channel.domain for channel in channels]
    if "node" in domains:
        first = domains.index("node")
        return [place == first for place in range(len(domains))]
    parts = ("psys", "gpu") if "psys" in domains else ("package", "dram", "gpu")
    return [domain in parts for domain in domains]


# What is there and cannot be read is told; what is not there is nobody's problem.
_TOLD = ("no permission", "no answer")
# Tools that tell power are programs of their own, and some take half a second of a core: what
# watches for months asks them less often than what measures a run.
_SEARCH_PAUSE_S = 2.0


@dataclass(slots=True, kw_only=True)
class MeterSearch:
    """All meters that measure something here, each looked for by itself.

    Attributes:
        roots: Where the kernel's files are.
        within_s: How long all of them together are waited for. One that comes later is taken then.
    """

    roots: Roots = field(default_factory=Roots)
    within_s: float = 2.0
    _came: queue.SimpleQueue[tuple[str, PowerSource | None, str]] = field(
        default_factory=queue.SimpleQueue, init=False
    )
    _missing: set[str] = field(default_factory=set, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)

    def begin(self) -> None:
        """Begin to look."""
        for kind in kinds_here(self.roots):
            self._missing.add(kind.name)
            threading.Thread(target=self._look, args=(kind,), daemon=True).start()

    def first(self) -> tuple[list[PowerSource], list[str]]:
        """Wait for what answers in time; return the meters, open, and what is wrong, in words."""
        sources: list[PowerSource] = []
        problems: list[str] = []
        until = time.monotonic() + self.within_s
        while self._missing:
            try:
                came = self._came.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                break
            self._sort(came, sources, problems)
        problems += [
            f"meter {name} has not answered within {self.within_s:g} s: left out until it does"
            for name in sorted(self._missing)
        ]
        return sorted(sources, key=lambda source: source.meter.name), problems

    def late(self) -> tuple[list[PowerSource], list[str]]:
        """Return the meters that have answered since, and what is wrong; wait for none."""
        sources: list[PowerSource] = []
        problems: list[str] = []
        while self._missing and not self._came.empty():
            self._sort(self._came.get(), sources, problems)
        return sources, problems

    def close(self) -> None:
        """Take no more of them."""
        self._over.set()
        for source in self.late()[0]:
            source.end()

    def _sort(
        self,
        came: tuple[str, PowerSource | None, str],
        sources: list[PowerSource],
        problems: list[str],
    ) -> None:
        name, source, problem = came
        self._missing.discard(name)
        if source is not None:
            sources.append(source)
        if problem:
            problems.append(problem)

    def _look(self, kind: type[Meter]) -> None:
        source, problem = None, ""
        try:
            found = kind.find(self.roots)
            problem = _told(found)
            if found.state == "works":
                meter = made(kind, self.roots)
                source = PowerSource(meter, meter.open(), pause_s=_SEARCH_PAUSE_S)
                source.begin(first=meter.slow)
        except LowtideError as error:
            problem = f"meter {kind.name}: {error}"
        except Exception as error:  # noqa: BLE001 - a stranger's meter may fail in any way
            problem = f"meter {kind.name}: {type(error).__name__}: {error}"
        if source is not None and self._over.is_set():
            source.end()
            return
        self._came.put((kind.name, source, problem))


def _told(found: Found) -> str:
    """Return what to say of a meter that is there and cannot be read, with the cure."""
    if found.state not in _TOLD:
        return ""
    why = "may not be read" if found.state == "no permission" else "does not answer"
    cure = f": {found.cure}" if found.cure else ""
    return f"meter {found.meter} {why} ({found.what}){cure}"


def covers_node(sources: Sequence[PowerSource], silent: Container[tuple[str, str]] = ()) -> bool:
    """Return whether meters see more of a node than its cards: all of it, or its sockets."""
    domains = {
        channel.domain
        for source in sources
        if source.meter.measured
        for channel in source.channels
        if (source.meter.name, channel.name) not in silent
    }
    return not domains.isdisjoint(("node", "psys", "package"))
