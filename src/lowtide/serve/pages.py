"""What people see: pages made here, whole without any script.

Every page answers a question, says how sure it is (`~` estimated, `>` at least) and leads to the
same as data. Whatever users named their jobs is text here, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
import numpy as np
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lowtide.hindsight import words
from lowtide.serve.api import NOT_FOUND, place_after, read_place, thinned
from lowtide.serve.gate import Doorkeeper, for_whom
from lowtide.serve.settings import Settings
from lowtide.serve.tokens import LINK, end_session, use_once
from lowtide.serve.viewer import ORDERS, Viewer, Wanted
from lowtide.states import STATES
from lowtide.store import JobRecord, Series
from lowtide.units import (
    MISSING,
    format_duration,
    format_energy,
    format_mass,
    format_number,
    format_percent,
    format_time,
)

_ROUNDING = 1e-9
_SUMS = (
    *("jobs", "energy_j", "carbon_g", "measured_j", "unmetered_s", "unpriced_j"),
    *("without_energy", "without_carbon"),
)
_DAY_S = 86400.0
# How a course is drawn: so many points, in a box of this size.
_POINTS = 300
_WIDE, _HIGH = 720.0, 160.0
_PANELS = (
    ("power_w", "Power", "W"),
    ("cpus_busy", "Cores busy", ""),
    ("gpus_busy", "GPUs busy", ""),
)
_NODE_PANELS = (("power_w", "Power", "W"), ("idle_w", "Idle", "W"), ("jobs", "Jobs", ""))


class Pages:
    """The pages of a server."""

    def __init__(self, keeper: Doorkeeper) -> None:
        self._keeper = keeper
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "energy": energy_text,
            "mass": mass_text,
            "duration": lambda seconds: format_duration(_known(seconds)),
            "moment": lambda moment: format_time(_known(moment)),
            "share": lambda share: format_percent(_known(share)),
            "number": lambda value: format_number(_known(value)),
            "joules": summed_energy,
            "grams": summed_mass,
            "known": lambda value: MISSING if value in (None, "") else value,
        }

    def routes(self) -> list[Route]:
        """Return where each page is."""
        return [
            Route("/", self.home),
            Route("/jobs", self.jobs),
            Route("/jobs/{ref}", self.job),
            Route("/nodes", self.nodes),
            Route("/nodes/{name}", self.node),
            Route("/usage", self.usage),
            Route("/looks", self.looks),
            Route("/enter/{key}", self.enter),
            Route("/leave", self.leave, methods=["POST"]),
        ]

    @for_whom("viewer")
    def home(self, request: Request) -> Response:
        """Show how my last jobs were, and what they came to."""
        viewer: Viewer = request.state.viewer
        mine = Wanted() if viewer.rights.role == "owner" else Wanted(users=[viewer.user])
        last = viewer.now // 3600 * 3600 + 3600
        days = viewer.usage("day", start=last - 30 * _DAY_S, end=last, wanted=_of(viewer))
        return self._page(
            request,
            "home.html",
            jobs=viewer.jobs(mine, most=10),
            sums={name: _summed(row[name] for row in days) for name in _SUMS},
        )

    @for_whom("viewer")
    def jobs(self, request: Request) -> Response:
        """Show which jobs there are; the address holds what is asked."""
        viewer: Viewer = request.state.viewer
        asked = {name: value for name, value in request.query_params.items() if value}
        wanted = Wanted(
            users=_list(asked, "user"),
            accounts=_list(asked, "account"),
            partitions=_list(asked, "partition"),
            states=_list(asked, "state"),
            host=asked.get("host", ""),
            name=asked.get("name", ""),
            job=asked.get("job", ""),
        )
        order = asked.get("order", "over")
        after = read_place(asked["after"]) if "after" in asked else None
        found = viewer.jobs(wanted, order=order, after=after)
        asked.pop("after", None)
        more = ""
        if len(found) == 50:
            more = "?" + urlencode({**asked, "after": place_after(found[-1], order)})
        return self._page(
            request, "jobs.html", jobs=found, asked=asked, more=more, same=urlencode(asked),
            states=STATES, orders=ORDERS,
        )  # fmt: skip

    @for_whom("viewer")
    def job(self, request: Request) -> Response:
        """Show what a job did, where the power went, and when it should have run."""
        viewer: Viewer = request.state.viewer
        seen = viewer.look_back(request.path_params["ref"])
        if seen is None:
            return self.refusal_of_nothing()
        found, told = seen
        tables = [
            ("What was asked for, and what was used", words.use_rows(told.behaviour)),
            ("Phases", words.phase_rows(told.phases.found) if told.phases else ((), [])),
            (
                "What waiting would have saved",
                words.waiting_rows(told) if told.waiting else ((), []),
            ),
        ]
        return self._page(
            request,
            "job.html",
            ref=found.ref,
            job=found.record,
            lines=[*words.headline(told)[1:], *words.drawn(found.record)],
            verdicts=told.verdicts,
            notes=told.notes,
            tables=[(title, *table) for title, table in tables if table[1]],
            panels=panels(told.series, _PANELS),
            script=next_script(found.record),
            covered=coverage(found.record),
        )

    @for_whom("viewer")
    def nodes(self, request: Request) -> Response:
        """Show which nodes there are, those first of which nobody hears."""
        viewer: Viewer = request.state.viewer
        silent = set(viewer.health()["silent"])
        found = sorted(viewer.nodes(), key=lambda each: (each["name"] not in silent, each["name"]))
        return self._page(request, "nodes.html", nodes=found, silent=silent)

    @for_whom("viewer")
    def node(self, request: Request) -> Response:
        """Show what a node did in the last day, and my jobs on it."""
        viewer: Viewer = request.state.viewer
        name = request.path_params["name"]
        series = viewer.node_course(name, start=viewer.now - _DAY_S)
        if series is None:
            return self.refusal_of_nothing()
        return self._page(
            request,
            "node.html",
            name=name,
            panels=panels(series, _NODE_PANELS),
            jobs=viewer.jobs(Wanted(host=name), most=20),
        )

    @for_whom("viewer")
    def usage(self, request: Request) -> Response:
        """Show who used what in the last 30 days."""
        viewer: Viewer = request.state.viewer
        by = request.query_params.get("by", "account")
        last = viewer.now // 3600 * 3600 + 3600
        rows = viewer.usage(by, start=last - 30 * _DAY_S, end=last)
        return self._page(request, "usage.html", by=by, rows=rows)

    @for_whom("viewer")
    def looks(self, request: Request) -> Response:
        """Show who of the staff looked at my jobs."""
        return self._page(request, "looks.html", looks=request.state.viewer.looks())

    @for_whom("public")
    def enter(self, request: Request) -> Response:
        """Begin a session by a link that works once."""
        now = self._keeper.clock()
        owner = use_once(self._keeper.database, request.path_params["key"], scope=LINK, now=now)
        if owner is None:
            return self.refusal("this link was used, or is too old: ask for another", 401)
        return self._keeper.let_in(request.headers, owner)

    @for_whom("viewer")
    def leave(self, request: Request) -> Response:
        """End a session."""
        end_session(self._keeper.database, self._keeper.session_key(request.headers))
        response = self.refusal("you have left", 200)
        # Browsers let go of a guarded name only where it is as guarded as it was.
        response.delete_cookie(self._keeper.cookie, secure=self._keeper.settings.is_encrypted)
        return response

    def refusal_of_nothing(self) -> Response:
        """Return the page of what is not there, or not to be seen: the same for both."""
        return self.refusal(NOT_FOUND["error"], 404)

    def refusal(self, words_of_it: str, status: int) -> Response:
        """Return a page that says why there is none."""
        template = self._templates.get_template("refusal.html")
        return HTMLResponse(template.render(words=words_of_it), status_code=status)

    def login(self, *, words: str, status: int, settings: Settings) -> Response:
        """Return the page on which people choose how to log in."""
        template = self._templates.get_template("login.html")
        return HTMLResponse(template.render(words=words, settings=settings), status_code=status)

    def _page(self, request: Request, template: str, **given: Any) -> Response:
        shown = request.state.shown
        html = self._templates.get_template(template).render(
            viewer=request.state.viewer, form_key=shown.form_key, path=request.url.path, **given
        )
        return HTMLResponse(html)


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _summed(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _list(asked: Mapping[str, str], name: str) -> list[str]:
    return [part for part in asked.get(name, "").split(",") if part]


def _of(viewer: Viewer) -> dict[str, str]:
    return {} if viewer.rights.role == "owner" else {"user": viewer.user}


def energy_text(record: JobRecord) -> str:
    """Return a job's energy, marked by how sure it is."""
    return _marked(record, format_energy(_known(record.energy_j)), record.unmetered_s > 0)


