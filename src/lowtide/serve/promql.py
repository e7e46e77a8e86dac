"""PromQL that sees what a viewer may see: a matcher more in every selector, or a refusal.

A query is parsed, written anew with the matcher in each selector, and parsed again: what comes of
that must be the same tree but for the matcher. The parser's own writers are not used: one of them
writes strings without escapes, so that a label's value could become a matcher, and the other loses
what was added. What is not known here is refused, whatever a newer server makes of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import promql_parser as promql

from lowtide.errors import InvalidInput, LowtideError
from lowtide.units import format_duration

# As many points as a server answers with, and no more steps within a subquery.
MOST_POINTS = 11_000
_LONGEST_QUERY = 10_000
# The parser calls itself for each of these; too deep, it takes the whole process along.
_DEEPENS = re.compile(r"[(\-+*/%^<>=!]|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_DEEPEST = 150
_NAME = re.compile(r"[a-zA-Z_]\w*", re.ASCII)
_METRIC = re.compile(r"[a-zA-Z_:][\w:]*", re.ASCII)
_LABEL = re.compile(r"\w+", re.ASCII)
_IN_BRACKETS = re.compile(r"\(([^)]*)\)")
_OFFSET = re.compile(r"offset -?(\d+)ms")
_AT = re.compile(r"@ ([\d.]+)")
_OPERATORS = {
    str(promql.MatchOp.Equal): "=",
    str(promql.MatchOp.NotEqual): "!=",
    str(promql.MatchOp.Re): "=~",
    str(promql.MatchOp.NotRe): "!~",
}
# It joins series that no selector names.
_REFUSED_FUNCTIONS = frozenset(("info",))
_SIDES = {
    str(promql.VectorMatchCardinality.ManyToOne): "group_left",
    str(promql.VectorMatchCardinality.OneToMany): "group_right",
}

# A node as nested tuples, so that two trees can be compared.
_Tree = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Owners:
    r"""Whose series may be seen.

    Attributes:
        label: The label that says whose a series is.
        values: What it may be; at least one, and none of them empty: series without the label are
            nobody's, and have it empty.

    >>> Owners("user", ("ada", "b.b")).matcher
    ('user', '=~', 'ada|b\\.b')
    """

    label: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.label):
            raise InvalidInput(f"a label is letters, digits and _, not {self.label!r}")
        if not self.values or not all(self.values):
            raise InvalidInput(f"whose {self.label} may be seen is a list of names, none empty")

    @property
    def matcher(self) -> tuple[str, str, str]:
        """The label, the operator and the value; regular expressions match a value as a whole."""
        return self.label, "=~", "|".join(map(_literal, self.values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a query may name, and how far it may look.

    Attributes:
        labels: The labels that may be named; what others hold is not for everybody.
        keeps_s: How long the server keeps what it has.
    """

    labels: frozenset[str]
    now: float
    keeps_s: float

    def check(self, query: str) -> None:
        """Refuse a query that goes beyond."""
        with _careful():
            for node in _nodes(_tree(_parsed(query), None)):
                for name in _named_labels(node):
                    if name not in self.labels:
                        raise InvalidInput(
                            f"the label {name!r} is not known here: known are "
                            f"{', '.join(sorted(self.labels))}"
                        )
                self._check_reach(node)

    def _check_reach(self, node: _Tree) -> None:
        moved = str(node[-1]) if node[0] in ("selector", "subquery") else ""
        reach_s = [float(found) / 1000 for found in _OFFSET.findall(moved)]
        reach_s += [abs(self.now - float(found)) for found in _AT.findall(moved)]
        if node[0] in ("range", "subquery"):
            reach_s.append(node[2] / timedelta(seconds=1))
        if max(reach_s, default=0.0) > self.keeps_s:
            raise InvalidInput(
                f"what is asked about is {format_duration(self.keeps_s)} from now at most, and "
                "ranges and offsets are no longer"
            )


def selector_texts(query: str) -> dict[str, float | None]:
    """Return the selectors of a query, and how far back of its time it looks.

    It is None, for all of them, where the query looks at moments of its own.
    """
    with _careful():
        nodes = list(_nodes(_tree(_parsed(query), None)))
    back_s: float | None = 300.0
    for node in nodes:
        if node[0] in ("selector", "subquery") and node[-1]:
            back_s = None
        elif node[0] in ("range", "subquery") and back_s is not None:
            back_s += node[2] / timedelta(seconds=1)
    return {f"{node[1] or ''}{{{_matchers(node[2])}}}": back_s for node in nodes
            if node[0] == "selector"}  # fmt: skip


def _named_labels(node: _Tree) -> Iterator[str]:
    """Yield the labels that a part of a query names itself."""
    match node:
        case ("selector", _, said, _):
            yield from (name for name, _, _ in said)
        case ("aggregate", operator, grouping, *inner):
            yield from _LABEL.findall("".join(_IN_BRACKETS.findall(grouping)))
            if operator == "count_values" and inner[0][0] == "string":
                yield inner[0][1]
        case ("operator", _, matching, *_):
            yield from _LABEL.findall(" ".join(_IN_BRACKETS.findall(matching)))
        case ("call", "label_replace", _, to, _, source, _):
            yield from (each[1] for each in (to, source))
        case ("call", "label_join", _, to, _, *sources):
            yield from (each[1] for each in (to, *sources))


