"""Following one job closely: what it draws many times a second, as a recording to learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lowtide.errors import UnknownName
from lowtide.formats.recording_writer import RecordingWriter
from lowtide.monitor.snapshot import Unit
from lowtide.monitor.tick import Tick

# A job that was not seen for this long is over.
_GONE_S = 2.0
# What is kept of each tick besides power.
_COLUMNS = (
    "cpus_busy",
    "memory_bytes",
    "read_bytes",
    "written_bytes",
    "gpus_busy",
    "gpu_memory_bytes",
)


def find_job(tick: Tick, job_id: str) -> Unit:
    """Return the job of an id."""
    found = [unit for unit in tick.units if unit.job_id == job_id]
    if not found:
        raise UnknownName("job on this node", job_id, [each.job_id for each in tick.units])
    # A number that is used again is the younger one's.
    return max(found, key=lambda unit: unit.started)


@dataclass(slots=True, kw_only=True)
class JobRecorder:
    """Writes the ticks of one job into a recording, until the job is over.

    Attributes:
        unit: The job.
        writer: Where they go.
        meters: Which meters are read, in words.
        over: Called once the job has ended.
    """

    unit: Unit
    writer: RecordingWriter
    meters: list[str] = field(default_factory=list)
    over: Callable[[], None]
    _last: float = field(default=0.0, init=False)

    def begin(self, tick: Tick) -> None:
        """Begin its recording."""
        self._last = tick.time
        self.writer.begin(
            f"{self.unit.source}_{self.unit.job_id}",
            power="measured" if tick.shares.measured else "estimated",
            meters=self.meters,
        )
        self.writer.start(tick.time)

    def take(self, tick: Tick) -> None:
        """Write down what the job did since the tick before."""
        for place, unit in enumerate(tick.units):
            if unit.key == self.unit.key:
                self._last = tick.time
                self.writer.append(
                    tick.since,
                    float(tick.shares.power_w[place]),
                    {name: float(getattr(tick, name)[place]) for name in _COLUMNS},
                )
                return
        # What does nothing for a moment may be left out of a tick; what is over stays away.
        if tick.time - self._last > _GONE_S:
            self.over()

    def close(self) -> None:
        """Say when it ended, as far as was seen."""
        self.writer.end(self._last)
