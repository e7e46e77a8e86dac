"""A centre, read as a store: the same jobs, courses and nodes, as far as one may see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self
from urllib.parse import quote, urlencode

import numpy as np

from lowtide.centre.account import CentreLogin
from lowtide.errors import InvalidInput, Refused, Unreachable
from lowtide.monitor.snapshot import FloatArray
from lowtide.store import JobRecord, Series, Store
from lowtide.store.jobs import JobTable, Question
from lowtide.store.layout import FACTS, NODE, TOTALS, UNIT
from lowtide.store.records import HostRecord
from lowtide.store.series import names_of
from lowtide.store.tables import split

_API = "/api/v1"
# Of so many nodes courses are asked for; nobody reads sums of more in a terminal.
MOST_NODES = 64
# So many jobs are named in one question: an address is not endless.
_MOST_IDS = 200
_TEXTS = (
    *("shown_id", "user", "state", "hosts", "ends", "job_id", "source", "account", "partition"),
    *("name", "comment", "nodes", "cluster"),
)


class CentreStore(Store):
    """A store that is read from a centre, and never written.

    Args:
        login: Where it is, and who asks.
    """

    def __init__(self, login: CentreLogin) -> None:
        self._login = login
        # Jobs have a number here for as long as this is open: theirs at the centre are not told.
        self._refs: list[str] = []
        self._ran_on: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of nothing: no connection is kept."""

    def close(self) -> None:
        """Let go of nothing: no connection is kept."""

    @property
    def name(self) -> str:
        """Where it is."""
        return self._login.url

    def table(
        self, question: Question, *, now: float | None = None, whole: bool = True
    ) -> JobTable:
        """Return jobs in columns: as they stand by the centre's clock, and always whole.

        Args:
            now: Is the centre's own.
            whole: They always are.
        """
        del now, whole
        if len(question.ids) <= _MOST_IDS:
            return self._table(question)
        # Some elements of an array are asked for by its number, and chosen here.
        arrays = sorted({each.partition("_")[0] for each in question.ids})
        if len(arrays) > _MOST_IDS:
            raise InvalidInput(f"a centre is asked for {_MOST_IDS} jobs at once: name fewer")
        found = self._table(replace(question, ids=arrays))
        ids, heads = set(question.ids), {f"{each}_" for each in question.ids}
        texts = zip(found.text("job_id"), found.text("shown_id"), strict=True)
        named = [
            job in ids or shown in ids or (shown or "").rstrip("0123456789[]-,:%") in heads
            for job, shown in texts
        ]
        return found.chosen(np.array(named, dtype=bool))

    def phases_of_many(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the phases that were found in jobs, as JSON text by their numbers here."""
        found = {}
        for number in numbers:
            told = self._ask(f"/jobs/{self._ref(number)}/steps", {"end": 0})
            if isinstance(told.get("phases"), str):
                found[number] = told["phases"]
        return found

    def synthetic(self) -> list[tuple[str, float, float]]:
        """Return when which host's grams were those of a synthetic grid."""
        rows = self._ask("/synthetic", {}).get("synthetic") or []
        return [(str(host), float(begins), float(ends)) for host, begins, ends in rows]

    def hosts(self) -> list[HostRecord]:
        """Return the hosts that are or were watched: of many, some on which jobs ran."""
        told = self._ask("/nodes", {})
        rows = told.get("nodes") or []
        # What others did on the nodes is told to those who see all, and so is the sum of the nodes.
        self.has_all_hosts = told.get("whole", True) is True
        if len(rows) > MOST_NODES:
            self.has_all_hosts = False
            rows = [row for row in rows if row["name"] in self._ran_on][:MOST_NODES]
        return [
            HostRecord(
                number=place,
                name=str(row["name"]),
                node_unit=0,
                last_time=_number(row["last_time"]),
                interval_s=_number(row["interval_s"]),
            )
            for place, row in enumerate(rows)
        ]

    def many_series(
        self, records: Iterable[JobRecord], *, start: float | None = None, end: float | None = None
    ) -> Iterator[Series]:
        """Yield what many jobs used over time, one after the other.

        Args:
            start: Only what was later than this moment, epoch seconds.
        """
        for record in records:
            path = f"/jobs/{self._ref(record.number)}/steps"
            yield self._series(path, names_of(UNIT), start, end)

    def many_node_series(
        self, hosts: Sequence[str], *, start: float | None = None, end: float | None = None
    ) -> Iterator[Series]:
        """Yield what many nodes did over time, one after the other.

        Args:
            start: Only what was later than this moment, epoch seconds.
        """
        for host in hosts:
            path = f"/nodes/{quote(host, safe='')}/steps"
            yield self._series(path, names_of(NODE), start, end)

    def _table(self, question: Question) -> JobTable:
        asked: dict[str, Any] = {
            "user": question.users, "account": question.accounts, "name": question.names,
            "partition": question.partitions, "cluster": question.clusters,
            "state": question.states, "host": question.hosts, "source": question.sources,
            "job": question.ids, "start": question.start, "end": question.end,
        }  # fmt: skip
        columns: dict[str, list[Any]] = {name: [] for name in ("id", *_TEXTS)}
        facts, totals = [np.empty((0, len(FACTS)))], [np.empty((0, len(TOTALS)))]
        states: list[str | None] = []
        after: str | None = None
        while True:
            told = self._ask("/table", {**asked, "after": after})
            rows = told.get("jobs")
            if rows is not None:
                first = len(self._refs)
                self._refs += rows["ref"]
                columns["id"] += range(first, len(self._refs))
                for name in _TEXTS:
                    columns[name] += rows["columns"][name]
                facts.append(_matrix(rows["facts"], told["facts"], FACTS))
                totals.append(_matrix(rows["totals"], told["totals"], TOTALS))
                states += rows["states"]
                self._ran_on.update(*map(split, rows["columns"]["hosts"]))
            after = told.get("next")
            if after is None:
                break
        found = JobTable(
            columns=columns, facts=np.concatenate(facts), totals=np.concatenate(totals),
            states=states,
        )  # fmt: skip
        # A centre hears of jobs as nodes come to tell of them; who watches hears as they begin.
        seen = found.total("first_seen")
        heard = np.where(np.isnan(seen), found.number("submitted"), seen)
        return found.chosen(np.argsort(heard, kind="stable"))

    def _series(
        self, path: str, names: Sequence[str], start: float | None, end: float | None
    ) -> Series:
        times: list[float] = []
        step_s: list[float] = []
        columns: dict[str, list[float | None]] = {name: [] for name in names}
        after: float | None = None
        while True:
            told = self._ask(path, {"start": start, "end": end, "after": after})
            times += told["times"]
            step_s += told["step_s"]
            for name, column in columns.items():
                column += told["columns"].get(name) or [None] * len(told["times"])
            after = told.get("next")
            if after is None:
                break
        return Series(
            times=np.array(times, dtype=float),
            step_s=np.array(step_s, dtype=float),
            columns={name: np.array(column, dtype=float) for name, column in columns.items()},
        )

    def _ref(self, number: int) -> str:
        return quote(self._refs[number], safe="")

    def _ask(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in asked.items() if value not in (None, (), [], "")}
        words = urlencode(given, doseq=True)
        try:
            return self._login.ask(f"{_API}{path}" + f"?{words}" * bool(words))
        except (Refused, Unreachable) as error:
            raise type(error)(f"{error}; --store PATH reads a store of this machine") from None


def _matrix(rows: Sequence[Any], told: Sequence[str], wanted: Sequence[str]) -> FloatArray:
    """Return numbers in the order in which this lowtide has them; what it is not told is NaN."""
    given = np.array(rows, dtype=float).reshape(len(rows), len(told))
    place = {name: number for number, name in enumerate(told)}
    made = np.full((len(rows), len(wanted)), np.nan)
    for number, name in enumerate(wanted):
        if name in place:
            made[:, number] = given[:, place[name]]
    return made


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
