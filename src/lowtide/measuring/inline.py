"""Measuring a part of a program from within: a block, a function, a cell of a notebook.

A thread beside the program reads the meters. Whatever goes wrong with that is noted and told at
the end; the program neither waits for it nor fails by it.
"""

from __future__ import annotations

import csv
import math
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from lowtide.certainty import marked
from lowtide.errors import InvalidInput, LowtideError
from lowtide.marks import CLOCK_VARIABLE, EVENTS_VARIABLE, RUN_VARIABLE, clock_words, mark
from lowtide.units import MISSING, format_duration, format_energy, format_mass, require_number

if TYPE_CHECKING:
    from lowtide.grid import Grid
    from lowtide.measuring.payment import Paid
    from lowtide.measuring.sampler import Sample, Sampler
    from lowtide.monitor.processes import ProcessTree
    from lowtide.recording import Event, Run
    from lowtide.signal import Signal

P = ParamSpec("P")
T = TypeVar("T")

# How long the program waits for a meter at the end of a block.
_PATIENCE_S = 3.0
_VARIABLES = (EVENTS_VARIABLE, RUN_VARIABLE, CLOCK_VARIABLE)
# What a notebook may say: a grid, whose name may be quoted; any other option is none.
_GRID = re.compile(r"""(?:^|(?<=\s))--grid[\s=]+(?P<grid>"[^"]+"|'[^']+'|[^\s"']+)\s*""")
_OPTION = re.compile(r"(?:^|(?<=\s))--[A-Za-z]\S*")


