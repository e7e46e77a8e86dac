"""Writing recordings of our own while they are being measured.

The folder is whole at every moment; `lowtide.formats.recording_folder` says how it is laid out.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lowtide import files
from lowtide.errors import FileProblem, InvalidInput
from lowtide.formats.recording_folder import (
    EVENT_HEADINGS,
    EVENTS,
    FORMAT,
    MANIFEST,
    VERSION,
    valid_parts,
)
from lowtide.marks import append_line
from lowtide.recording import Event, Recording, Run

if TYPE_CHECKING:
    import polars as pl

# How soon the first samples of a run are written.
_FIRST_FLUSH_S = 1.0


class RecordingWriter:
    """Writes runs into a folder while they are being measured.

    Args:
        folder: Where; made if need be, and refused if it holds a recording already.
        flush_s: How many seconds of samples a kill may cost; less in the first seconds of a run.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "recording"
    >>> with RecordingWriter(folder) as writer:
    ...     writer.begin("run_0", kind="full", meters=["rapl"])
    ...     writer.append(10.0, 55.0, {"cpu": 0.1})
    ...     writer.start(10.5)
    ...     writer.append(11.0, 120.0, {"cpu": 0.9})
    ...     writer.mark(11.2, "epoch_1_saved", checkpoint=True)
    ...     writer.append(12.0, 60.0, {"cpu": 0.1})
    ...     writer.end(12.5, exit_status=0)
    >>> from lowtide.formats.recording_folder import read
    >>> read(folder)
    <Recording: 1 run (1 full), recording>
    """

    def __init__(self, folder: Path | str, *, flush_s: float = 10.0) -> None:
        if not flush_s > 0:
            raise InvalidInput(f"samples are flushed every so many seconds, not {flush_s}")
        self.folder = Path(folder)
        self.flush_s = flush_s
        if (self.folder / MANIFEST).exists():
            raise FileProblem(
                f"{self.folder} holds a recording already: name another folder", path=self.folder
            )
        # In the middle of a run, importing it would cost as much as a minute of sampling.
        import_module("polars")
        self._runs: list[dict[str, Any]] = []
        self._rows: list[tuple[float, float, Mapping[str, float]]] = []
        self._part = 0
        self._last = -math.inf
        self._due_s = flush_s
        files.write_whole(self.folder / EVENTS, f"{EVENT_HEADINGS}\n")
        self._write_manifest()

    def begin(
        self,
        run: str,
        *,
        kind: str | None = None,
        pair: str | None = None,
        power: str = "measured",
        meters: Iterable[str] = (),
        counted: Iterable[str] = (),
        machine: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a run; samples that follow belong to it.

        Args:
            run: What it is called.
            kind: One of `lowtide.recording.KINDS`, None if not known.
            pair: What it shares with the runs it belongs to.
            power: `measured` or `estimated`.
            meters: Which meters are read.
            counted: The channels that `power_w` adds up, as in the columns `NAME_w` and `NAME_j`.
            machine: Facts about the machine.
        """
        if any(run == known["id"] for known in self._runs):
            raise InvalidInput(f"runs of a recording have names of their own: {run} is twice")
        self.flush()
        self._last = -math.inf
        # Who keeps samples until the end, whatever may come, wants them in one piece.
        lasting = math.isinf(self.flush_s)
        self._due_s = self.flush_s if lasting else min(_FIRST_FLUSH_S, self.flush_s)
        self._runs.append(
            {
                "id": run,
                "kind": kind,
                "pair": pair,
                "start": None,
                "end": None,
                "exit_status": None,
                "power": power,
                "meters": list(meters),
                "counted": list(counted),
                "machine": dict(machine or {}),
                "notes": [],
            }
        )
        self._write_manifest()

    def append(self, time: float, power_w: float, usage: Mapping[str, float] | None = None) -> None:
        """Add a sample; one that does not come after the one before it is left out and noted.

        Args:
            time: When it was taken.
            power_w: What was drawn, NaN where the meter did not answer.
            usage: Further measurements by name; the same names in every sample.
        """
        current = self._current()
        if time <= self._last:
            note = f"the clock stepped back after {self._last:.3f}; samples until then are left out"
            if note not in current["notes"]:
                self.note(note)
            return
        self._last = time
        self._rows.append((time, power_w, usage or {}))
        if time - self._rows[0][0] >= self._due_s:
            self.flush()
            # A short run has little to lose and loses all of it: it is written early.
            self._due_s = min(2 * self._due_s, self.flush_s)

    def start(self, time: float) -> None:
        """Say when the program began.

        Args:
            time: Epoch seconds.
        """
        self._current()["start"] = time
        self._write_manifest()

    def end(self, time: float, *, exit_status: int | None = None) -> None:
        """Say when the program was over; samples after it are of the idle machine.

        Args:
            time: Epoch seconds.
            exit_status: How it ended.
        """
        self.flush()
        self._current().update(end=time, exit_status=exit_status)
        self._write_manifest()

    def mark(self, time: float, label: str, *, checkpoint: bool = False) -> None:
        """Add an event of the current run.

        Args:
            time: When it happened.
            label: What.
            checkpoint: Whether a later start can resume from here.
        """
        event = Event(time=time, label=label, checkpoint=checkpoint)
        append_event(self.folder, str(self._current()["id"]), event)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add facts about the machine, or about how it was measured, to the current run.

        Args:
            facts: Facts by name.
        """
        self._current()["machine"].update(facts)
        self._write_manifest()

    def note(self, text: str, *, instead_of: str | None = None) -> None:
        """Add a note to the current run: a meter that vanished, a clock that stepped.

        Args:
            text: What happened.
            instead_of: An earlier note that it replaces, where that is there.
        """
        notes = self._current()["notes"]
        if instead_of in notes:
            notes[notes.index(instead_of)] = text
        else:
            notes.append(text)
        self._write_manifest()

    def flush(self) -> None:
        """Write the samples that are not on disk yet."""
        if not self._rows:
            return
        import polars as pl

        names = list(dict.fromkeys(name for row in self._rows for name in row[2]))
        frame = pl.DataFrame(
            {
                "run": [self._runs[-1]["id"]] * len(self._rows),
                "time": [row[0] for row in self._rows],
                "power_w": [row[1] for row in self._rows],
                **{name: [row[2].get(name, math.nan) for row in self._rows] for name in names},
            },
            schema_overrides=dict.fromkeys(("time", "power_w", *names), pl.Float64),
        )
        self._part += 1
        _write_part(self.folder / f"samples-{self._part:04}.parquet", frame)
        self._rows.clear()

    def close(self) -> None:
        """Write what is left and join the parts into one."""
        self.flush()
        if self._part > 1:
            import polars as pl

            parts = valid_parts(self.folder)
            frame = pl.concat([pl.read_parquet(part) for part in parts], how="diagonal")
            _write_part(self.folder / f"samples-0001-{self._part:04}.parquet", frame)
            for part in parts:
                part.unlink(missing_ok=True)

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _current(self) -> dict[str, Any]:
        if not self._runs:
            raise InvalidInput("begin a run before adding to it")
        return self._runs[-1]

    def _write_manifest(self) -> None:
        document = {"format": FORMAT, "version": VERSION, "runs": self._runs}
        files.write_whole(self.folder / MANIFEST, json.dumps(document, indent=1) + "\n")


def append_event(folder: Path | str, run: str, event: Event) -> None:
    """Add a line to a recording's events; other processes may do so too.

    Args:
        folder: The recording.
        run: Whose event it is.
        event: What happened.
    """
    path = Path(folder) / EVENTS
    try:
        append_line(
            str(path),
            time_s=event.time,
            run=run,
            label=event.label,
            checkpoint=event.checkpoint,
        )
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error.strerror}", path=path) from error


def write_recording(recording: Recording, folder: Path | str) -> None:
    """Write a recording; it reads back equal.

    Args:
        recording: The runs.
        folder: Where.
    """
    with RecordingWriter(folder, flush_s=math.inf) as writer:
        for run in (*recording, *recording.unmeasured):
            writer.begin(
                run.id,
                kind=run.kind,
                pair=run.pair,
                power=run.power,
                meters=run.meters,
                machine=run.machine,
            )
            if isinstance(run, Run):
                _write_samples(writer, run)
            for event in run.events:
                writer.mark(event.time, event.label, checkpoint=event.checkpoint)
            for note in run.notes:
                writer.note(note)
            if run.start is not None:
                writer.start(run.start)
            if run.end is not None:
                writer.end(run.end, exit_status=run.exit_status)


def _write_samples(writer: RecordingWriter, run: Run) -> None:
    rows = zip(*run.columns.values(), strict=True)
    usages = [dict(zip(run.columns, row, strict=True)) for row in rows] or [{}] * run.times.size
    samples = list(zip(run.times.tolist(), run.power_w.tolist(), usages, strict=True))
    for begin, end in run.silent:
        # What is silent to the very end has another sample there, which says how long.
        samples.append((begin, math.nan, {}))
        if end > run.times[-1] and end - run.step_s > begin:
            samples.append((end - run.step_s, math.nan, {}))
    for time, power_w, usage in sorted(samples, key=lambda sample: sample[0]):
        writer.append(time, power_w, usage)


def _write_part(path: Path, frame: pl.DataFrame) -> None:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    files.write_whole(path, buffer.getvalue())
