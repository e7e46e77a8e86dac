"""Queries for a viewer: two worlds that differ in other people's data alone must answer alike."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest

from lowtide.errors import InvalidInput, LowtideError
from lowtide.serve.promql import (
    Owners,
    check_range,
    everything,
    restrict,
    restrict_selector,
    selectors,
)
from support.nightly import drawn
from support.prometheus import Prometheus
from support.promql_worlds import LABELS, METRICS, NOW, two_worlds

ADA = Owners("user", ("ada",))
VALUES = ("ada", "bob", "n1", "7", "", ".*", "a.*|b.*", 'x" or user="bob', "}", "\\", "ü", "a\nb")
FUNCTIONS = ("abs", "ceil", "scalar", "absent", "timestamp", "sort", "vector", "sgn", "exp")
OVER_TIME = ("rate", "increase", "sum_over_time", "count_over_time", "absent_over_time", "changes")
AGGREGATIONS = ("sum", "max", "count", "min", "group", "avg", "stddev")
OPERATORS = ("+", "-", "*", "/", "%", "^", "==", ">", "<= bool", "and", "or", "unless", "atan2")


class Grammar:
    """Draws expressions, hostile ones among them, most of which a server takes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *options: str) -> str:
        return self.random.choice(options)

    def text(self) -> str:
        return json.dumps(self.one(*VALUES), ensure_ascii=False)

    def labels(self) -> str:
        return ", ".join(self.random.sample(LABELS, self.random.randint(0, 2)))

    def selector(self) -> str:
        some = [
            f"{self.one(*LABELS)}{self.one('=', '!=', '=~', '!~')}{self.text()}"
            for _ in range(self.random.randint(0, 2))
        ]
        if self.random.random() < 0.15:
            return "{" + ",".join([f'__name__=~"{self.one(*METRICS)[:2]}.*"', *some]) + "}"
        matchers = "{" + self.one(",", ", ", ",").join(some) + "}" if some else ""
        return self.one(*METRICS) + matchers

    def moved(self) -> str:
        if self.random.random() < 0.7:
            return ""
        return self.one(" offset 1m", f" @ {NOW - 60}", " offset -1m", " @ start()", " @ end()")

    def ranged(self, depth: int) -> str:
        if self.random.random() < 0.7 or not depth:
            return f"{self.selector()}[{self.one('2m', '5m', '90s')}]{self.moved()}"
        step = self.one("30s", "1m", "")
        return f"({self.expression(depth - 1)})[{self.one('2m', '5m')}:{step}]{self.moved()}"

    def expression(self, depth: int) -> str:
        if not depth or self.random.random() < 0.15:
            if self.random.random() < 0.1:
                return self.one("1", "0.5", "-2", "Inf", "time()", "vector(3)")
            return f"{self.selector()}{self.moved()}"
        kind = self.random.randrange(9)
        inner = self.expression(depth - 1)
        if kind == 0:
            return f"{self.one(*FUNCTIONS)}({inner})"
        if kind == 1:
            return f"{self.one(*OVER_TIME)}({self.ranged(depth)})"
        if kind == 2:
            word = self.one("by", "without")
            return f"{self.one(*AGGREGATIONS)} {word} ({self.labels()}) ({inner})"
        if kind == 3:
            # Aggregations take a parameter, in which there may be a selector as well.
            number = self.one("1", "2", f"scalar({self.expression(depth - 1)})")
            return f"{self.one('topk', 'bottomk', 'quantile')}({number}, {inner})"
        if kind == 4:
            return f'count_values("{self.one(*LABELS, "new")}", {inner})'
        if kind == 5:
            source, to = self.one(*LABELS), self.one(*LABELS, "new")
            return f'label_replace({inner}, "{to}", "$1-x", "{source}", "(.*)")'
        if kind == 6:
            return f"-({inner})"
        on = self.one("", "", f" on ({self.labels()})", f" ignoring ({self.labels()})")
        group = self.one("", "", "", f" group_left ({self.labels()})") if on else ""
        return f"({inner}) {self.one(*OPERATORS)}{on}{group} {self.expression(depth - 1)}"


# Of a rate over nothing this Prometheus asks for less than no room. Whether it stumbles over that
# depends on what room is left of earlier queries, and not on what anybody did.
STUMBLED = "runtime error: makeslice: cap out of range"


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Prometheus]]:
    with two_worlds(tmp_path_factory.mktemp("worlds")) as both:
        yield both


def ask(server: Prometheus, what: str, **arguments: str) -> tuple[int, str]:
    """Return the status and the answer, its series in order: the server has none for sums."""
    address = f"{server.url}/api/v1/{what}?{urllib.parse.urlencode(arguments, doseq=True)}"
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            data = json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    if isinstance(data, dict) and isinstance(data["result"], list):
        data["result"] = sorted(map(json.dumps, data["result"]))
    return 200, json.dumps(data)


