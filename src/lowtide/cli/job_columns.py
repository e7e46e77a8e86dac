"""The columns of `lowtide jobs`: how each is called, found and written.

A hundred thousand jobs are written in a fraction of a second, so every column is written whole, and
what repeats is written once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add, attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.certainty import is_estimated, lacks_grams, marks_for, word_for_power
from lowtide.errors import InvalidInput, UnknownName
from lowtide.monitor.quantities import JOB
from lowtide.monitor.snapshot import FloatArray
from lowtide.store import JobTable
from lowtide.units import (
    ENERGIES,
    MASSES,
    MISSING,
    SIZES,
    format_duration,
    format_iso,
    format_number,
    format_time,
)

Values = Sequence[Any] | FloatArray

_WIDTH = re.compile(r"-?[1-9]\d*")
# By twice whether a part is lacking, and whether it is estimated.
_MARKS = [marks_for(estimated=bool(each & 1), partial=bool(each & 2)) for each in range(4)]


@dataclass(frozen=True, slots=True)
class JobColumn:
    """One column.

    Attributes:
        key: What it is called for programs; it names the unit.
        heading: What it is called for people.
        read: Where its values come from.
        show: How they are written for people.
        whole: Whether it needs more than the short list has.
        quantity: `power`, `energy` or `grams` where it is marked by what of these was not
            measured, or is not known.
        width: How wide `-o` wants it; below 0 set flush left, 0 for as wide as it takes.
    """

    key: str
    heading: str
    read: Callable[[JobTable], Values]
    show: Callable[[Any], list[str]]
    whole: bool = False
    quantity: str = ""
    width: int = 0


def choose_columns(text: str | None) -> list[JobColumn]:
    """Return the columns that `-o` names.

    Args:
        text: Headings or keys with commas between them, in any case; None for the usual ones,
            `ALL` for all. `JobID%20` sets a column so wide, `%-20` flush left.
    """
    if text is None:
        return list(_USUAL)
    known = {column.key: column for column in ALL}
    known |= {column.heading.lower(): column for column in ALL}
    known |= {alias.lower(): replace(known[key], heading=alias) for alias, key in _ALIASES.items()}
    chosen: list[JobColumn] = []
    for name in text.split(","):
        plain, percent, size = (part.strip() for part in name.partition("%"))
        if plain.lower() == "all":
            chosen += ALL
            continue
        if plain.lower() not in known:
            raise UnknownName("column", plain, [*(column.heading for column in ALL), "ALL"])
        column = known[plain.lower()]
        if percent and not _WIDTH.fullmatch(size):
            raise InvalidInput(
                f"a column is set 20 characters wide by {plain}%20, and flush left by {plain}%-20, "
                f"not {name.strip()}"
            )
        chosen.append(replace(column, width=int(size)) if percent else column)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """A column as it is printed.

    Attributes:
        heading: What it is called.
        texts: What it says, a text per job.
        width: How wide it is.
        is_text: Whether it is set flush left.
        marks: Which marks it has: `~`, `>`.
    """

    heading: str
    texts: Sequence[str]
    width: int
    is_text: bool
    marks: str = ""

    @classmethod
    def of(
        cls, column: JobColumn, table: JobTable, marks: Mapping[str, list[str]], *, header: bool
    ) -> LaidOut:
        """Write a column.

        Args:
            marks: What `marks_of` says.
        """
        values = column.read(table)
        texts = column.show(values)
        mine = marks.get(column.quantity, [])
        if mine:
            # What is not known is not marked.
            mine = ["" if text == MISSING else mark for mark, text in zip(mine, texts, strict=True)]
            texts = list(map(add, mine, texts))
        width = max(map(len, texts if not header else [column.heading, *texts]))
        laid_out = cls(
            heading=column.heading,
            texts=texts,
            width=width,
            is_text=not isinstance(values, np.ndarray),
            marks="".join(set(mine)),
        )
        return laid_out.cut(column.width) if column.width else laid_out

    def cut(self, width: int) -> LaidOut:
        """Return the column in another width; what is cut off is marked with +, as sacct does.

        Args:
            width: How wide; below 0 set flush left.
        """
        most = abs(width)

        def fitted(text: str) -> str:
            return text if len(text) <= most else text[: most - 1] + "+"

        return replace(
            self,
            heading=self.heading[:most],
            texts=list(map(fitted, self.texts)),
            width=most,
            is_text=self.is_text if width > 0 else True,
        )


def percents(shares: FloatArray) -> list[str]:
    """Return shares as percentages with one decimal.

    Args:
        shares: The shares, NaN where not known.

    >>> percents(np.array([0.3127, np.nan]))
    ['31.3 %', '---']
    """
    known = np.isfinite(shares)
    tenths = np.rint(1000 * np.where(known, shares, 0.0)).astype(np.int64)
    return _once(np.where(known, tenths, -1), lambda tenth: f"{tenth / 10:.1f} %")


def durations(seconds: FloatArray) -> list[str]:
    """Return durations as `[D-]HH:MM:SS`.

    Args:
        seconds: The durations, NaN where not known.

    >>> durations(np.array([129600.0, np.nan]))
    ['1-12:00:00', '---']
    """
    known = np.isfinite(seconds)
    whole = np.rint(np.where(known, seconds, -1.0)).astype(np.int64)
    return _once(whole, format_duration)


def _once(codes: npt.NDArray[np.int64], write: Callable[[int], str]) -> list[str]:
    """Write whole numbers, each once however often it occurs; negative ones are not known."""
    different, places = np.unique(codes, return_inverse=True)
    texts = [MISSING if code < 0 else write(code) for code in different.tolist()]
    written: list[str] = np.array(texts, dtype=object)[places].tolist()
    return written


def scaled(values: FloatArray, scales: Sequence[tuple[float, float, str]]) -> list[str]:
    """Return quantities to four digits, each in the unit that suits it.

    Args:
        values: The quantities, NaN where not known.
        scales: From which size on, by what to divide, and the unit; ascending from 0.

    >>> scaled(np.array([25_700.0, np.nan]), ENERGIES)
    ['25.7 kJ', '---']
    """
    limits = np.array([limit for limit, _, _ in scales[1:]])
    place = np.searchsorted(limits, np.abs(values), side="right")
    place[~np.isfinite(values)] = 0
    divided = values / np.array([size for _, size, _ in scales])[place]
    place[~np.isfinite(values)] = len(scales)
    return _written([f"%.4g {unit}" for _, _, unit in scales], place, divided)


def _written(forms: Sequence[str], place: npt.NDArray[np.int64], values: FloatArray) -> list[str]:
    """Write each number in the form at its place; one place further on is not known."""
    # That form takes the number and shows none of it.
    known = np.array([*forms, f"%.0s{MISSING}"], dtype=object)
    # All in one go: a call per number takes a third longer.
    lines = "\n".join(known[place].tolist()) % tuple(values.tolist())
    return lines.split("\n") if lines else []


def _texts(values: Sequence[Any]) -> list[str]:
    return [MISSING if value is None else str(value) for value in values]


def _capitals(values: Sequence[str | None]) -> list[str]:
    capitals = {value: MISSING if value is None else value.upper() for value in set(values)}
    return [capitals[value] for value in values]


def _numbers(values: FloatArray) -> list[str]:
    return [format_number(value) for value in values.tolist()]


def _node_names(values: Sequence[str | None]) -> list[str]:
    from lowtide.slurm.fields import shorten_nodes

    return [MISSING if each is None else shorten_nodes(each.split(",")) for each in values]


def _watts(values: FloatArray) -> list[str]:
    return _written(["%.1f"], np.isnan(values).astype(np.int64), values)


def _moments(values: FloatArray) -> list[str]:
    # A calendar for each of a hundred thousand moments takes seconds; years of four digits do not.
    usual = np.abs(values) < 6e10
    whole = np.rint(np.where(usual, values, 0.0)).astype("datetime64[s]")
    texts = [
        f"{text[:10]} {text[11:].removesuffix(':00')} UTC"
        for text in np.datetime_as_string(whole).tolist()
    ]
    for place in np.flatnonzero(~usual).tolist():
        texts[place] = format_time(float(values[place]))
    return texts


def _energies(values: FloatArray) -> list[str]:
    return scaled(values, ENERGIES)


def _masses(values: FloatArray) -> list[str]:
    return scaled(values, MASSES)


def _sizes(values: FloatArray) -> list[str]:
    return scaled(values, SIZES)


def power_words(table: JobTable) -> list[str | None]:
    """Return whether each job's energy was measured, estimated, or each in part."""
    energies, measured = table.total("energy_j").tolist(), table.total("measured_j").tolist()
    return [word_for_power(*pair) for pair in zip(energies, measured, strict=True)]


