"""A machine's own centre: its store, read as nodes' pieces are, into tables of the server's own.

The store is only read, so that everybody who may read it can have pages of it while a watcher
writes. What the centre makes of it is made anew at each start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from lowtide.errors import StoreProblem
from lowtide.serve.ingest import PieceOrigin, receive
from lowtide.store.database import Database
from lowtide.store.jobs import read_hosts
from lowtide.store.outbox import Draft
from lowtide.store.pieces import seal
from lowtide.store.tables import CONTENTS, chunks, present

_INCARNATION = "here"


@dataclass(slots=True)
class Mirror:
    """Keeps a centre in step with a store on the same machine.

    Attributes:
        source: The store, which is only read.
        centre: Where it is brought to.
    """

    source: Database
    centre: Database
    _states: dict[str, Any] = field(default_factory=dict, init=False)
    _sent: dict[str, dict[int, Any]] = field(default_factory=dict, init=False)

    def catch_up(self, *, now: float, most: int | None = None) -> int:
        """Bring over what is new, and return how many pieces that were.

        Args:
            most: Stop after so many; None to go on until nothing is left.
        """
        with self.source.reading() as connection:
            if len(present(connection)) < len(CONTENTS):
                raise StoreProblem(
                    f"the store {self.source.name} was written by an older lowtide: run lowtide "
                    "watch once, which brings it up to date",
                    where=self.source.name,
                )
            known = [each.name for each in read_hosts(connection)]
        done = 0
        for host in known:
            while (most is None or done < most) and self._bring(host, now):
                done += 1
        return done

    def _bring(self, name: str, now: float) -> bool:
        """Bring over the next piece of a host; return whether there was one."""
        with self.source.reading() as connection:
            host = next(each for each in read_hosts(connection) if each.name == name)
            state = self._states.get(name)
            if state is None:
                newest = connection.execute(sa.select(sa.func.max(chunks.c.id))).scalar() or 0
                state = SimpleNamespace(chunk=0, tick=0, first=newest, continues="", seq=0)
                self._states[name] = state
            sent = self._sent.setdefault(name, {})
            draft = Draft(connection, state, host, cluster="", now=now, sent=sent)
            if draft.is_empty:
                return False
        sender = PieceOrigin(
            cluster="", host=name, incarnation=_INCARNATION, seq=state.seq + 1, tells_all=True
        )
        receive(self.centre, sender, seal(draft.piece), now=now)
        state.seq += 1
        state.chunk, state.tick = draft.last_chunk, draft.last_tick
        for row in draft.digests:
            if row["digest"] is None:
                sent.pop(row["job"], None)
            else:
                sent[row["job"]] = SimpleNamespace(**row)
        return True
