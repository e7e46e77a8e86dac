"""What programs ask: `/api/v1`, described by OpenAPI.

Everything comes from the `Viewer` that the gate has found. A list is told in parts, each of which
says where the next begins.
"""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from lowtide.errors import InvalidInput
from lowtide.files import parquet_of
from lowtide.serve.budgets import Budgets
from lowtide.serve.gate import for_whom
from lowtide.serve.overview import WasteBook
from lowtide.serve.planning import TOO_LITTLE, any_node, grid_ahead, next_job, options_of
from lowtide.serve.remote_store import Question, node_steps, steps_of, synthetic, table_of
from lowtide.serve.tokens import list_tokens
from lowtide.serve.viewer import MOST_ROWS, ORDERS, Viewer, VisibleJob
from lowtide.serve.wanted import Wanted
from lowtide.store.records import Series, thinned

MOST_POINTS = 2000
_DAY_S = 86400
# What begins a formula in a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_Names = Annotated[list[str], Query(max_length=100)]
_Text = Annotated[str, Query(max_length=1000)]
_Moment = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False)]

# Where programs ask, and what answers.
ENDPOINTS: dict[str, Callable[..., Response]] = {}


def _get(path: str) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
    """Name where an answer for whoever is known is found."""

    def name(endpoint: Callable[..., Response]) -> Callable[..., Response]:
        ENDPOINTS[f"/api/v1{path}"] = for_whom("viewer")(endpoint)
        return endpoint

    return name


def viewer_of(request: Request) -> Viewer:
    """Return who looks."""
    found: Viewer = request.state.viewer
    return found


def answer(document: Any, *, status: int = 200) -> Response:
    """Return a document as JSON; what is not known is null."""
    body = msgspec.json.encode(document)
    return Response(body, status_code=status, media_type="application/json")


NOT_FOUND = {"error": "there is no such thing, or it is not yours to see"}


def document_of(found: VisibleJob) -> dict[str, Any]:
    """Return a job as programs get it: the keys of `lowtide jobs --json`, and its `ref`."""
    document = asdict(found.record)
    del document["number"]
    return {"ref": found.ref, **document, "power": found.record.power}


@_get("/me")
def me(request: Request) -> Response:
    """Say who asks, and what they may see."""
    viewer = viewer_of(request)
    rights = viewer.rights
    return answer(
        {
            "user": viewer.user,
            "role": rights.role,
            "leads": sorted(rights.leads),
            "member": sorted(rights.member),
        }
    )


@_get("/jobs")
def jobs(
    request: Request,
    user: _Names = [],  # noqa: B006 - FastAPI reads it, and nobody changes it
    account: _Names = [],  # noqa: B006
    partition: _Names = [],  # noqa: B006
    cluster: _Names = [],  # noqa: B006
    state: _Names = [],  # noqa: B006
    host: _Text = "",
    name: _Text = "",
    job: _Text = "",
    start: _Moment = None,
    end: _Moment = None,
    order: Annotated[str, Query(description=f"One of {', '.join(ORDERS)}.")] = "over",
    after: _Text = "",
    most: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 50,
    form: Annotated[Literal["json", "csv", "parquet"], Query(alias="format")] = "json",
) -> Response:
    """List jobs, the last to end first."""
    wanted = Wanted(
        users=user, accounts=account, partitions=partition, clusters=cluster, states=state,
        host=host, name=name, job=job, start=start, end=end,
    )  # fmt: skip
    found = viewer_of(request).jobs(
        wanted, order=order, after=read_place(after) if after else None, most=most
    )
    rows = [document_of(each) for each in found]
    if form == "csv":
        return Response(as_csv(rows), media_type="text/csv; charset=utf-8")
    if form == "parquet":
        return Response(as_parquet(rows), media_type="application/vnd.apache.parquet")
    following = place_after(found[-1], order) if len(found) == most else None
    return answer({"jobs": rows, "next": following})


@_get("/table")
def table(
    request: Request,
    user: _Names = [],  # noqa: B006
    account: _Names = [],  # noqa: B006
    partition: _Names = [],  # noqa: B006
    cluster: _Names = [],  # noqa: B006
    state: _Names = [],  # noqa: B006
    host: _Names = [],  # noqa: B006
    name: _Names = [],  # noqa: B006
    source: _Names = [],  # noqa: B006
    job: Annotated[list[str], Query(max_length=10_001)] = [],  # noqa: B006
    start: _Moment = None,
    end: _Moment = None,
    after: _Text = "",
    phases: bool = False,
) -> Response:
    """List jobs whole and in columns, the first first, for those who print them as a store's."""
    question = Question(
        users=user, accounts=account, partitions=partition, clusters=cluster, states=state,
        hosts=host, names=name, sources=source, ids=job, start=start, end=end,
    )  # fmt: skip
    return answer(table_of(viewer_of(request), question, after=after, with_phases=phases))