def mass_text(record: JobRecord) -> str:
    """Return a job's emissions, marked by how sure they are."""
    lacking = record.unmetered_s > 0 or record.unpriced_j > _ROUNDING * record.energy_j
    return _marked(record, format_mass(_known(record.carbon_g)), lacking)


def summed_energy(sums: Mapping[str, Any]) -> str:
    """Return the energy of many jobs, marked by how sure it is."""
    return _mark_sum(sums, format_energy(sums["energy_j"]), bool(sums["without_energy"]))


def summed_mass(sums: Mapping[str, Any]) -> str:
    """Return what many jobs emitted, marked by how sure it is."""
    unpriced = (sums["unpriced_j"] or 0.0) > _ROUNDING * (sums["energy_j"] or 0.0)
    lacking = bool(sums["without_carbon"]) or unpriced
    return _mark_sum(sums, format_mass(sums["carbon_g"]), lacking)


def _mark_sum(sums: Mapping[str, Any], text: str, lacking: bool) -> str:
    guessed = (sums["measured_j"] or 0.0) < (sums["energy_j"] or 0.0) * (1 - _ROUNDING)
    lacking = lacking or (sums["unmetered_s"] or 0.0) > 0
    return text if text == MISSING else ">" * lacking + "~" * guessed + text


def _marked(record: JobRecord, text: str, lacking: bool) -> str:
    guessed = record.power in ("estimated", "part")
    return text if text == MISSING else ">" * lacking + "~" * guessed + text


