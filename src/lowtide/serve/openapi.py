"""What the API's answers look like, for its description by OpenAPI.

Every answer is a table of named values. What is not known is null, so a number may always be.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from lowtide.serve.node_views import NodeNow
from lowtide.serve.planning import Option
from lowtide.serve.tokens import TokenLine
from lowtide.serve.waiting import QueueLine
from lowtide.store import JobRecord

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_TEXT_OR_NONE: _Schema = {"type": ["string", "null"]}
_NUMBER: _Schema = {"type": ["number", "null"]}
_COUNT: _Schema = {"type": "integer"}
_COUNT_OR_NONE: _Schema = {"type": ["integer", "null"]}


def _list(of: _Schema) -> _Schema:
    return {"type": "array", "items": of}


def _maybe(of: _Schema) -> _Schema:
    return {"type": ["array", "null"], "items": of}


def _table(**columns: _Schema) -> _Schema:
    """Return a table of these values, and of no others."""
    return {
        "type": "object",
        "properties": columns,
        "required": list(columns),
        "additionalProperties": False,
    }


def _any_table(**columns: _Schema) -> _Schema:
    """Return a table of these values, and of numbers or texts besides."""
    return {"type": "object", "properties": columns, "required": list(columns)}


def _of(hint: Any) -> _Schema:
    """Return what a value of a Python type looks like."""
    if get_origin(hint) in (Union, types.UnionType):
        (known,) = (each for each in get_args(hint) if each is not type(None))
        kind = _of(known)["type"]
        return {"type": kind if isinstance(kind, list) else [kind, "null"]}
    if get_origin(hint) is tuple:
        return _list(_of(get_args(hint)[0]))
    return {str: _TEXT, int: _COUNT, bool: {"type": "boolean"}, float: _NUMBER}[hint]


def _record(kind: type, *, leave_out: tuple[str, ...] = (), **more: _Schema) -> _Schema:
    hints = get_type_hints(kind)
    named = [each.name for each in fields(kind) if each.name not in leave_out]
    return _table(**more, **{name: _of(hints[name]) for name in named})


def _columns(kind: _Schema) -> _Schema:
    return {"type": "object", "additionalProperties": _list(kind)}


_ERROR = _table(error=_TEXT)
_JOB = _record(JobRecord, leave_out=("number",), ref=_TEXT, power=_TEXT_OR_NONE)
_COURSE = {"times": _list(_NUMBER), "step_s": _list(_NUMBER), "columns": _columns(_NUMBER)}
_STEPS = {**_COURSE, "next": _NUMBER}
_WASTED = _table(
    **dict.fromkeys(("rule", "ref", "evidence"), _TEXT),
    **dict.fromkeys(("job", "user", "account", "name", "state"), _TEXT_OR_NONE),
    **dict.fromkeys(("energy_j", "carbon_g", "core_s", "gpu_s", "byte_s"), _NUMBER),
)

_SPENDING = {**_table(budget=_NUMBER, used=_NUMBER, by_end=_NUMBER), "type": ["object", "null"]}
_BUDGET = _table(
    **dict.fromkeys(("cluster", "account", "per"), _TEXT),
    **dict.fromkeys(("begins", "ends"), _NUMBER),
    partial={"type": "boolean"},
    **dict.fromkeys(("energy_j", "carbon_g"), _SPENDING),
)

# What each endpoint answers where it finds what was asked for.
ANSWERS: Mapping[str, _Schema] = {
    "/api/v1/me": _table(user=_TEXT, role=_TEXT, leads=_list(_TEXT), member=_list(_TEXT)),
    "/api/v1/jobs": _table(jobs=_list(_JOB), next=_TEXT_OR_NONE),
    "/api/v1/jobs/{ref}": _JOB,
    "/api/v1/jobs/{ref}/course": _table(**_COURSE),
    "/api/v1/jobs/{ref}/steps": _table(**_STEPS, phases=_TEXT_OR_NONE),
    "/api/v1/table": _table(
        next=_TEXT_OR_NONE,
        facts=_list(_TEXT),
        totals=_list(_TEXT),
        jobs={"type": ["object", "null"]},
    ),
    "/api/v1/usage": _table(
        by=_TEXT, start=_NUMBER, end=_NUMBER, usage=_list(_any_table()), budgets=_list(_BUDGET)
    ),
    "/api/v1/nodes": _table(nodes=_list(_any_table(name=_TEXT)), whole={"type": "boolean"}),
    "/api/v1/nodes/{name}": _record(NodeNow),
    "/api/v1/nodes/{name}/course": _table(**_COURSE),
    "/api/v1/nodes/{name}/steps": _table(**_STEPS),
    "/api/v1/synthetic": _table(synthetic=_list(_list({"type": ["string", "number"]}))),
    "/api/v1/grid": _table(
        node=_TEXT, source=_TEXT_OR_NONE, times=_maybe(_NUMBER), intensity_g_per_kwh=_maybe(_NUMBER)
    ),
    "/api/v1/plans": _table(note=_TEXT, plans=_list(_record(Option))),
    "/api/v1/queue": _table(
        moment=_NUMBER, partial={"type": "boolean"}, queue=_list(_record(QueueLine))
    ),
    "/api/v1/waste": _table(days=_COUNT, waste=_list(_WASTED)),
    "/api/v1/health": _any_table(
        nodes=_COUNT,
        silent=_list(_TEXT),
        set_aside=_COUNT_OR_NONE,
        meters=_list(_table(host=_TEXT, measured=_NUMBER, unmetered_s=_NUMBER, priced=_NUMBER)),
    ),
    "/api/v1/tokens": _table(tokens=_list(_record(TokenLine))),
    "/api/v1/looks": _table(
        looks=_list(_table(time=_NUMBER, viewer=_TEXT, role=_TEXT, what=_TEXT))
    ),
}

# What any of them answers instead.
_REFUSALS = {
    400: "What was asked cannot be understood; it says what would be.",
    401: "No token, or one that ended.",
    404: "There is no such thing, or it is not yours to see.",
    429: "Too often: Retry-After says when to come again.",
    503: "The store does not answer: try again in a while.",
}
_OTHER_FORMS = {
    "/api/v1/jobs": ("text/csv; charset=utf-8", "application/vnd.apache.parquet"),
}


def responses_of(path: str) -> dict[int | str, dict[str, Any]]:
    """Return what an endpoint may answer, as OpenAPI has it.

    Args:
        path: Where it is.
    """
    forms: dict[str, Any] = {"application/json": {"schema": ANSWERS[path]}}
    for kind in _OTHER_FORMS.get(path, ()):
        forms[kind] = {"schema": {"type": "string"}}
    found: dict[int | str, dict[str, Any]] = {
        200: {"description": "What was asked for.", "content": forms}
    }
    for status, words in _REFUSALS.items():
        found[status] = {
            "description": words,
            "content": {"application/json": {"schema": _ERROR}},
        }
    return found


def description(document: dict[str, Any]) -> dict[str, Any]:
    """Return FastAPI's description of the API, with what it cannot know of this server.

    A question that cannot be understood is answered with 400 here, whoever finds out.
    """
    document["components"] = {
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer", "description": "A token: lt_…"}
        }
    }
    document["security"] = [{"token": []}]
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    return document
