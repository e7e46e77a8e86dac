"""Pieces that come at about the same time are written together: one commit for all of them.

A node that is alone is answered at once. Where several push, a piece waits a moment for others, and
while some are being written those that arrive wait for their turn: the more come, the more go at
once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from anyio import to_thread

from lowtide.errors import StoreProblem
from lowtide.serve.ingest import Arrival, Receipt, receive_all
from lowtide.store.database import Database

# How long the first waits for others where others were there the last time.
_WAIT_S = 0.1
_MOST_PIECES = 100
_MOST_BYTES = 4_000_000
# Of what waits there is no more than this in memory: whoever comes then is to come again.
_MOST_WAITING_BYTES = 64_000_000

_Waiting = tuple[Arrival, "asyncio.Future[Receipt]"]


@dataclass(slots=True)
class GroupCommit:
    """Takes pieces for a store.

    Attributes:
        database: The store.
        clock: Says what time it is, epoch seconds.
    """

    database: Database
    clock: Callable[[], float]
    _waiting: deque[_Waiting] = field(default_factory=deque, init=False)
    _bytes: int = field(default=0, init=False)
    _at_work: asyncio.Task[None] | None = field(default=None, init=False)

    async def take(self, arrival: Arrival) -> Receipt:
        """Take a piece with those that come at the same time; return once it is safe."""
        if self._bytes + len(arrival.body) > _MOST_WAITING_BYTES:
            raise StoreProblem("more pieces wait than the store takes", where=self.database.name)
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrival, answer))
        self._bytes += len(arrival.body)
        if self._at_work is None:
            self._at_work = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        together = 1
        try:
            while self._waiting:
                if together > 1 and len(self._waiting) < together:
                    await asyncio.sleep(_WAIT_S)
                taken = self._next()
                together = len(taken)
                await self._write(taken)
        finally:
            self._at_work = None

    def _next(self) -> list[_Waiting]:
        """Return what is written next: one piece of each node, the first first."""
        taken: dict[tuple[str, str], _Waiting] = {}
        later: list[_Waiting] = []
        size = 0
        while self._waiting and len(taken) < _MOST_PIECES and size < _MOST_BYTES:
            arrival, answer = self._waiting.popleft()
            host = (arrival.sender.cluster, arrival.sender.host)
            if host in taken:
                later.append((arrival, answer))
            else:
                taken[host] = (arrival, answer)
                size += len(arrival.body)
        self._waiting.extendleft(reversed(later))
        self._bytes -= size
        return list(taken.values())

    async def _write(self, taken: Sequence[_Waiting]) -> None:
        arrivals = [arrival for arrival, _ in taken]
        do = partial(receive_all, self.database, arrivals, now=self.clock())
        try:
            receipts = await to_thread.run_sync(do)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            for _, answer in taken:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), receipt in zip(taken, receipts, strict=True):
            # Who went away meanwhile is told when they come again.
            if not answer.done():
                answer.set_result(receipt)
