"""The way to Prometheus for those who may see a part of it: Grafana asks by a person's token.

What is asked is taken apart, checked and asked anew: nothing of a request goes on as it came. Those
who see all are answered by the whole; for others every selector is narrowed to their own series.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lowtide.errors import InvalidInput, LowtideError
from lowtide.serve.api import NOT_FOUND, answer, viewer_of
from lowtide.serve.gate import for_whom
from lowtide.serve.people import metric_owners
from lowtide.serve.promql import (
    Limits,
    Owners,
    check_range,
    everything,
    restrict,
    restrict_selector,
    selector_texts,
)
from lowtide.serve.settings import SHOWN_LABELS
from lowtide.serve.viewer import Viewer
from lowtide.units import parse_duration

PATH = "/prometheus/api/v1"
# What may be asked where, and which of it is a query or a selector.
_QUERIES = {
    "query": ("query", "time", "timeout"),
    "query_range": ("query", "start", "end", "step", "timeout"),
}
_LISTS = ("series", "labels")
_SELECTIONS = ("match[]", "start", "end", "limit")
_PATIENCE_S = 30.0
# A dashboard asks the same again and again: it is written down once in so long a time.
_AGAIN_S = 3600.0
_MOST_BODY_BYTES = 20_000
_MOST_ANSWER_BYTES = 50_000_000
# What the server says of a query that it refuses, and no more than that is passed on.
_REFUSALS = (400, 422)


@dataclass(frozen=True, slots=True)
class Upstream:
    """The Prometheus behind.

    Attributes:
        url: Where it is, as seen from here.
        label: The label of its series that says whose they are.
        labels: Those that are told, and may be named, to who does not see all.
        keeps_s: How far back it is asked for those.
    """

    url: str
    label: str = "user"
    labels: frozenset[str] = frozenset(SHOWN_LABELS)
    keeps_s: float = 400 * 86400.0

    def __post_init__(self) -> None:
        if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
            raise InvalidInput(
                f"prometheus is an address such as http://127.0.0.1:9090: {self.url}"
            )

    def routes(self) -> list[Route]:
        """Return where it is asked."""
        both = ["GET", "POST"]
        return [
            *(Route(f"{PATH}/{what}", self._asked(what), methods=both) for what in _QUERIES),
            *(Route(f"{PATH}/{what}", self._asked(what), methods=both) for what in _LISTS),
            Route(f"{PATH}/label/{{label}}/values", self._asked("values"), methods=["GET"]),
        ]

    def _asked(self, what: str) -> Any:
        @for_whom("viewer")
        async def ask(request: Request) -> Response:
            viewer = viewer_of(request)
            path = what
            if what == "values":
                label = request.path_params["label"]
                if not (label.isascii() and label.isidentifier()):
                    return answer(NOT_FOUND, status=404)
                if not (viewer.sees_all or label in self.labels):
                    return answer(NOT_FOUND, status=404)
                path = f"label/{label}/values"
            try:
                given = await _given(request)
            except LowtideError as error:
                return answer(_failed(str(error)), status=400)
            return await to_thread.run_sync(partial(self._answered, viewer, what, path, given))

        return ask

    def _answered(
        self, viewer: Viewer, what: str, path: str, given: Mapping[str, Sequence[str]]
    ) -> Response:
        """Answer a viewer, each with what they may see."""
        owners = limits = None
        if not viewer.sees_all:
            owners = Owners(self.label, metric_owners(viewer))
            limits = Limits(labels=self.labels, now=viewer.now, keeps_s=self.keeps_s)
        try:
            wanted = narrowed(what, given, owners, limits)
        except LowtideError as error:
            return answer(_failed(str(error)), status=400)
        status, document = self.ask(path, wanted)
        if status == 200 and owners is not None:
            document["data"] = _stripped(what, document["data"], self.labels)
        elif status == 200:
            self._note(viewer, path, wanted, document["data"])
        return answer(document, status=status)

    def _note(self, viewer: Viewer, path: str, wanted: Mapping[str, str], data: Any) -> None:
        """Write down what the staff asked for, and for whom it is a look at what is theirs.

        That are those whose series are told, and those of whom a sum has so few that it is told to
        nobody else.
        """
        query = wanted.get("query") or wanted.get("match[]") or path
        viewer.note({""}, f"metrics: {query}", every_s=_AGAIN_S, of_nobody=True)
        series = data.get("result", []) if isinstance(data, dict) else data
        metrics = [
            each.get("metric", each) for each in (series or ()) if isinstance(each, dict)
        ]  # fmt: skip
        seen = {str(each[self.label]) for each in metrics if self.label in each}
        if "query" in wanted:
            seen |= self._summed(viewer, wanted)
        viewer.note(seen, f"metrics: {query}", every_s=_AGAIN_S)

    def _summed(self, viewer: Viewer, wanted: Mapping[str, str]) -> set[str]:
        """Return whose series a query reads, of selectors that read those of a few."""
        try:
            selectors = selector_texts(wanted["query"])
        except LowtideError:
            # What the server has learned since is not read here: its answer says whose it is.
            return set()
        found: set[str] = set()
        for selector, back_s in selectors.items():
            span = {}
            if back_s is not None:
                moment = wanted.get("time", repr(viewer.now))
                first, last = wanted.get("start", moment), wanted.get("end", moment)
                span = {"start": repr(max(float(first) - back_s, 0.0)), "end": last}
            status, told = self.ask(f"label/{self.label}/values", {"match[]": selector, **span})
            owners = set(map(str, told["data"])) if status == 200 else set()
            if len(owners) < viewer.least_users:
                found |= owners
        return found

    def ask(self, path: str, wanted: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Return what the server answers: its data, or why it refuses, and nothing else of it."""
        words = urllib.parse.urlencode(wanted).encode()
        address = f"{self.url.rstrip('/')}/api/v1/{path}"
        is_long = path in _QUERIES
        asked = urllib.request.Request(  # noqa: S310 - its scheme was looked at
            address if is_long else f"{address}?{words.decode()}", data=words if is_long else None
        )
        try:
            with urllib.request.urlopen(asked, timeout=_PATIENCE_S) as response:  # noqa: S310
                body = response.read(_MOST_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            if error.code not in _REFUSALS:
                return 502, _failed("Prometheus does not answer as it should")
            said = _document(error.read(_MOST_BODY_BYTES))
            return error.code, _failed(str(said.get("error", "Prometheus refuses the query")))
        except (OSError, ValueError):
            return 502, _failed("Prometheus does not answer")
        if len(body) > _MOST_ANSWER_BYTES:
            return 422, _failed("the answer is too long: ask for less")
        said = _document(body)
        if said.get("status") != "success" or "data" not in said:
            return 502, _failed("Prometheus does not answer as it should")
        return 200, {"status": "success", "data": said["data"]}


def narrowed(
    what: str,
    given: Mapping[str, Sequence[str]],
    owners: Owners | None,
    limits: Limits | None = None,
) -> dict[str, str]:
    """Return what the server is asked, for those who may see a part of it alone.

    Args:
        what: `query`, `query_range`, `series`, `labels` or `values`.
        given: What was asked, by its name.
        owners: Whose series may be seen; None for all.
        limits: What may be named, and how far may be looked; None for everything.
    """
    known = _QUERIES.get(what, _SELECTIONS)
    for name, values in given.items():
        if name not in known:
            raise InvalidInput(f"{name} is not known here: known are {', '.join(known)}")
        if len(values) != 1:
            raise InvalidInput(f"{name} was given {len(values)} times: give it once")
    said = {name: values[0] for name, values in given.items()}
    moments = [name for name in ("time", "start", "end") if name in said]
    wanted: dict[str, str] = {name: _number(name, said[name]) for name in moments}
    if "timeout" in said:
        wanted["timeout"] = f"{min(_seconds('timeout', said['timeout']), _PATIENCE_S):g}s"
    if "limit" in said:
        if not said["limit"].isdecimal():
            raise InvalidInput("limit is a number, such as 100")
        wanted["limit"] = str(int(said["limit"]))
    if limits is not None:
        for name in ("query", "match[]"):
            if name in said:
                limits.check(said[name])
    if what in _QUERIES:
        if "query" not in said:
            raise InvalidInput("query is missing")
        query = said["query"]
        wanted["query"] = query if owners is None else restrict(query, owners)
    elif "match[]" in said:
        selector = said["match[]"]
        wanted["match[]"] = selector if owners is None else restrict_selector(selector, owners)
    elif owners is not None:
        wanted["match[]"] = everything(owners)
    elif what == "series":
        raise InvalidInput("match[] is missing")
    if what == "query_range":
        if missing := [name for name in ("start", "end", "step") if name not in said]:
            raise InvalidInput(f"{missing[0]} is missing")
        step_s = _seconds("step", said["step"])
        check_range(float(wanted["start"]), float(wanted["end"]), step_s)
        wanted["step"] = repr(step_s)
    return wanted


def _stripped(what: str, data: Any, labels: frozenset[str]) -> Any:
    """Return an answer without the labels that are not told."""
    if isinstance(data, dict):
        result = data.get("result")
        if isinstance(result, list):
            result = [_without(each, labels) for each in result]
        return {"resultType": data.get("resultType"), "result": result}
    if not isinstance(data, list):
        return None
    if what == "labels":
        return [each for each in data if each in labels]
    return [_kept(each, labels) if isinstance(each, dict) else each for each in data]


def _without(each: Any, labels: frozenset[str]) -> Any:
    if not isinstance(each, dict):
        return each
    return {**each, "metric": _kept(each.get("metric", {}), labels)}


def _kept(metric: Mapping[str, Any], labels: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in metric.items() if name in labels}


async def _given(request: Request) -> dict[str, list[str]]:
    """Return what was asked, from the address or from the body, never from both."""
    in_address = request.url.query
    body = b""
    if request.method == "POST":
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BODY_BYTES:
                raise InvalidInput(f"a question has {_MOST_BODY_BYTES} bytes at most")
    if in_address and body:
        raise InvalidInput("ask in the address or in the body, not in both")
    try:
        text = in_address or body.decode("ascii")
        return urllib.parse.parse_qs(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict"
        )
    except (ValueError, UnicodeDecodeError):
        raise InvalidInput("what was asked cannot be understood") from None


def _number(name: str, text: str) -> str:
    """Return a moment, as a number of seconds or as RFC 3339 has it, as seconds."""
    try:
        moment = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text).timestamp()
        except ValueError:
            moment = math.nan
    if not 0 <= moment <= 1e11:
        raise InvalidInput(f"{name} is a moment, such as 1700000000 or 2023-11-14T22:13:20Z")
    return repr(moment)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = parse_duration(text)
    if not 0 < seconds <= 1e9:
        raise InvalidInput(f"{name} is longer than 0 s, such as 30 or 30s, not {text!r}")
    return seconds


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _failed(words: str) -> dict[str, Any]:
    return {"status": "error", "errorType": "bad_data", "error": words}