def marks_of(table: JobTable) -> dict[str, list[str]]:
    """Return how each job's power, energy and grams are marked; nothing where no job's are."""
    energy = table.total("energy_j")
    guessed = is_estimated(energy, table.total("measured_j"))
    unmetered = table.total("unmetered_s")
    unpriced = lacks_grams(energy, unmetered, table.total("unpriced_j"))
    # A mean is that of the time in which it is known.
    whole = np.zeros_like(guessed)
    found = {}
    for name, partial in (("power", whole), ("energy", unmetered > 0), ("grams", unpriced)):
        if guessed.any() or partial.any():
            found[name] = np.array(_MARKS, dtype=object)[guessed + 2 * partial].tolist()
    return found


def node_counts(table: JobTable) -> FloatArray:
    """Return on how many nodes each job ran; NaN where nobody knows."""
    lists = _node_lists(table)
    return np.array([np.nan if nodes is None else nodes.count(",") + 1 for nodes in lists])


def _node_lists(table: JobTable) -> list[str | None]:
    return [
        (seen or told or "").strip(",") or None
        for seen, told in zip(table.text("hosts"), table.text("nodes"), strict=True)
    ]


def _phase_texts(kept: Sequence[list[dict[str, Any]] | None]) -> list[str]:
    def written(phase: Mapping[str, Any]) -> str:
        often = f"{phase['times']}x " if phase["times"] > 1 else ""
        power = format_number(phase["power_w"])
        return f"{often}{format_duration(phase['duration_s'])} {power} W"

    return [", ".join(map(written, each or ())) or MISSING for each in kept]


