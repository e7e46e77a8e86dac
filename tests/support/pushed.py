"""Nodes that push to a centre, without any network between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from lowtide.monitor.snapshot import JobFacts, Unit
from lowtide.serve import schema
from lowtide.serve.ingest import PieceOrigin, Receipt, receive
from lowtide.store import Store
from lowtide.store.database import Database
from lowtide.store.outbox import Outbox, Parcel
from lowtide.store.tables import bring_up_to_date
from support.ticks import START, Watcher

CLUSTER = "alps"


@contextmanager
def centre(where: str) -> Iterator[Database]:
    """Make a centre."""
    database = Database(where)
    bring_up_to_date(database)
    schema.bring_centre_up_to_date(database)
    try:
        yield database
    finally:
        database.close()


@dataclass
class Node:
    """A node with a store of its own, that is watched.

    Attributes:
        path: Its store.
        also: Another store that gets the very same, to compare with.
    """

    path: Path
    host: str = "n1"
    also: Store | None = None
    time: float = START
    tells_all: bool = True
    store: Store = field(init=False)
    watcher: Watcher = field(init=False)
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        self.watcher = Watcher(host=self.host, time=self.time)
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.path)
        self.outbox = self.store.outbox(self.host)
        self.outbox.cluster = CLUSTER

    def restart(self) -> None:
        """End watching, and begin anew: counters of the watcher begin at nothing."""
        self.store.close()
        self.watcher = Watcher(host=self.host, time=self.watcher.time)
        self.open()

    def tick(self, units: Sequence[Unit], **how: Any) -> None:
        found = self.watcher.tick(units, **how)
        self.store.append(found)
        if self.also is not None:
            self.also.append(found)

    def put_facts(self, facts: Sequence[JobFacts]) -> None:
        self.store.put_facts(facts)
        if self.also is not None:
            self.also.put_facts(facts)

    def sender(self, parcel: Parcel) -> PieceOrigin:
        return PieceOrigin(
            cluster=CLUSTER,
            host=self.host,
            incarnation=parcel.incarnation,
            seq=parcel.seq,
            tells_all=self.tells_all,
        )

    def push(self, database: Database, *, most: int = 1000) -> list[Receipt]:
        """Push all that there is, or so many pieces."""
        answers: list[Receipt] = []
        while len(answers) < most:
            parcel = self.outbox.next(now=self.watcher.time)
            if parcel is None:
                break
            answers.append(
                receive(database, self.sender(parcel), parcel.body, now=self.watcher.time)
            )
            self.outbox.acknowledge(parcel)
        return answers


def rows(database: Database, table: sa.Table) -> list[dict[str, Any]]:
    """Return all rows of a table, in an order of their own."""
    with database.reading() as connection:
        found = connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
        return [dict(row) for row in found]