def restrict(query: str, owners: Owners) -> str:
    """Return a query that sees the series of some owners alone.

    >>> restrict("sum by (host) (lowtide_power_watts)", Owners("user", ("ada",)))
    'sum by (host) (lowtide_power_watts{user=~"ada"})'
    """
    with _careful():
        before = _parsed(query)
        text = _written(before, owners)
        if _tree(_read(text), None) != _tree(before, owners):
            raise InvalidInput("this query cannot be read the same way twice: write it plainer")
        return text


def restrict_selector(selector: str, owners: Owners) -> str:
    """Return a selector, as the label and series endpoints take them, for some owners alone.

    >>> restrict_selector('{host="n1"}', Owners("user", ("ada",)))
    '{host="n1",user=~"ada"}'
    """
    with _careful():
        if not isinstance(_parsed(selector), promql.VectorSelector):
            raise InvalidInput("match[] takes a selector, such as lowtide_power_watts{host='n1'}")
    return restrict(selector, owners)


def everything(owners: Owners) -> str:
    """Return the selector of all that some owners have, for endpoints that were given none."""
    return "{" + _matchers([owners.matcher]) + "}"


def check_range(start_s: float, end_s: float, step_s: float) -> None:
    """Refuse a range of more points than a server answers with."""
    if not (all(map(math.isfinite, (start_s, end_s, step_s))) and step_s > 0 and end_s >= start_s):
        raise InvalidInput("a range has a start, an end after it, and a step of more than 0 s")
    if (end_s - start_s) / step_s >= MOST_POINTS:
        raise InvalidInput(f"a range has {MOST_POINTS} points at most: take a longer step")


def selectors(query: str) -> int:
    """Return how many selectors a query has."""
    with _careful():
        return sum(node[0] == "selector" for node in _nodes(_tree(_parsed(query), None)))


@contextmanager
def _careful() -> Iterator[None]:
    """Refuse what the parser breaks at."""
    try:
        yield
    except LowtideError:
        raise
    except BaseException as error:
        # Its panics are no exceptions to Python: a time before 1970 makes one.
        broken = isinstance(error, RecursionError | ValueError | OverflowError)
        if not broken and type(error).__name__ != "PanicException":
            raise
        raise InvalidInput("this query cannot be checked, and is refused") from None


def _parsed(query: str) -> Any:
    if len(query) > _LONGEST_QUERY:
        raise InvalidInput(f"a query has {_LONGEST_QUERY} characters at most, not {len(query)}")
    if (depth := len(_DEEPENS.findall(query))) > _DEEPEST:
        raise InvalidInput(f"a query has {_DEEPEST} operators and calls at most, not {depth}")
    return _read(query)


def _read(query: str) -> Any:
    try:
        return promql.parse(query)
    except ValueError as error:
        raise InvalidInput(f"this is no PromQL that can be checked: {error}") from None


def _written(node: Any, owners: Owners) -> str:
    """Return a query for what was parsed, with the owners' matcher in every selector."""
    match node:
        case promql.NumberLiteral():
            return _number(node.val)
        case promql.StringLiteral():
            return _string(node.val)
        case promql.ParenExpr():
            return f"({_written(node.expr, owners)})"
        case promql.UnaryExpr():
            return f"-({_written(node.expr, owners)})"
        case promql.VectorSelector():
            return _selector(node, owners) + _moved(node)
        case promql.MatrixSelector():
            of = node.vector_selector
            return f"{_selector(of, owners)}[{_duration(node.range)}]{_moved(of)}"
        case promql.SubqueryExpr():
            step = "" if node.step is None else _duration(node.step)
            span = f"[{_duration(node.range)}:{step}]"
            return f"({_written(node.expr, owners)}){span}{_moved(node)}"
        case promql.Call():
            arguments = ", ".join(_written(each, owners) for each in node.args)
            return f"{node.func.name}({arguments})"
        case promql.AggregateExpr():
            parts = [each for each in (node.param, node.expr) if each is not None]
            inner = ", ".join(_written(each, owners) for each in parts)
            return f"{node.op}{_grouping(node.modifier)} ({inner})"
        case promql.BinaryExpr():
            left, right = (_written(each, owners) for each in (node.lhs, node.rhs))
            return f"({left}) {node.op}{_matching(node.modifier)} ({right})"
    raise InvalidInput(f"a query with {type(node).__name__} cannot be checked")


def _selector(node: Any, owners: Owners) -> str:
    return f"{node.name or ''}{{{_matchers([*_said(node), owners.matcher])}}}"