@_get("/jobs/{ref}/steps")
def steps(
    request: Request, ref: str, start: _Moment = None, end: _Moment = None, after: _Moment = None
) -> Response:
    """Tell what a job used over time, each step as it is kept."""
    found = steps_of(viewer_of(request), ref, start=start, end=end, after=after)
    return answer(NOT_FOUND, status=404) if found is None else answer(found)


@_get("/nodes/{name}/steps")
def steps_of_node(
    request: Request, name: str, start: _Moment = None, end: _Moment = None, after: _Moment = None
) -> Response:
    """Tell what a node did over time, each step as it is kept."""
    found = node_steps(viewer_of(request), name, start=start, end=end, after=after)
    return answer(NOT_FOUND, status=404) if found is None else answer(found)


@_get("/synthetic")
def synthetic_grids(request: Request) -> Response:
    """Tell when which node's grams were those of a synthetic grid."""
    return answer({"synthetic": synthetic(viewer_of(request))})


@_get("/jobs/{ref}")
def job(request: Request, ref: str) -> Response:
    """Tell of one job."""
    found = viewer_of(request).job(ref)
    return answer(NOT_FOUND, status=404) if found is None else answer(document_of(found))


@_get("/jobs/{ref}/course")
def course(
    request: Request,
    ref: str,
    points: Annotated[int, Query(ge=2, le=MOST_POINTS)] = 600,
    start: _Moment = None,
    end: _Moment = None,
) -> Response:
    """Tell what a job used over time, in columns."""
    series = viewer_of(request).course(ref, start=start, end=end)
    return answer(NOT_FOUND, status=404) if series is None else answer(columns_of(series, points))


@_get("/nodes")
def nodes(request: Request) -> Response:
    """List the nodes, when each was last heard of, and whether their whole past may be seen."""
    viewer = viewer_of(request)
    return answer({"nodes": viewer.nodes(), "whole": viewer.sees_all})


@_get("/nodes/{name}")
def node(request: Request, name: str) -> Response:
    """Tell whether a node is busy and what it draws, of the last full quarter of an hour."""
    found = viewer_of(request).node_now(name)
    return answer(NOT_FOUND, status=404) if found is None else answer(asdict(found))


@_get("/nodes/{name}/course")
def node_course(
    request: Request,
    name: str,
    points: Annotated[int, Query(ge=2, le=MOST_POINTS)] = 600,
    start: _Moment = None,
    end: _Moment = None,
) -> Response:
    """Tell what a node did over time, in columns; the last day by default.

    Who does not see all is told of the time in which jobs ran there that they may see.
    """
    viewer = viewer_of(request)
    begin = viewer.now - _DAY_S if start is None else start
    series = viewer.node_course(name, start=begin, end=end)
    return answer(NOT_FOUND, status=404) if series is None else answer(columns_of(series, points))


@_get("/grid")
def grid(request: Request, node: _Text = "") -> Response:
    """Tell what the grid of a node, or of the cluster, is expected to be in the next days.

    It is made of what the watchers knew of it; null where that is too little.
    """
    viewer = viewer_of(request)
    found = grid_ahead(viewer, node or any_node(viewer), 0.0)
    return answer(
        {
            "node": node,
            "source": found and found.source,
            "times": found and found.edges[:-1].tolist(),
            "intensity_g_per_kwh": found and found.values.tolist(),
        }
    )


@_get("/plans")
def plans(request: Request, like: _Text = "", time: _Text = "") -> Response:
    """Tell what waiting brings for a job like one of yours, or for one that takes so long."""
    viewer = viewer_of(request)
    job = next_job(viewer, like=like, time=time)
    if job is None:
        return answer(NOT_FOUND, status=404)
    if job.profile is None:
        raise InvalidInput(job.note or "say which job it is like, or its time, such as 6:00:00")
    ahead = grid_ahead(viewer, job.host, job.profile.run_s)
    found = [] if ahead is None else options_of(job, ahead, viewer.now)
    note = TOO_LITTLE if ahead is None else ""
    return answer({"note": note, "plans": [asdict(each) for each in found]})


