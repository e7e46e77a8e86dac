"""Writing recordings of our own while they are being measured.

The folder is whole at every moment; `lowtide.formats.recording_folder` says how it is laid out.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any

from lowtide import files
from lowtide.errors import FileProblem, InvalidInput
from lowtide.formats.recording_folder import (
    EVENT_HEADINGS,
    EVENTS,
    FORMAT,
    MANIFEST,
    VERSION,
    append_event,
    put_together,
    read_events,
    read_samples,
    valid_parts,
)
from lowtide.recording import Event, Recording, Run

if TYPE_CHECKING:
    import polars as pl

# How soon the first samples of a run are written.
_FIRST_FLUSH_S = 1.0
# What could not be written is tried again after so long, and then less and less often.
_AGAIN_S = 1.0
_SELDOM_S = 30.0
# What waits in memory takes 8 bytes a cell; parts of so many rows are written in one piece.
_MOST_CELLS = 1 << 24
_PART_ROWS = 3000
# Samples are brought together up to so many at most: more would look like a gap.
_MOST_THINNED = 16


@dataclass(slots=True, kw_only=True)
class _Part:
    """Samples that wait to be written.

    Attributes:
        frame: The samples.
        thinned: How many of what was measured each of them stands for.
    """

    frame: pl.DataFrame
    thinned: int = 1


class RecordingWriter:
    """Writes runs into a folder while they are being measured.

    Args:
        folder: Where; made if need be, and refused if it holds a recording already.
        flush_s: How many seconds of samples a kill may cost; less in the first seconds of a run.
        part: Which part of a recording of many processes this is, as `recording_parts` reads it.

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

    def __init__(
        self,
        folder: Path | str,
        *,
        flush_s: float = 10.0,
        part: Mapping[str, Any] | None = None,
    ) -> None:
        if not flush_s > 0:
            raise InvalidInput(f"samples are flushed every so many seconds, not {flush_s}")
        self.folder = Path(folder)
        self.flush_s = flush_s
        self.part = dict(part or {})
        self._tell: Callable[[str], None] | None = None
        # Events are added by whoever listens to the program, beside the samples.
        self._lock = RLock()
        self._runs: list[dict[str, Any]] = []
        self._rows: list[tuple[float, float, Mapping[str, float]]] = []
        self._part = 0
        self._last = -math.inf
        self._due_s = flush_s
        # What is not on disk yet, and what is.
        self._parts: list[_Part] = []
        self._events: list[tuple[str, Event]] = []
        self._unsaid = False
        self._written: list[Path] = []
        # Since when, why and for how long to come nothing is written, and the note that says so.
        self._failing: tuple[float, str, str] | None = None
        self._pause_s, self._again_s, self._failed_s = 0.0, 0.0, 0.0
        self._failures: dict[str, str] = {}
        self._claim()
        # In the middle of a run, importing it would cost as much as a minute of sampling.
        import_module("polars")
        self._write_manifest()

    def be_patient(self, tell: Callable[[str], None]) -> None:
        """From now on, keep what cannot be written in memory and try again, instead of raising."""
        self._tell = tell

    @property
    def unwritten(self) -> str:
        """Why something could not be written until now, empty where all is on disk."""
        waits = self._rows or self._parts or self._events or self._unsaid
        return self._failing[1] if waits and self._failing else ""

    @property
    def parts(self) -> int:
        """How many parts are on disk, which are one in the end."""
        return self._part

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
            kind: One of `lowtide.recording.KINDS`, None if not known.
            power: `measured` or `estimated`.
            counted: The channels that `power_w` adds up, as in the columns `NAME_w` and `NAME_j`.
        """
        if any(run == known["id"] for known in self._runs):
            raise InvalidInput(f"runs of a recording have names of their own: {run} is twice")
        with self._lock:
            self._frame_rows()
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
        with self._lock:
            self._save(now=True)

    def append(self, time: float, power_w: float, usage: Mapping[str, float] | None = None) -> None:
        """Add a sample; one that does not come after the one before it is left out and noted.

        Args:
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
        """Say when the program began."""
        with self._lock:
            self._current()["start"] = time
            self._save()

    def end(self, time: float, *, exit_status: int | None = None) -> None:
        """Say when the program was over; samples after it are of the idle machine."""
        with self._lock:
            self._frame_rows()
            self._current().update(end=time, exit_status=exit_status)
            self._save(now=True)

    def mark(self, time: float, label: str, *, checkpoint: bool = False) -> None:
        """Add an event of the current run."""
        event = Event(time=time, label=label, checkpoint=checkpoint)
        with self._lock:
            self._events.append((str(self._current()["id"]), event))
            self._save(manifest=False)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add facts about the machine, or about how it was measured, to the current run."""
        with self._lock:
            self._current()["machine"].update(facts)
            self._save()

    def measured_by(
        self,
        *,
        power: str,
        meters: Iterable[str],
        counted: Iterable[str],
        facts: Mapping[str, Any],
    ) -> None:
        """Say that the current run is measured from now on, or by other meters than it began with.

        Args:
            power: As of `begin`.
            counted: As of `begin`.
            facts: What changes about the machine by that.
        """
        with self._lock:
            current = self._current()
            current.update(power=power, meters=list(meters), counted=list(counted))
            current["machine"].update(facts)
            self._save()

    def note(self, text: str, *, instead_of: str | None = None) -> None:
        """Add a note to the current run: a meter that vanished, a clock that stepped.

        Args:
            instead_of: An earlier note that it replaces, where that is there.
        """
        with self._lock:
            notes = self._current()["notes"]
            if instead_of in notes:
                notes[notes.index(instead_of)] = text
            else:
                notes.append(text)
            self._save()

    def flush(self) -> None:
        """Write what is not on disk yet."""
        with self._lock:
            if self._rows or self._parts or self._events:
                self._frame_rows()
                self._save(manifest=self._unsaid)

    def _frame_rows(self) -> None:
        """Make a part of the samples that came last."""
        if not self._rows:
            return
        import polars as pl

        names = list(dict.fromkeys(name for row in self._rows for name in row[2]))
        frame = pl.DataFrame(
            {
                "run": [str(self._runs[-1]["id"])] * len(self._rows),
                "time": [row[0] for row in self._rows],
                "power_w": [row[1] for row in self._rows],
                **{name: [row[2].get(name, math.nan) for row in self._rows] for name in names},
            },
            schema_overrides=dict.fromkeys(("time", "power_w", *names), pl.Float64),
        )
        self._rows.clear()
        last = self._parts[-1] if self._parts else None
        if last is not None and last.thinned == 1 and last.frame.height < _PART_ROWS:
            last.frame = pl.concat([last.frame, frame], how="diagonal")
        else:
            self._parts.append(_Part(frame=frame))
        while sum(each.frame.height * each.frame.width for each in self._parts) > _MOST_CELLS:
            self._make_room()

    def _make_room(self) -> None:
        """Bring samples that wait together by two, or leave the oldest out where that is over."""
        least = min(each.thinned for each in self._parts)
        if least < _MOST_THINNED:
            text = "samples that could not be written were brought together, several to one"
            for part in self._parts:
                if part.thinned == least:
                    part.frame, part.thinned = _thinned(part.frame), 2 * least
        else:
            text = "samples that could not be written for very long were left out, oldest first"
            del self._parts[0]
        if text not in self._failures:
            self._complain(text, text)

    def _save(self, *, now: bool = False, manifest: bool = True) -> None:
        """Write what is not on disk yet; where that fails, raise, or be patient and try later."""
        self._unsaid = self._unsaid or manifest
        if self._tell is None:
            self._write_events()
            self._write_parts()
            if self._unsaid:
                self._write_manifest()
            return
        if self._failing and not now and monotonic() < self._again_s:
            return
        error: Exception | None = None
        for write in (self._write_events, self._write_parts):
            try:
                write()
            except Exception as problem:  # noqa: BLE001 - of what kind it is, is all the same
                error = problem
        self._judge(error)
        if self._unsaid:
            try:
                self._write_manifest()
            except Exception as problem:  # noqa: BLE001
                self._judge(problem)

    def _judge(self, error: Exception | None) -> None:
        """Note that writing fails, or that it works again."""
        moment = monotonic()
        if error is not None:
            self._pause_s = min(max(2 * self._pause_s, _AGAIN_S), _SELDOM_S)
            self._again_s = moment + self._pause_s
            why = str(error)
            if not isinstance(error, FileProblem):
                why = f"cannot write {self.folder}: {type(error).__name__}, {error}"
            # The same trouble meets one file after the other.
            kind = getattr(error.__cause__ or error, "strerror", None) or type(error).__name__
            if self._failing is None:
                self._failing = (moment, why, kind)
            if kind not in self._failures:
                self._complain(
                    kind,
                    f"{why}. The program goes on; what is measured is kept in memory, and written "
                    "once that works. Marks that the program sets meanwhile may be lost",
                )
        elif self._failing is not None:
            since, why, kind = self._failing
            self._failing, self._pause_s = None, 0.0
            self._failed_s += moment - since
            note = f"{why}; for {self._failed_s:.1f} s what was measured was kept in memory"
            self._replace_note(self._failures[kind], note)
            self._failures[kind] = note

    def _complain(self, kind: str, text: str) -> None:
        self._failures[kind] = text
        self._replace_note("", text)
        if self._tell is not None:
            self._tell(text)

    def _replace_note(self, before: str, text: str) -> None:
        notes = self._runs[-1]["notes"] if self._runs else []
        if before in notes:
            notes[notes.index(before)] = text
        elif text not in notes:
            notes.append(text)
        self._unsaid = True

    def close(self) -> None:
        """Write what is left and join the parts into one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._frame_rows()
        if self._runs:
            gone = [path.name for path in self._written if not os.path.exists(path)]  # noqa: PTH110
            if gone and self._tell is not None:
                self._complain("gone", f"{', '.join(gone)} vanished, with the samples in it")
            self._save(now=True, manifest=self._unsaid)
            if self._failing:
                # What was missing may have been made anew by the first attempt.
                self._save(now=True, manifest=self._unsaid)
        if self.unwritten:
            return
        try:
            self._join()
        except Exception:
            # The parts are as good as the whole, which takes as much room again.
            if self._tell is None:
                raise

    def _join(self) -> None:
        if self._part > 1:
            import polars as pl

            parts = valid_parts(self.folder)
            frame = pl.concat([pl.read_parquet(part) for part in parts], how="diagonal")
            files.write_table(self.folder / f"samples-0001-{self._part:04}.parquet", frame)
            for part in parts:
                part.unlink(missing_ok=True)

    def recording(self) -> Recording:
        """Return what was recorded, be it on disk or still in memory."""
        import polars as pl

        frame, notes = None, list[str]()
        events: dict[str, list[Event]] = {}
        try:
            frame, notes = read_samples(self.folder)
            events = read_events(self.folder / EVENTS, notes)
        except (FileProblem, OSError) as error:
            notes.append(str(error))
        self._frame_rows()
        frames = [*([] if frame is None else [frame]), *(each.frame for each in self._parts)]
        for run, event in self._events:
            events.setdefault(run, []).append(event)
        whole = pl.concat(frames, how="diagonal") if frames else None
        return put_together(self._runs, whole, events, notes, self.folder)

    def elsewhere(self, folder: Path | str) -> RecordingWriter:
        """Return a writer into another folder that has all that is not on disk yet.

        It waits for nobody: a thread may hang in the middle of a write, for ever.
        """
        other = RecordingWriter(folder, flush_s=math.inf, part=self.part)
        other._runs = [{**run, "notes": list(run["notes"])} for run in self._runs]
        other._parts, other._rows = list(self._parts), list(self._rows)
        other._events, other._last = list(self._events), self._last
        if self._tell is not None:
            other.be_patient(self._tell)
        return other

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _current(self) -> dict[str, Any]:
        if not self._runs:
            raise InvalidInput("begin a run before adding to it")
        return self._runs[-1]

    def withdraw(self) -> None:
        """Leave the folder as it was, where nothing was measured after all."""
        with suppress(OSError):
            for name in (MANIFEST, EVENTS):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()

    def _claim(self) -> None:
        """Make the folder this writer's own: of several that want it at once, one gets it."""
        taken = FileProblem(
            f"{self.folder} holds a recording already: name another folder; without -o each "
            "measurement has one of its own",
            path=self.folder,
        )
        if (self.folder / MANIFEST).exists():
            raise taken
        path = self.folder / EVENTS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            raise taken from None
        except OSError as error:
            raise FileProblem(f"cannot write {path}: {error.strerror}", path=path) from error
        try:
            os.write(handle, f"{EVENT_HEADINGS}\n".encode())
        except OSError as error:
            path.unlink(missing_ok=True)
            raise FileProblem(f"cannot write {path}: {error.strerror}", path=path) from error
        finally:
            os.close(handle)

    def _write_events(self) -> None:
        if self._events and self._failing:
            self._mend_events()
        while self._events:
            run, event = self._events[0]
            append_event(self.folder, run, event)
            del self._events[0]

    def _mend_events(self) -> None:
        """Make the file of events anew where it vanished, and end a line that was cut off."""
        path = self.folder / EVENTS
        if not path.exists():
            files.write_whole(path, f"{EVENT_HEADINGS}\n")
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def _write_parts(self) -> None:
        if self._parts and self._tell is not None and not (self.folder / EVENTS).exists():
            # Programs add their marks to a file that is there, and to no other.
            self._mend_events()
            self._complain("marks", f"{EVENTS} vanished, with the marks in it; later ones are kept")
        while self._parts:
            path = self.folder / f"samples-{self._part + 1:04}.parquet"
            files.write_table(path, self._parts[0].frame)
            del self._parts[0]
            self._part += 1
            self._written.append(path)

    def _write_manifest(self) -> None:
        document = {"format": FORMAT, "version": VERSION, "runs": self._runs}
        if self.part:
            document["part"] = self.part
        files.write_whole(self.folder / MANIFEST, json.dumps(document, indent=1) + "\n")
        self._unsaid = False


def write_recording(recording: Recording, folder: Path | str) -> None:
    """Write a recording; it reads back equal."""
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


def _thinned(frame: pl.DataFrame) -> pl.DataFrame:
    """Return samples brought together by two, so that energy stays what it is."""
    import polars as pl

    lasts = pl.col("time").diff().shift(-1).over("run")
    lasts = lasts.fill_null(lasts.median()).fill_null(1.0)
    means = [name for name in frame.columns if name not in ("run", "time", "power_w")]
    return (
        frame.with_columns(lasts.alias("lasts"), (pl.int_range(pl.len()) // 2).alias("pair"))
        .group_by("run", "pair", maintain_order=True)
        .agg(
            pl.col("time").first(),
            (pl.col("power_w") * pl.col("lasts")).sum() / pl.col("lasts").sum(),
            # A counter shows what was counted by then: a mean of two moments would be neither.
            *(pl.col(name).drop_nans().first() for name in means if name.endswith("_j")),
            *(pl.col(name).mean() for name in means if not name.endswith("_j")),
        )
        .select(frame.columns)
    )
