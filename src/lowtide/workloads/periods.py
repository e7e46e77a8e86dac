"""Phases that repeat: laid out once for the longest job, and cut to the length of each.

Lengths are kept: the last phase is cut where the work ends, never stretched. Checkpoints fall
where they fall, also inside a phase, which is then two phases of the same power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.profile import Phase, PowerProfile
from lowtide.signal import FloatArray
from lowtide.units import format_hours

# A job of a month in phases of a second is a slip; so many phases take a few seconds to set up.
_MOST_PHASES = 10_000_000
# Instants closer than this, relative to the longest job, are the same but for rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Phases that a job goes through again and again, and where it can be resumed.

    Attributes:
        kind: What jobs like this are called in messages.
        phases: One round.
        checkpoint_every_s: How much of the rounds lies between checkpoints; None for none.
        save: Phases that come before every checkpoint, on top of the rounds.
    """

    kind: str
    phases: Sequence[Phase]
    checkpoint_every_s: float | None = None
    save: Sequence[Phase] = ()

    def profiles(
        self, works_s: FloatArray, startups: Sequence[Sequence[Phase]]
    ) -> tuple[PowerProfile, ...]:
        """Return the profiles of jobs of given lengths."""
        if not works_s.size:
            return ()
        longest_s = float(works_s.max())
        self._check_number(works_s)
        phases = self._laid_out(longest_s)
        ends_s = np.cumsum([phase.duration_s for phase in phases])
        # The phase in which each ends; what ends within rounding of a phase's end ends there.
        lasts = np.searchsorted(ends_s, works_s - _ROUNDING * longest_s)
        begins_s = np.concatenate(([0.0], ends_s))[lasts]
        made = []
        for work_s, last, begin_s, startup in zip(
            works_s.tolist(), lasts.tolist(), begins_s.tolist(), startups, strict=True
        ):
            work, left_s = phases[: last + 1], work_s - begin_s
            if left_s < phases[last].duration_s - _ROUNDING * longest_s:
                work[-1] = replace(phases[last], duration_s=left_s, checkpoint=False)
            made.append(PowerProfile(startup=startup, work=work))
        return tuple(made)

    def _check_number(self, works_s: FloatArray) -> None:
        round_s = sum(phase.duration_s for phase in self.phases)
        per_s = len(self.phases) / round_s
        if self.checkpoint_every_s is not None:
            per_s += (1 + len(self.save)) / self.checkpoint_every_s
        number = per_s * float(works_s.sum())
        if number > _MOST_PHASES:
            raise InvalidInput(
                f"{self.kind} jobs of up to {format_hours(float(works_s.max()))} in periods of "
                f"{format_hours(round_s)} have {number:.3g} phases: lengthen the period or the "
                "time between checkpoints, limit the lengths with high, or draw fewer jobs"
            )

    def _laid_out(self, longest_s: float) -> list[Phase]:
        """Return the phases of a job that is at least so long."""
        offsets_s = np.cumsum([phase.duration_s for phase in self.phases])
        rounds = int(np.ceil(longest_s / offsets_s[-1]))
        ends_s = (offsets_s[-1] * np.arange(rounds)[:, None] + offsets_s).ravel()
        if self.checkpoint_every_s is None:
            return list(self.phases) * rounds
        every_s, same_s = self.checkpoint_every_s, _ROUNDING * longest_s
        marks_s = every_s * np.arange(1, int(ends_s[-1] / every_s + _ROUNDING) + 1)
        # A checkpoint at the end of a phase, but for rounding, is there.
        after = np.searchsorted(ends_s, marks_s - same_s).clip(max=ends_s.size - 1)
        marks_s = np.where(np.abs(ends_s[after] - marks_s) <= same_s, ends_s[after], marks_s)
        cuts_s = np.union1d(ends_s, marks_s)
        known: dict[tuple[int, float, bool], Phase] = {}
        laid: list[Phase] = []
        for place, length_s, mark in zip(
            (np.searchsorted(ends_s, cuts_s) % len(self.phases)).tolist(),
            np.diff(cuts_s, prepend=0.0).tolist(),
            np.isin(cuts_s, marks_s).tolist(),
            strict=True,
        ):
            phase = self.phases[place]
            uncut = abs(length_s - phase.duration_s) <= same_s
            key = (place, phase.duration_s if uncut else length_s, mark and not self.save)
            if key not in known:
                known[key] = replace(phase, duration_s=key[1], checkpoint=key[2])
            laid.append(known[key])
            if mark:
                laid += self._saving
        return laid

    @property
    def _saving(self) -> list[Phase]:
        return [*self.save[:-1], *(replace(each, checkpoint=True) for each in self.save[-1:])]