def _said(node: Any) -> Iterator[tuple[str, str, str]]:
    """Yield what a selector asks for; refuse what cannot be narrowed."""
    if node.matchers.or_matchers:
        raise InvalidInput("matchers joined by 'or' cannot be narrowed: write two selectors")
    if node.name is not None and not _METRIC.fullmatch(node.name):
        raise InvalidInput(f"the name of a metric is letters, digits, _ and :, not {node.name!r}")
    for each in node.matchers.matchers:
        if not _NAME.fullmatch(each.name):
            raise InvalidInput(f"a label is letters, digits and _, not {each.name!r}")
        yield each.name, _OPERATORS[str(each.op)], each.value


def _matchers(those: Collection[tuple[str, str, str]]) -> str:
    return ",".join(f"{name}{operator}{_string(value)}" for name, operator, value in those)


def _moved(node: Any) -> str:
    """Return by how much, and to when, a selector or a subquery looks elsewhere than now."""
    at, offset = _when(node.at), node.offset
    words = "" if at is None else f" @ {at}"
    if offset is not None:
        sign = "-" if offset < timedelta() else ""
        words += f" offset {sign}{_duration(abs(offset))}"
    return words


def _when(at: Any) -> str | None:
    if at is None:
        return None
    if at.at is not None:
        return f"{at.at.timestamp():.3f}"
    return "start()" if at.type == promql.AtModifierType.Start else "end()"


def _grouping(modifier: Any) -> str:
    if modifier is None:
        return ""
    word = "by" if modifier.type == promql.AggModifierType.By else "without"
    return f" {word} {_labels(modifier.labels)}"


def _matching(modifier: Any) -> str:
    if modifier is None:
        return ""
    if modifier.fill_values.lhs is not None or modifier.fill_values.rhs is not None:
        raise InvalidInput("a query that fills in values cannot be checked")
    words = " bool" if modifier.return_bool else ""
    if modifier.matching is not None:
        on = modifier.matching.type == promql.LabelModifierType.Include
        words += f" {'on' if on else 'ignoring'} {_labels(modifier.matching.labels)}"
    if side := _SIDES.get(str(modifier.card)):
        words += f" {side} {_labels(modifier.group_labels or ())}"
    return words


def _labels(names: Collection[str]) -> str:
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"a label is letters, digits and _, not {name!r}")
    return f"({', '.join(names)})"


def _duration(length: timedelta | None) -> str:
    if length is None:
        raise InvalidInput("a range needs a length")
    return f"{round(length / timedelta(milliseconds=1))}ms"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("-Inf" if value < 0 else "Inf") if math.isinf(value) else repr(value)


def _string(value: str) -> str:
    """Return a string as both PromQL and JSON write it, whatever is in it."""
    if any(0xD800 <= ord(each) <= 0xDFFF or each == "\0" for each in value):
        raise InvalidInput("a string holds characters that are none")
    # JSON writes a character beyond the first 65,536 as two escapes, which PromQL would not join.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f").replace("\\/", "/")


def _literal(text: str) -> str:
    """Return a regular expression, as the server's library reads them, for a text alone."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def _tree(node: Any, owners: Owners | None) -> _Tree:
    """Return a query as nested tuples, its selectors with the owners' matcher besides."""
    match node:
        case promql.ParenExpr():
            # They are where operators bind anyway.
            return _tree(node.expr, owners)
        case promql.NumberLiteral():
            return "number", _number(node.val)
        case promql.StringLiteral():
            return "string", node.val
        case promql.UnaryExpr():
            return "minus", _tree(node.expr, owners)
        case promql.VectorSelector():
            more = () if owners is None else (owners.matcher,)
            return "selector", node.name, (*_said(node), *more), _moved(node)
        case promql.MatrixSelector():
            return "range", _tree(node.vector_selector, owners), node.range
        case promql.SubqueryExpr():
            span, step = node.range, node.step
            if span is not None and step is not None and span / step >= MOST_POINTS:
                raise InvalidInput(f"a subquery has {MOST_POINTS} steps at most: take longer ones")
            return "subquery", _tree(node.expr, owners), node.range, node.step, _moved(node)
        case promql.Call():
            if node.func.experimental or node.func.name in _REFUSED_FUNCTIONS:
                raise InvalidInput(f"{node.func.name}() cannot be checked, and is refused")
            return "call", node.func.name, *(_tree(each, owners) for each in node.args)
        case promql.AggregateExpr():
            parts = [each for each in (node.param, node.expr) if each is not None]
            inner = (_tree(each, owners) for each in parts)
            return "aggregate", str(node.op), _grouping(node.modifier), *inner
        case promql.BinaryExpr():
            both = (_tree(each, owners) for each in (node.lhs, node.rhs))
            return "operator", str(node.op), _matching(node.modifier), *both
    raise InvalidInput(f"a query with {type(node).__name__} cannot be checked")


def _nodes(tree: _Tree) -> Iterator[_Tree]:
    yield tree
    for each in tree:
        if isinstance(each, tuple) and each and isinstance(each[0], str):
            yield from _nodes(each)