def coverage(record: JobRecord) -> list[tuple[str, float]]:
    """Return which share of a job's time was watched and metered, and of its energy was priced."""
    elapsed, energy = record.elapsed_s, record.energy_j
    found = [
        ("watched", record.seen_s / elapsed if elapsed > 0 else math.nan),
        ("metered", 1 - record.unmetered_s / elapsed if elapsed > 0 else math.nan),
        ("priced", 1 - record.unpriced_j / energy if energy > 0 else math.nan),
    ]
    return [(name, min(max(share, 0.0), 1.0)) for name, share in found if not math.isnan(share)]


def next_script(record: JobRecord) -> list[str]:
    """Return what to write in the next job script: a fifth more than was used, where that is less.

    Nothing is said of what was not watched all the time, or of a job that did not do its work.
    """
    if record.state != "completed" or not record.seen_s > 0.9 * record.elapsed_s:
        return []
    lines = []
    cores = math.ceil(record.peak_cpus) if record.peak_cpus == record.peak_cpus else 0
    if 0 < cores < record.cpus and len(record.hosts) == 1:
        lines.append(f"#SBATCH --cpus-per-task={cores}")
    memory = 1.2 * record.peak_memory_bytes
    if memory < record.memory_bytes and len(record.hosts) == 1:
        lines.append(f"#SBATCH --mem={math.ceil(memory / 2**20)}M")
    gpus = math.ceil(record.peak_gpus) if record.peak_gpus == record.peak_gpus else -1
    if 0 <= gpus < record.gpus and len(record.hosts) == 1:
        lines.append(f"#SBATCH --gpus={gpus}")
    limit = 1.2 * record.elapsed_s
    if limit < record.time_limit_s:
        lines.append(f"#SBATCH --time={format_duration(math.ceil(limit / 60) * 60)}")
    return lines


def panels(series: Series, wanted: tuple[tuple[str, str, str], ...]) -> list[dict[str, Any]]:
    """Return curves to be drawn: what each is called, its line, its most, and a small table."""
    if len(series) < 2:
        return []
    if len(series) > _POINTS:
        series = thinned(series, _POINTS)
    first, last = series.starts[0], series.times[-1]
    drawn = []
    for name, title, unit in wanted:
        column = series.columns.get(name)
        if column is None or not np.isfinite(column).any():
            continue
        most = float(np.nanmax(column)) or 1.0
        pieces, pen = [], "M"
        for begin, end, value in zip(series.starts, series.times, column, strict=True):
            if np.isnan(value):
                pen = "M"
                continue
            y = _HIGH - (_HIGH - 4) * float(value) / most
            for moment in (begin, end):
                pieces.append(f"{pen}{_WIDE * (moment - first) / (last - first):.1f},{y:.1f}")
                pen = "L"
        quarters = [part for part in np.array_split(np.arange(len(column)), 8) if part.size]
        drawn.append(
            {
                "title": title,
                "unit": unit,
                "line": " ".join(pieces),
                "most": most,
                "begins": float(first),
                "ends": float(last),
                "rows": [
                    (float(series.starts[part[0]]), _mean(column[part], series.step_s[part]))
                    for part in quarters
                ],
            }
        )
    return drawn


def _mean(values: Any, weights: Any) -> float:
    known = ~np.isnan(values)
    return (
        float((values[known] * weights[known]).sum() / weights[known].sum())
        if known.any()
        else math.nan
    )