class measure:  # noqa: N801 - it reads as what it does
    """Measure what a block or a function draws: energy, and what that emits and costs.

    ```python
    with lowtide.measure("eval", grid="gb") as m:
        evaluate(model)
    print(m)
    ```

    As a decorator it measures every call, and prints what each came to. Marks set meanwhile, by
    `lowtide.mark` here or in programs that are started, belong to it.

    Args:
        name: What is measured.
        grid: A synthetic grid, a provider's zone, a file, or a signal: what a kWh emits or costs.
        out: A folder to keep the recording in; by default none is kept.
        meter: Meters to read, such as `rapl`; by default all that work here.
        interval_s: Time between samples.
        idle_s: How long to look at the idle machine before.
        warmup: How many calls of a function are not measured, at first.
        share: Whose power: that of this program and what it starts (`process`), or all (`node`).
        watch: Told the watts at every sample, while it runs.
    """

    def __init__(
        self,
        name: str = "measured",
        *,
        grid: str | Path | Signal | Grid | None = None,
        out: Path | str | None = None,
        meter: Sequence[str] = (),
        interval_s: float = 0.1,
        idle_s: float = 0.0,
        warmup: int = 0,
        share: str = "process",
        watch: Callable[[float], None] | None = None,
    ) -> None:
        if not str(name).strip():
            raise InvalidInput("what is measured has a name, such as eval, and this says nothing")
        require_number(interval_s, "the time between samples", least=0.01)
        require_number(idle_s, "idle time", least=0.0)
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
            raise InvalidInput(f"warm-up calls are a number of 0 or more, not {warmup!r}")
        self.name = str(name)
        self.grid, self.out, self.meter = grid, out, tuple(meter)
        self.interval_s, self.idle_s, self.warmup, self.share = interval_s, idle_s, warmup, share
        self.watch = watch
        self.notes: list[str] = []
        self.run: Run | None = None
        self.paid: Paid | None = None
        self._watts = math.nan

    @property
    def watts(self) -> float:
        """What was drawn at the last sample; NaN where that is not known."""
        return self._watts

    @property
    def energy_j(self) -> float:
        """What was drawn in all; NaN as long as that is not known."""
        return math.nan if self.run is None else self.run.energy_j()

    @property
    def duration_s(self) -> float:
        """How long it took; NaN as long as it runs."""
        return getattr(self, "_took_s", math.nan)

    @property
    def carbon_g(self) -> float | None:
        """What that emitted, None where it is not known."""
        return None if self.paid is None else self.paid.carbon_g

    @property
    def cost(self) -> float | None:
        """What that cost, None where it is not known."""
        return None if self.paid is None else self.paid.cost

    def __enter__(self) -> measure:
        self.notes, self.run, self.paid = [], None, None
        self._samples: list[Sample] = []
        self._marks: list[Event] = []
        self._over = threading.Event()
        self._sampler: Sampler | None = None
        self._thread: threading.Thread | None = None
        self._file = ""
        self._before = {key: os.environ.get(key) for key in _VARIABLES}
        try:
            self._begin()
        except LowtideError:
            # A meter or share that was named and is not there is the caller's to mend.
            self._let_go()
            raise
        except Exception as error:  # noqa: BLE001 - no list of what may go wrong is complete
            self.notes.append(f"nothing is measured ({type(error).__name__}: {error})")
        self._started, self._clock_s = self._now(), time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._took_s = time.monotonic() - self._clock_s
        try:
            self._finish(self._now(), failed=kind is not None)
        except Exception as problem:  # noqa: BLE001 - the program has its own errors
            self.notes.append(f"not measured to the end ({type(problem).__name__}: {problem})")
        finally:
            self._let_go()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function whose calls are measured, after those of the warm-up."""
        calls = 0

        @wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal calls
            calls += 1
            if calls <= self.warmup:
                return function(*args, **kwargs)
            again = self._again()
            with again:
                result = function(*args, **kwargs)
            # Who asks the decorator finds the last call there.
            self.run, self.paid, self.notes = again.run, again.paid, again.notes
            self._took_s, self._watts = again.duration_s, again.watts
            with suppress(OSError, ValueError):
                print(again, file=sys.stderr)
            return result

        return measured

    def mark(self, label: str, *, checkpoint: bool = False) -> None:
        """Say that something begins now."""
        mark(label, checkpoint=checkpoint)

    def __str__(self) -> str:
        told = self.run is not None and not math.isnan(self.energy_j)
        guessed = told and self.run is not None and self.run.power == "estimated"
        partial = self.run is not None and self.run.missing_s > 0
        energy = format_energy(self.energy_j) if told else MISSING
        energy = marked(energy, estimated=guessed, partial=partial)
        parts = [f"{energy} (estimated)" if guessed else energy]
        if self.paid is not None:
            parts += self.paid.words()
        elif self.carbon_g is not None:
            parts.append(format_mass(self.carbon_g))
        took = format_duration(self.duration_s) if self.duration_s >= 1 else "less than 1 s"
        notes = "".join(f"; {note}" for note in self.notes)
        return f"{self.name}: {took}, {', '.join(parts)}{notes}"

    def _again(self) -> measure:
        return measure(
            self.name,
            grid=self.grid,
            out=self.out,
            meter=self.meter,
            interval_s=self.interval_s,
            idle_s=self.idle_s,
            share=self.share,
            watch=self.watch,
        )

    def _now(self) -> float:
        return time.time() if self._sampler is None else self._sampler.now()

    def _begin(self) -> None:
        """Open the meters, look at the idle machine, and begin to sample beside the program."""
        from lowtide.measuring.sampler import Sampler
        from lowtide.meters.source import choose_meters
        from lowtide.monitor.processes import ProcessTree

        sampler = Sampler(
            meters=choose_meters(self.meter, tell=self.notes.append),
            share=self.share,
            named=bool(self.meter),
        )
        sampler.open()
        sampler.restart()
        self._sampler = sampler
        self._listen(sampler)
        until = time.monotonic() + self.idle_s
        while time.monotonic() < until:
            self._take(sampler, None)
            time.sleep(min(self.interval_s, max(until - time.monotonic(), 0.0)))
        tree = ProcessTree(root=os.getpid())
        self._take(sampler, tree)
        self._thread = threading.Thread(
            target=self._sample, args=(sampler, tree), daemon=True, name="lowtide-measure"
        )
        self._thread.start()

    def _listen(self, sampler: Sampler) -> None:
        """Have marks of this program, and of those that it starts, come here.

        Within `lowtide measure` they go on to go to that, and this is one of them.
        """
        if self._before[EVENTS_VARIABLE]:
            mark(self.name)
            return
        handle, self._file = tempfile.mkstemp(prefix="lowtide-", suffix=".csv")
        os.close(handle)
        os.environ[EVENTS_VARIABLE] = self._file
        os.environ[RUN_VARIABLE] = self.name
        os.environ[CLOCK_VARIABLE] = clock_words(sampler.clock_offset_s)

    def _sample(self, sampler: Sampler, tree: ProcessTree) -> None:
        try:
            while not self._over.wait(self.interval_s):
                self._take(sampler, tree)
            self._take(sampler, tree)
        except Exception as error:  # noqa: BLE001 - the program goes on
            self.notes.append(f"measuring stopped ({type(error).__name__}: {error})")

    def _take(self, sampler: Sampler, tree: ProcessTree | None) -> None:
        sample = sampler.sample(tree)
        if sample is None:
            return
        self._samples.append(sample)
        self._watts = sample.power_w
        if self.watch is not None and tree is not None:
            self.watch(sample.power_w)

    def _finish(self, ended: float, *, failed: bool) -> None:
        """Make a run of the samples, and pay for it."""
        if self._sampler is None or self._thread is None:
            return
        self._over.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            self.notes.append("a meter did not answer in time; what it had said until then counts")
        else:
            self._sampler.conclude()
        self.notes += self._sampler.troubles.notes()
        run = self._made(ended, failed=failed)
        if run is None:
            self.notes.append("over before two samples were taken: its energy is not known")
            return
        self.run = run
        if self.grid is not None:
            from lowtide.measuring.payment import pay

            self.paid = pay(run, self.grid)
            self.notes += self.paid.notes
        if self.out is not None:
            from lowtide.formats.recording_writer import write_recording
            from lowtide.recording import Recording

            write_recording(Recording(runs=(run,), source=self.name), Path(self.out))

    def _made(self, ended: float, *, failed: bool) -> Run | None:
        from lowtide.measuring.recorder import machine_facts
        from lowtide.recording import Run

        samples = [each for each in list(self._samples) if not math.isnan(each.power_w)]
        if len(samples) < 2 or self._sampler is None:
            return None
        names = dict.fromkeys(name for each in samples for name in each.columns)
        return Run(
            id=self.name,
            times=[each.time for each in samples],
            power_w=[each.power_w for each in samples],
            start=self._started,
            end=max(ended, self._started + 1e-6),
            kind="full",
            columns={
                name: [each.columns.get(name, math.nan) for each in samples] for name in names
            },
            events=self._events(),
            power="measured" if self._sampler.measured else "estimated",
            meters=self._sampler.names,
            machine={**machine_facts(), **self._sampler.facts},
            exit_status=1 if failed else 0,
            notes=self.notes,
        )

    def _events(self) -> list[Event]:
        from lowtide.recording import Event

        if not self._file:
            return []
        with Path(self._file).open(newline="", errors="replace") as file:
            rows = [row for row in csv.reader(file) if len(row) == 4]
        return [
            Event(time=float(when), label=label, checkpoint=checkpoint == "1")
            for when, _, label, checkpoint in rows
        ]

    def _let_go(self) -> None:
        self._over.set()
        for key, value in self._before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        if self._file:
            with suppress(OSError):
                Path(self._file).unlink()
        if self._sampler is not None:
            with suppress(Exception):
                self._sampler.close()


def load_ipython_extension(ipython: Any) -> None:
    """Let notebooks measure: `%load_ext lowtide`, then `%%measure NAME --grid GRID` in a cell."""
    from IPython.core.error import UsageError
    from IPython.core.magic import no_var_expand

    @no_var_expand
    def magic(line: str, cell: str | None = None) -> None:
        """Measure a cell (`%%measure NAME --grid GRID`) or a line (`%measure --grid GRID CODE`)."""
        # In a line, only what stands before its code is meant for us.
        find = "match" if cell is None else "search"
        found = getattr(_GRID, find)(line)
        grid = None if found is None else found["grid"].strip("'\"")
        rest = (line if found is None else line[: found.start()] + line[found.end() :]).strip()
        if option := getattr(_OPTION, find)(rest):
            raise UsageError(
                f"{option[0]} says nothing here: --grid GRID is all there is, with a grid such as "
                "gb or windy, a zone or a file"
            )
        if cell is None and not rest:
            raise UsageError(
                "what is measured stands behind %measure, or in a cell below %%measure"
            )
        code = rest if cell is None else cell
        if _awaits(ipython, code):
            raise UsageError(
                "what awaits is measured from within: write `with lowtide.measure(NAME):` in the "
                "cell, and leave out the magic"
            )
        measured = measure("cell" if cell is None else rest or "cell", grid=grid)
        try:
            with measured:
                done = ipython.run_cell(code)
                # What failed has been shown: it is raised so that it counts as failed, and so that
                # a notebook that is run as a whole stops here.
                if done.error_in_exec is not None:
                    with suppress(Exception):
                        done.error_in_exec._render_traceback_ = list
                    raise done.error_in_exec
        finally:
            print(measured)
        if done.error_before_exec is not None:
            raise UsageError("the code was not run")

    ipython.register_magic_function(magic, magic_kind="line_cell", magic_name="measure")


def _awaits(ipython: Any, code: str) -> bool:
    """Return whether code awaits something within a loop that runs already, as notebooks have."""
    import asyncio

    try:
        asyncio.get_running_loop()
        return bool(ipython.should_run_async(code, transformed_cell=ipython.transform_cell(code)))
    except (RuntimeError, SyntaxError):
        return False
