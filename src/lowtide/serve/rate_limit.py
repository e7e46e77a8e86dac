"""How often somebody may ask: so that one program that asks without end keeps nobody else waiting.

Each token, and each user's sessions together, may ask so many times in a minute, all at once or
spread out. What was not used comes back with time. It is counted in this process alone, which needs
no store to say no.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

_MINUTE_S = 60.0
# Of so many it is known how often they asked; who did so longest ago is forgotten first.
_MOST_KNOWN = 50_000


@dataclass(slots=True)
class Pace:
    """Counts who asks how often.

    Attributes:
        per_minute: How often each may; 0 for as often as they like.
        clock: Says how much time has passed, seconds.
    """

    per_minute: int
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[Hashable, tuple[float, float]] = field(
        default_factory=OrderedDict, init=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def wait_s(self, who: Hashable) -> float:
        """Count that somebody asks; return for how long they have to wait, 0 where they need not.

        >>> pace = Pace(2, clock=lambda: 0.0)
        >>> [pace.wait_s("ada") for _ in range(3)]
        [0.0, 0.0, 30.0]
        """
        if not self.per_minute:
            return 0.0
        with self._lock:
            now = self.clock()
            left, last = self._left.pop(who, (float(self.per_minute), now))
            left = min(left + (now - last) * self.per_minute / _MINUTE_S, self.per_minute)
            wait_s = 0.0 if left >= 1.0 else (1.0 - left) * _MINUTE_S / self.per_minute
            self._left[who] = (left if wait_s else left - 1.0, now)
            if len(self._left) > _MOST_KNOWN:
                self._left.popitem(last=False)
            return wait_s
