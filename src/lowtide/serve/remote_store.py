"""Jobs whole, as a store of one's own has them: what the command line reads from a centre.

Which jobs these are is the viewer's to say. What follows asks the store's own tables for them, and
tells no number of the centre's, by which somebody could count what others do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa

from lowtide.serve.ledger import BEHIND_S, standing
from lowtide.serve.schema import jobs
from lowtide.serve.viewer import Viewer
from lowtide.store import Retention, Series, Store
from lowtide.store.jobs import JobTable, by_id, filtered
from lowtide.store.jobs import Question as Question
from lowtide.store.layout import FACTS, TOTALS

MOST_JOBS = 2000
MOST_STEPS = 10_000
# A job's row says when it was over, the store's when it was last heard of.
_SLACK_S = 86400.0


def table_of(
    viewer: Viewer, question: Question, *, after: str = "", with_phases: bool = False
) -> dict[str, Any]:
    """Return jobs in columns as `centre.store` reads them, and behind which the list goes on.

    Args:
        after: The `ref` behind which to go on; empty for the beginning.
    """
    numbers = viewer.numbers(list(_rules(question)), after=after, most=MOST_JOBS)
    following = list(numbers.values())[-1] if len(numbers) == MOST_JOBS else None
    with viewer.reading() as connection:
        table = None
        if numbers:
            table = standing(connection, list(numbers), now=viewer.now, question=question)
    if table is not None:
        table = filtered(table, question, BEHIND_S)
    found: dict[str, Any] = {"next": following, "facts": FACTS, "totals": TOTALS, "jobs": None}
    if table is not None and len(table):
        found["jobs"] = _document(table, numbers)
        if with_phases:
            texts = Store(viewer.seen, Retention()).phases_of_many(table.columns["id"])
            found["jobs"]["phases"] = [texts.get(number) for number in table.columns["id"]]
    return found


def _rules(question: Question) -> Iterator[sa.ColumnElement[bool]]:
    """Yield what the rows of jobs have to be that a question may mean, and perhaps of some more."""
    of = jobs.c
    for column, wanted in (
        (of.user, question.users),
        (of.account, question.accounts),
        (of.partition, question.partitions),
        (of.source, question.sources),
        (of.cluster, question.clusters),
    ):
        if wanted:
            yield column.in_(list(wanted))
    if question.ids:
        yield sa.or_(*by_id(jobs, question.ids))
    if question.start is not None:
        yield of.over >= question.start - _SLACK_S
    if question.end is not None:
        first = sa.func.coalesce(of.started, of.submitted, of.first_seen, 0.0)
        yield first <= question.end + _SLACK_S


def _document(table: JobTable, refs: dict[int, str]) -> dict[str, Any]:
    texts = {name: list(column) for name, column in table.columns.items() if name != "id"}
    return {
        "ref": [refs[number] for number in table.columns["id"]],
        "columns": texts,
        "facts": table.facts.tolist(),
        "totals": table.totals.tolist(),
        "states": list(table.states),
    }


def steps_of(
    viewer: Viewer, ref: str, *, start: float | None, end: float | None, after: float | None
) -> dict[str, Any] | None:
    """Return the steps of a job's course; None where there is none that may be seen.

    Args:
        after: Behind which step to go on; None for the first.
    """
    series = viewer.course(ref, start=start, end=end)
    if series is None:
        return None
    return {**_steps(series, after), "phases": viewer.phases(ref)}


def node_steps(
    viewer: Viewer, name: str, *, start: float | None, end: float | None, after: float | None
) -> dict[str, Any] | None:
    """Return the steps of a node's course; None where there is none such."""
    series = viewer.node_course(name, start=0.0 if start is None else start, end=end)
    return None if series is None else _steps(series, after)


def _steps(series: Series, after: float | None) -> dict[str, Any]:
    first = 0 if after is None else int(np.searchsorted(series.times, after, side="right"))
    rows = slice(first, first + MOST_STEPS)
    more = first + MOST_STEPS < len(series)
    return {
        "times": series.times[rows].tolist(),
        "step_s": series.step_s[rows].tolist(),
        "columns": {name: column[rows].tolist() for name, column in series.columns.items()},
        "next": float(series.times[rows][-1]) if more else None,
    }


def synthetic(viewer: Viewer) -> list[tuple[str, float, float]]:
    """Return when which node's grams were those of a synthetic grid."""
    return Store(viewer.seen, Retention()).synthetic()
