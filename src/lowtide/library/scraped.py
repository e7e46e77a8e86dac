"""Jobs as a Prometheus has them that scrapes `lowtide watch`.

What a job drew over time is the gauge of its power, as it was scraped; what it drew in all is the
counter, which loses nothing between two scrapes. How a job ended no metric says.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np

from lowtide.errors import InvalidInput, ProviderProblem
from lowtide.grids.web import get_json, place_of
from lowtide.library.production import LOOKED_AT, LeftOut, SeenRuns
from lowtide.library.programs import PastRun, Program, common_name
from lowtide.library.sources import LEAST_STEPS
from lowtide.recording import Run
from lowtide.signal import FloatArray
from lowtide.units import format_hours

# As long as a Prometheus keeps everything unless it is told otherwise.
USUAL_S = 15 * 86400.0
_TIMEOUT_S = 60.0
# A query is answered with so many values of a series at most; a value stands for five minutes.
_MOST_VALUES = 10_000
_STANDS_S = 240.0
# A job that is over stays on the page for a while, with its last counters.
_AFTER_S = 330.0
# Missing more scrapes in a row than this is a gap.
_GAP_SCRAPES = 3.5
_GAUGES = ("power_watts", "cpus_busy", "gpus_busy")
_COUNTERS = ("energy_joules_total", "measured_energy_joules_total", "unmetered_seconds_total")
_FACTS = ("counted_since_seconds", "start_time_seconds", "reserved_cpus", "reserved_gpus")
# What lacks no more than this share of its time, or so many scrapes, was watched as a whole.
_LACKS = 0.02
_LACKS_SCRAPES = 2.0

Samples = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True)
class _Job:
    """A job that was scraped: whose, which, where, and when about."""

    source: str
    job_id: str
    user: str
    name: str
    hosts: tuple[str, ...]
    first: float
    last: float


@dataclass(slots=True, kw_only=True)
class Scraped:
    """The jobs in a Prometheus.

    Attributes:
        url: Its address.
        start: Jobs that ran after this moment, epoch seconds.
        end: And before this one.
        names: Those that are called so, as in a shell; empty for all.
        users: Those of these users; empty for all.
        sources: Those found there; empty for all.
    """

    url: str
    start: float
    end: float
    names: Sequence[str] = ()
    users: Sequence[str] = ()
    sources: Sequence[str] = ()
    notes: list[str] = field(
        default_factory=lambda: [
            "Metrics do not say how jobs ended: those that failed late are taken for whole runs."
        ]
    )

    def programs(self) -> Iterator[SeenRuns]:
        """Yield the runs of each program."""
        groups: dict[tuple[str, str], list[_Job]] = defaultdict(list)
        for job in self._jobs():
            groups[job.user, common_name(job.name or job.job_id)].append(job)
        if not groups:
            raise InvalidInput(
                f"{place_of(self.url)} has no such jobs of lowtide watch in that time: who scrapes "
                "it without the token sees the node alone (lowtide_jobs_shown)"
            )
        for _, jobs in sorted(groups.items()):
            jobs.sort(key=lambda job: -job.first)
            runs: dict[Program, list[PastRun]] = defaultdict(list)
            left_out: dict[Program, list[LeftOut]] = defaultdict(list)
            for job in jobs[:LOOKED_AT]:
                program, found = self._read(job)
                if isinstance(found, LeftOut):
                    left_out[program].append(found)
                else:
                    runs[program].append(PastRun(program=program, run=found))
            names = {job.name for job in jobs}
            for program in dict.fromkeys([*runs, *left_out]):
                yield SeenRuns(
                    program=program,
                    runs=tuple(runs[program]),
                    left_out=tuple(left_out[program]),
                    called=names.copy().pop() if len(names) == 1 else "",
                )

    def _jobs(self) -> Iterator[_Job]:
        """Yield which jobs there were, and about when: looked for in steps of minutes."""
        spans: dict[tuple[str, ...], dict[str, tuple[float, float]]] = defaultdict(dict)
        begin = self.start
        while begin < self.end:
            until = min(begin + _MOST_VALUES * _STANDS_S, self.end)
            for labels, (times, _) in self._asked(
                "query_range",
                query=f"lowtide_job_info{self._chosen()}",
                start=f"{begin:.3f}",
                end=f"{until:.3f}",
                step=f"{_STANDS_S:g}",
            ):
                key = tuple(labels.get(name, "") for name in ("source", "job_id", "user", "name"))
                host = labels.get("host", "")
                first, last = spans[key].get(host, (math.inf, -math.inf))
                spans[key][host] = (min(first, times[0]), max(last, times[-1]))
            begin = until
        for (source, job_id, user, name), hosts in spans.items():
            if self.names and not any(fnmatchcase(name, each) for each in self.names):
                continue
            first = min(each[0] for each in hosts.values())
            last = max(each[1] for each in hosts.values())
            yield _Job(source, job_id, user, name, tuple(sorted(hosts)), first, last)

    def _chosen(self) -> str:
        wanted = [
            f"{label}=~{json.dumps('|'.join(map(re.escape, values)))}"
            for label, values in (("user", self.users), ("source", self.sources))
            if values
        ]
        return "{" + ",".join(wanted) + "}"

    def _read(self, job: _Job) -> tuple[Program, Run | LeftOut]:
        names = "|".join((*_GAUGES, *_COUNTERS, *_FACTS))
        chosen = f"source={json.dumps(job.source)},job_id={json.dumps(job.job_id)}"
        begin, end = job.first - _STANDS_S - 60, min(job.last + _AFTER_S, self.end)
        program = Program(user=job.user, name=common_name(job.name or job.job_id))
        try:
            answer = self._asked(
                "query",
                query=f'{{__name__=~"lowtide_job_({names})",{chosen}}}[{end - begin:.0f}s]',
                time=f"{end:.3f}",
            )
            series: dict[str, dict[str, Samples]] = defaultdict(dict)
            for labels, samples in answer:
                name = labels.get("__name__", "").removeprefix("lowtide_job_")
                series[name][labels.get("host", "")] = samples
        except ProviderProblem as error:
            return program, LeftOut(id=job.job_id, why="could not be read", more=str(error))
        cpus, gpus = (
            sum(float(values.max()) for _, values in series[name].values())
            for name in ("reserved_cpus", "reserved_gpus")
        )
        program = Program(
            user=program.user,
            name=program.name,
            nodes=max(len(job.hosts), 1),
            cpus=round(cpus, 2) if cpus > 0 else None,
            gpus=round(gpus, 2) if gpus > 0 else None,
        )
        found = self._run(job, series)
        return program, found

    def _run(self, job: _Job, series: Mapping[str, Mapping[str, Samples]]) -> Run | LeftOut:
        def left(why: str, more: str = "") -> LeftOut:
            return LeftOut(id=job.job_id, why=why, more=more)

        drawn = series["power_watts"]
        if not drawn or set(drawn) != set(job.hosts):
            return left("of unknown power")
        longest = max(drawn.values(), key=lambda samples: samples[0].size)
        if longest[0].size < LEAST_STEPS:
            return left("too short", f"{longest[0].size} scrapes")
        step_s = float(np.median(np.diff(longest[0])))
        if any(np.ptp(values) > 1 for _, values in series["start_time_seconds"].values()):
            return left("requeued")
        if longest[0][-1] > self.end - max(_GAP_SCRAPES * step_s, 60.0):
            return left("not over")
        gaps = [float(np.diff(times).max()) for times, _ in drawn.values() if times.size > 1]
        if max(gaps) > _GAP_SCRAPES * step_s:
            return left("watched in part", f"no scrape for {format_hours(max(gaps))}")
        times = longest[0]
        # Hosts are scraped at moments of their own.
        power_w = sum(np.interp(times, *samples) for samples in drawn.values())
        length_s = float(times[-1] - times[0]) + step_s
        begun = [float(values[0]) for _, values in series["start_time_seconds"].values()]
        counted = [float(values[0]) for _, values in series["counted_since_seconds"].values()]
        late_s = max(counted, default=math.nan) - min(begun, default=math.nan)
        lost_s = max(
            (float(values[-1]) for _, values in series[_COUNTERS[2]].values()), default=0.0
        )
        if max(late_s, lost_s) > max(_LACKS * length_s, _LACKS_SCRAPES * step_s):
            return left("watched in part", f"{format_hours(max(late_s, lost_s))} unknown")
        energy_j, measured_j = (
            sum(float(values[-1]) for _, values in series[name].values()) for name in _COUNTERS[:2]
        )
        if 0 < measured_j < energy_j * (1 - 1e-6):
            return left("measured in part")
        seen_j = float(np.sum(power_w)) * step_s
        if not (energy_j > 0 and seen_j > 0):
            return left("of unknown power")
        # What was drawn in all is known better than by scrapes alone.
        columns = {
            name: sum(np.interp(times, *samples) for samples in series[name].values())
            for name in _GAUGES[1:]
            if set(series[name]) == set(drawn)
        }
        return Run(
            id=job.job_id,
            times=times,
            power_w=power_w * (energy_j / seen_j),
            start=float(times[0]),
            end=float(times[-1]) + step_s,
            columns=columns,
            power="measured" if measured_j > 0 else "estimated",
        )

    def _asked(self, what: str, **arguments: str) -> Iterator[tuple[dict[str, str], Samples]]:
        """Yield the series that a query is answered with: labels, times and values."""
        address = f"{self.url.rstrip('/')}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        answer = get_json(address, timeout_s=_TIMEOUT_S)
        try:
            for each in answer["data"]["result"]:
                found = np.array(each["values"], dtype=np.float64).reshape(-1, 2)
                found = found[np.isfinite(found).all(axis=1)]
                labels = {str(name): str(value) for name, value in each["metric"].items()}
                if found.size:
                    yield labels, (found[:, 0], found[:, 1])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise ProviderProblem(
                f"{place_of(self.url)} answers as no Prometheus does: give its address, such as "
                "http://localhost:9090"
            ) from None