def test_nothing_of_others_is_seen(worlds: tuple[Prometheus, Prometheus]) -> None:
    grammar = Grammar(drawn(1, 2))
    answered = told = refused = stumbled = 0
    for _ in range(drawn(400, 10_000)):
        query = grammar.expression(grammar.random.randint(0, 4))
        try:
            narrow = restrict(query, ADA)
        except LowtideError:
            refused += 1
            continue
        assert narrow.count('user=~"ada"') >= selectors(query)
        one, two = (ask(each, "query", query=narrow, time=str(NOW)) for each in worlds)
        if STUMBLED in one[1] + two[1]:
            stumbled += 1
            continue
        assert one == two, (query, narrow)
        answered += one[0] == 200 and "[]" not in one[1]
        wide = [ask(each, "query", query=query, time=str(NOW)) for each in worlds]
        told += wide[0] != wide[1]
    # As they stand, most would have told of others, and narrowed many still have an answer.
    assert told > drawn(100, 2500), told
    assert answered > drawn(60, 1500), (answered, refused)
    assert stumbled < drawn(400, 10_000) / 100, stumbled
    print(
        f"{told} differ as they stand, {answered} answered narrowed, {refused} refused, "
        f"{stumbled} times it stumbled"
    )


def test_what_one_owner_has_is_answered_as_before(
    worlds: tuple[Prometheus, Prometheus],
) -> None:
    """Whoever asks for own series alone gets what the plain query gets."""
    for query in (
        'sum by (host) (power{user="ada"})',
        'rate(energy_total{user="ada"}[5m]) * on (host, job_id) group_left power{user="ada"}',
        'max_over_time((power{user="ada"} ^ 2 - 1)[5m:30s] offset 1m)',
        'topk(2, power{user="ada"}) or -power{user="ada",host!="n1"}',
        'label_replace(power{user="ada"}, "x", "$1", "host", "n(.*)")',
        "1 + 1",
        "-2 ^ 2",
        'quantile(0.5, power{user="ada"}) > bool 3',
    ):
        plain, narrow = (
            ask(worlds[0], "query", query=each, time=str(NOW))
            for each in (query, restrict(query, ADA))
        )
        assert plain == narrow
        assert plain[0] == 200 and "[]" not in plain[1], query


def test_labels_and_series_are_narrowed(worlds: tuple[Prometheus, Prometheus]) -> None:
    span = {"start": str(NOW - 3600), "end": str(NOW)}
    for what in ("series", "labels", *(f"label/{label}/values" for label in LABELS)):
        for said in (everything(ADA), restrict_selector('{kind=~".+"}', ADA)):
            one, two = (ask(each, what, **span, **{"match[]": said}) for each in worlds)
            assert one == two
            assert "bob" not in one[1] and len(one[1]) > 4
    wide = [ask(each, "series", **span, **{"match[]": '{kind=~".+"}'}) for each in worlds]
    assert wide[0] != wide[1]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ('power{user="ada" or user="bob"}', "or"),
        ("info(power)", "info"),
        ("sort_by_label(power, 'user')", "sort_by_label"),
        ('{"power"="x"} + {"a b"="c"}', "label"),
        ('sum by ("a b") (power)', "label"),
        ("power[1h:0.1s]", "PromQL"),
        ("power[200h:1s]", "subquery"),
        ("power @ -5", "refused"),
        ("power @ 1e15", "refused"),
        ("power + " * 4000 + "power", "characters"),
        ("power+" * 1000 + "power", "operators"),
        ("(" * 4000 + "power" + ")" * 4000, "operators"),
        ("-" * 9000 + "power", "operators"),
        ('power{user="\\x00"}', "characters"),
        ("power{", "PromQL"),
        ("", "PromQL"),
        ("power smoothed", "PromQL"),
        ("power{user='a'} fill(3) power", "PromQL"),
    ],
)
def test_what_cannot_be_checked_is_refused(query: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        restrict(query, ADA)


def test_a_string_stays_a_string() -> None:
    query = 'power{host="x\\"} or power{user=\\"bob"}'
    assert restrict(query, ADA) == 'power{host="x\\"} or power{user=\\"bob",user=~"ada"}'
    assert selectors(query) == 1


def test_owners_are_taken_by_their_letters() -> None:
    odd = Owners("user", ("a.b", "c|d", "x\\", "[e]", "^f$", "g{2}"))
    assert restrict("power", odd) == (
        'power{user=~"a\\\\.b|c\\\\|d|x\\\\\\\\|\\\\[e\\\\]|\\\\^f\\\\$|g\\\\{2\\\\}"}'
    )
    for wrong in (("user", ()), ("user", ("",)), ("user", ("ada", "")), ("us er", ("ada",))):
        with pytest.raises(InvalidInput):
            Owners(*wrong)


def test_only_selectors_select() -> None:
    for wrong in ("sum(power)", "1", "power[5m]", "power or power", "(power)"):
        with pytest.raises(InvalidInput, match="selector"):
            restrict_selector(wrong, ADA)


def test_a_range_has_so_many_points() -> None:
    check_range(0, 10_999, 1)
    for wrong in ((0, 11_000, 1), (5, 0, 1), (0, 1, 0), (0, 1, -1), (0, float("inf"), 1)):
        with pytest.raises(InvalidInput):
            check_range(*wrong)