@_get("/usage")
def usage(
    request: Request,
    by: Annotated[str, Query(max_length=20)] = "account",
    start: _Moment = None,
    end: _Moment = None,
    account: _Text = "",
    user: _Text = "",
    partition: _Text = "",
    cluster: _Text = "",
    state: _Text = "",
) -> Response:
    """Sum up what was used, by one thing; the last 30 days by default.

    By account it is told besides how these stand to their budgets in the period under way.
    """
    viewer = viewer_of(request)
    last = viewer.now // 3600 * 3600 + 3600 if end is None else end
    first = last - 30 * _DAY_S if start is None else start
    given = {"account": account, "user": user, "partition": partition, "cluster": cluster}
    given["state"] = state
    wanted = {name: value for name, value in given.items() if value}
    rows = viewer.usage(by, start=first, end=last, wanted=wanted)
    budgets: Budgets = request.app.state.budgets
    found = budgets.all(viewer, wanted) if by == "account" else []
    return answer(
        {
            "by": by,
            "start": first,
            "end": last,
            "usage": rows,
            "budgets": [each.document() for each in found],
        }
    )


@_get("/queue")
def queue(request: Request) -> Response:
    """Tell what waits, by partition: how many jobs, and what they asked for.

    Who does not see all is told of what enough others wait for, at the end of the last full quarter
    of an hour and to two figures, besides what they may see.
    """
    found = viewer_of(request).queue()
    return answer(
        {
            "moment": found.moment,
            "partial": found.partial,
            "queue": [asdict(each) for each in found.lines],
        }
    )


@_get("/waste")
def wasted(request: Request, days: Annotated[int, Query(ge=1, le=90)] = 7) -> Response:
    """Tell what jobs held and did not use in the last days, the most energy first."""
    viewer = viewer_of(request)
    book: WasteBook = request.app.state.waste
    found = book.waste(viewer, start=viewer.now - days * _DAY_S, end=viewer.now)
    return answer({"days": days, "waste": [each.document() for each in found]})


@_get("/health")
def health(request: Request) -> Response:
    """Tell how the centre fares."""
    return answer(viewer_of(request).health())


@_get("/tokens")
def tokens(request: Request) -> Response:
    """List the user's tokens, which are themselves not shown."""
    viewer = viewer_of(request)
    found = list_tokens(viewer.seen, owner=viewer.user, now=viewer.now)
    return answer({"tokens": [asdict(each) for each in found]})


@_get("/looks")
def looks(request: Request) -> Response:
    """Tell who of the staff looked at the user's jobs."""
    return answer({"looks": viewer_of(request).looks()})


def place_after(found: VisibleJob, order: str) -> str:
    """Return where a list goes on behind a job."""
    record = found.record
    value = found.over if order == "over" else getattr(record, order)
    value = -1.0 if math.isnan(value) else value
    return base64.urlsafe_b64encode(f"{value!r} {found.ref}".encode()).decode().rstrip("=")


def read_place(text: str) -> tuple[float, str]:
    """Return the place that `place_after` wrote."""
    try:
        plain = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
        value, ref = plain.split(" ")
        number = float(value)
    except ValueError:
        raise InvalidInput("after is what the list before gave as next") from None
    if math.isnan(number):
        raise InvalidInput("after is what the list before gave as next")
    return number, ref


def columns_of(series: Series, points: int) -> dict[str, Any]:
    """Return a course in columns, in so many points at most."""
    if len(series) > points:
        series = thinned(series, points)
    return {
        "times": series.times.tolist(),
        "step_s": series.step_s.tolist(),
        "columns": {name: column.tolist() for name, column in series.columns.items()},
    }


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, in which no cell is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
    writer.writerows(_cells(row.values()) for row in rows)
    return text.getvalue()


def _cells(values: Iterable[Any]) -> list[Any]:
    cells = []
    for value in values:
        if isinstance(value, tuple):
            value = ",".join(value)
        if isinstance(value, float) and math.isnan(value):
            value = None
        if isinstance(value, str) and value.startswith(_FORMULA):
            value = f"'{value}"
        cells.append(value)
    return cells


def as_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as a Parquet file."""
    import polars as pl

    listed = [{**row, "hosts": list(row["hosts"])} for row in rows]
    frame = pl.DataFrame(listed, infer_schema_length=None)
    return parquet_of(frame.with_columns(pl.selectors.float().fill_nan(None)))