def _text(key: str, heading: str, *, whole: bool = True) -> JobColumn:
    return JobColumn(key, heading, lambda table: table.text(key), _texts, whole=whole)


def _total(
    key: str, heading: str, show: Callable[[Any], list[str]], quantity: str = ""
) -> JobColumn:
    return JobColumn(key, heading, lambda table: table.total(key), show, quantity=quantity)


def _derived(
    key: str, heading: str, show: Callable[[Any], list[str]], quantity: str = ""
) -> JobColumn:
    return JobColumn(key, heading, attrgetter(key), show, quantity=quantity)


def _moment(key: str, heading: str) -> JobColumn:
    return JobColumn(key, heading, lambda table: table.number(key), _moments)


def _asked(key: str, heading: str, show: Callable[[Any], list[str]]) -> JobColumn:
    return JobColumn(key, heading, lambda table: table.asked(key), show)


_SHOWN = {"bytes": _sizes, "s": durations}

_USUAL = (
    JobColumn("job_id", "JobID", lambda table: table.text("shown_id"), list),
    _text("user", "User", whole=False),
    JobColumn("state", "State", lambda table: table.states, _capitals),
    _derived("elapsed_s", "Elapsed", durations),
    _derived("cpu_efficiency", "CPUEff", percents),
    _derived("memory_efficiency", "MemEff", percents),
    _derived("gpu_efficiency", "GPUEff", percents),
    _derived("mean_power_w", "AvgW", _watts, "power"),
    _total("energy_j", "Energy", _energies, "energy"),
    _total("carbon_g", "CO2e", _masses, "grams"),
)
ALL = (
    *_USUAL,
    _text("account", "Account"),
    _text("partition", "Partition"),
    _text("name", "JobName"),
    _text("source", "Source"),
    JobColumn("hosts", "NodeList", _node_lists, _node_names, whole=True),
    JobColumn("nodes", "NNodes", node_counts, _numbers, whole=True),
    JobColumn("job_id_raw", "JobIDRaw", lambda table: table.text("job_id"), _texts, whole=True),
    _text("comment", "Comment"),
    JobColumn(
        "cluster",
        "Cluster",
        lambda table: [each or None for each in table.text("cluster")],
        _texts,
        whole=True,
    ),
    _moment("submitted", "Submit"),
    _moment("started", "Start"),
    _moment("ended", "End"),
    JobColumn("time_limit_s", "Timelimit", lambda table: table.number("time_limit_s"), durations),
    JobColumn(
        "time_efficiency",
        "TimeEff",
        lambda table: table.elapsed_s / table.number("time_limit_s"),
        percents,
    ),
    _asked("cpus", "ReqCPUS", _numbers),
    _asked("memory_bytes", "ReqMem", _sizes),
    _asked("gpus", "ReqGPUS", _numbers),
    JobColumn(
        "cpu_time_s", "CPUTime", lambda table: table.elapsed_s * table.asked("cpus"), durations
    ),
    _total("cpu_s", "TotalCPU", durations),
    _total("peak_cpus", "MaxCPUS", _numbers),
    _total("peak_memory_bytes", "MaxRSS", _sizes),
    _total("peak_gpus", "MaxGPUS", _numbers),
    _total("peak_power_w", "MaxW", _watts, "energy"),
    _total("marginal_g", "MarginalCO2e", _masses, "grams"),
    _total("embodied_g", "EmbodiedCO2e", _masses),
    _total("unmetered_s", "Unmetered", durations),
    _total("unpriced_j", "Unpriced", _energies),
    *(
        _total(each.name, each.heading, _SHOWN.get(each.unit, _numbers))
        for each in JOB
        if each.origin == "kernel" and each.heading
    ),
    JobColumn("phases", "Phases", lambda table: table.text("phases"), _phase_texts, whole=True),
    JobColumn("power", "Power", power_words, _texts),
    JobColumn(
        "synthetic",
        "Synthetic",
        lambda table: ["yes" if each else "no" for each in table.columns["synthetic"]],
        _texts,
        whole=True,
    ),
    JobColumn("exit_code", "ExitCode", lambda table: table.number("exit_code"), _numbers),
)
# What sacct calls some of them.
_ALIASES = {
    "AllocCPUS": "cpus",
    "AllocNodes": "nodes",
    "ConsumedEnergy": "energy_j",
    "NCPUS": "cpus",
}


def plain_cells(column: JobColumn, table: JobTable) -> list[str]:
    """Return a column for scripts: whole numbers and SI units, empty where not known."""
    values = column.read(table)
    if not isinstance(values, np.ndarray):
        return [
            "" if value is None else value if isinstance(value, str) else json.dumps(value)
            for value in values
        ]
    if column.show is _moments:
        return [format_iso(value) if value == value else "" for value in values.tolist()]
    return [f"{value:.15g}" if value == value else "" for value in values.tolist()]
