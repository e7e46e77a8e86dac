"""What took long to work out of a job and stays as it is: kept for whoever asks next.

Whoever asks has been given the job's row by then. What is kept follows from the row and from what
was seen of that job, and from nothing of who asks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lowtide.serve.viewer import VisibleJob

_What = TypeVar("_What")


@dataclass(slots=True)
class JobMemory(Generic[_What]):
    """What is known of the jobs that were asked about last.

    Attributes:
        most: Of how many.
    """

    most: int
    _known: OrderedDict[str, tuple[Any, _What]] = field(default_factory=OrderedDict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def of(self, job: VisibleJob, find: Callable[[], _What], *, until: Any = None) -> _What:
        """Return what is known of a job; find it if the job is not as it was.

        Args:
            until: As long as this stays as it is, what was found holds.
        """
        stands = hash(repr(job.record)), until
        with self._lock:
            known = self._known.get(job.ref)
        if known is not None and known[0] == stands:
            return known[1]
        found = find()
        with self._lock:
            self._known[job.ref] = stands, found
            self._known.move_to_end(job.ref)
            if len(self._known) > self.most:
                self._known.popitem(last=False)
        return found
