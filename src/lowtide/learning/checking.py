"""A profile against runs it was not learned from, stops and kills with their resumption included.

What a profile says of a stopped run is laid out as a schedule and accounted for as any other: a
startup, work up to the checkpoint that was reached, work that was lost, a startup again (or a
restart, where the profile has one).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.accounting import power_steps
from lowtide.changepoints import price_of_a_change, wandering_noise
from lowtide.learning.intervals import next_one
from lowtide.learning.marks import common_marks, plain_label, says_checkpoint
from lowtide.learning.series import RunSeries, common_step_s, even_edges, uninterrupted
from lowtide.learning.validation import energy_error, predicted_w, rmse
from lowtide.profile import PowerProfile
from lowtide.recording import Run, pairs
from lowtide.schedule import Schedule, Span, start_kind
from lowtide.units import format_count

# How often the next run is to lie between the ends that are told.
_LEVEL = 0.9
# When a start was over is looked for in so many steps.
_MOST_STEPS = 400
# An epoch has no more phases than this.
_LONGEST_EPOCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a profile says of a run, or of two that belong together, and what was measured.

    Attributes:
        kind: `full`, `stop` or `kill`.
        measured_s: How long the runs took, together.
        predicted_s: What the profile says of that, with every startup: deadlines hang on it.
        error: The predicted less the measured energy, as a share of the measured one; None where
            nothing was drawn.
        rmse_w: How far off its power is at absolute time, counted from each start.
        starts: How the predicted work of each start begins and ends, in seconds of progress.
    """

    runs: tuple[str, ...]
    kind: str
    measured_j: float
    predicted_j: float
    measured_s: float
    predicted_s: float
    error: float | None
    rmse_w: float
    starts: tuple[tuple[float, float], ...]

    @property
    def late(self) -> float:
        """The predicted less the measured duration, as a share of the measured one."""
        return self.predicted_s / self.measured_s - 1


def check(profile: PowerProfile, runs: Sequence[Run], *, baseline_w: float = 0.0) -> list[Check]:
    """Compare a profile with runs.

    Args:
        runs: Runs as `learn` takes them: uninterrupted ones, and stops and kills with the
            resumption that belongs to each; others and those with gaps are left out. One with
            another number of epochs, by its marks, is told by as many of the profile's.
        baseline_w: What the machine draws without the program, if the profile leaves it out.
    """
    whole = [run for run in runs if run.sampled > 1 and not run.gaps]
    checks = [
        _check("full", own, [run], [(0.0, own.work_s)], baseline_w)
        for run, own in comparable(runs, profile)[0]
    ]
    for kind in ("stop", "kill"):
        for first, second in pairs(whole, kind):
            reached_s, kept_s = _progress(profile, first, second, baseline_w)
            starts = [(0.0, reached_s), (kept_s, profile.work_s)]
            checks.append(_check(kind, profile, [first, second], starts, baseline_w))
    return checks


def comparable(
    runs: Sequence[Run], profile: PowerProfile
) -> tuple[list[tuple[Run, PowerProfile]], list[str]]:
    """Return the uninterrupted runs that did what most of them did, and why others are left out.

    Beside each run stands the profile with as many epochs as it has by its marks. As when a profile
    is learned, a run that says something else did something else; unless there is no most.
    """
    chosen, notes = uninterrupted(runs)
    as_it_is = [(run, profile) for run in chosen]
    if not any(run.events for run in chosen):
        return as_it_is, notes
    marks, used, left_out = common_marks([RunSeries.of(run) for run in chosen], 0.0)
    if marks is None or 2 * len(used) <= len(chosen):
        return as_it_is, notes
    outline = marks.outline
    said = Counter(name for name, _, _ in _stretches(profile))
    body = marks.names[outline.first : outline.first + outline.length]
    epochs = next((said[name] for name in body if said[name]), 0)
    if not epochs:
        # A profile that calls nothing as the program does has as many as it repeats something, if
        # a run has so many, or else the usual number.
        times = _repeated(profile)[2]
        epochs = times if times in {own.epochs for own in outline.runs} else outline.count
    found = []
    for number, own in zip(used, outline.runs, strict=True):
        run, resized = chosen[number], _with_more_epochs(profile, own.epochs - epochs)
        if resized is not None:
            found.append((run, resized))
        else:
            left_out.append(
                f"run {run.id} has {format_count(own.epochs, 'epoch')} and is left out: the "
                f"profile has {epochs}, and cannot be told for another number of them"
            )
    return found, [*notes, *left_out]


def _with_more_epochs(profile: PowerProfile, more: int) -> PowerProfile | None:
    """Return a profile that repeats so much more often what it repeats, or less often.

    None where it repeats nothing, or not often enough.
    """
    if not more:
        return profile
    begin, length, times = _repeated(profile)
    if not times or times + more < 0:
        return None
    epoch, end = profile.work[begin : begin + length], begin + length * times
    work = (*profile.work[:begin], *epoch * (times + more), *profile.work[end:])
    return replace(profile, work=work) if work else None


def _repeated(profile: PowerProfile) -> tuple[int, int, int]:
    """Return where what a profile repeats begins, how many phases it has and how often it comes.

    It is the row of phases that stands in its work again to the letter; 0 times if none does.
    """
    kinds = {phase: number for number, phase in enumerate(dict.fromkeys(profile.work))}
    row = np.array([kinds[phase] for phase in profile.work])
    best = (0, 0, 1)
    for length in range(1, min(row.size // 2, _LONGEST_EPOCH) + 1):
        same = np.concatenate(([0], row[length:] == row[:-length], [0]))
        turns = np.flatnonzero(np.diff(same))
        for begin, end in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
            times = (end - begin) // length + 1
            # Of rows that explain as much, the shortest is the epoch.
            if (times - 1) * length > best[1] * (best[2] - 1):
                best = (begin, length, times)
    return best if best[1] else (0, 0, 0)


def summaries(checks: Sequence[Check]) -> list[str]:
    """Return a sentence on each kind of run: how far off the profile's energy is."""
    said = []
    for kind, one, several in (
        ("full", "one uninterrupted run", "uninterrupted runs"),
        ("stop", "one stop with its resumption", "stops with their resumption"),
        ("kill", "one kill with its resumption", "kills with their resumption"),
    ):
        known = [each for each in checks if each.kind == kind and each.error is not None]
        errors = [100 * each.error for each in known if each.error is not None]
        late = [100 * each.late for each in known]
        if len(errors) > 1:
            said.append(
                f"{len(errors)} {several}: energy off by {_spread(errors)}, duration by "
                f"{_spread(late)}"
            )
        elif errors:
            said.append(f"{one}: energy off by {errors[0]:+.1f} %, duration by {late[0]:+.1f} %")
    return said


def _spread(shares: Sequence[float]) -> str:
    said = f"{np.mean(shares):+.1f} % on average ({min(shares):+.1f} to {max(shares):+.1f} %)"
    ends = next_one(shares, level=_LEVEL)
    if ends is None:
        return said
    return f"{said}, the next by {ends[0]:+.1f} to {ends[1]:+.1f} % ({100 * _LEVEL:.0f} %)"


def _progress(
    profile: PowerProfile, first: Run, second: Run, baseline_w: float
) -> tuple[float, float]:
    """Return how far the first run came, and where the second went on.

    What the runs said tells, as far as it names the profile's phases; else how long they worked.
    """
    done_s = _done_by_marks(profile, first)
    if done_s is None:
        done_s = _worked_s(profile, RunSeries.of(first, baseline_w=baseline_w), 0)
    saved = sum(says_checkpoint(event) for event in first.events if event.time <= first.end)
    if profile.checkpoints_s and saved:
        kept_s = profile.checkpoints_s[min(saved, len(profile.checkpoints_s)) - 1]
        # A stop waits for the checkpoint; a kill comes when it comes.
        return (kept_s if first.kind == "stop" else max(done_s, kept_s)), kept_s
    left_s = _left_by_marks(profile, second)
    if first.kind == "stop":
        # What the second run did is what the first had not done.
        kept_s = done_s if left_s is None else profile.work_s - left_s
        return kept_s, kept_s
    if left_s is None:
        # Without checkpoints, how much was lost shows only in how long the second run worked.
        left_s = _worked_s(profile, RunSeries.of(second, baseline_w=baseline_w), 1)
    return done_s, min(profile.work_s - left_s, done_s)


def _worked_s(profile: PowerProfile, series: RunSeries, before: int) -> float:
    """Return how long a run worked, after a start that so many others came before.

    Starts differ in length more than work does, and draw less: power tells when one was over. It
    is as long as leaves least of the run's power unexplained, if that is less than the usual length
    leaves by what a change is worth. A first run works from the beginning, a resumed one up to the
    end.
    """
    lead = profile.starting(before)
    usual_s, length_s = profile.starting_s(before), series.length_s
    longest_s = max(length_s - profile.work_s, 0.0)
    usual_s = min(max(usual_s, longest_s), length_s)
    if not lead:
        return length_s - usual_s
    step_s = common_step_s([series])
    grid = even_edges(0.0, length_s, max(step_s, length_s / _MOST_STEPS))
    seen_w, mids_s = series.mean_w(grid), (grid[1:] + grid[:-1]) / 2
    shares = np.array([phase.duration_s for phase in lead]) / profile.starting_s(before)
    watts = np.array([phase.power_w for phase in (*lead, *profile.work)])

    def left(start_s: float) -> float:
        """Return what is left unexplained if a start takes so long."""
        begin_s = profile.work_s - (length_s - start_s) if before else 0.0
        work_s = np.diff(np.maximum(profile.work_edges_s, begin_s))
        apart_w = predicted_w(np.concatenate((start_s * shares, work_s)), watts, mids_s) - seen_w
        return float(apart_w @ apart_w)

    found_s = min(grid[grid >= longest_s].tolist(), key=left, default=usual_s)
    noise, lasting = wandering_noise(seen_w, float(grid[1]))
    least = left(usual_s) - price_of_a_change(noise * lasting, seen_w.size)
    return length_s - (found_s if left(found_s) < least else usual_s)


def _stretches(profile: PowerProfile) -> list[tuple[str, float, float]]:
    """Return what a mark would name of a profile's work, with its begin and end in progress.

    Where a stretch between marks has several phases, they share its name but for a number.
    """
    found: list[tuple[str, float, float]] = []
    edges_s = profile.work_edges_s.tolist()
    before = -1
    for phase, begin_s, end_s in zip(profile.work, edges_s, edges_s[1:], strict=False):
        name, _, number = phase.name.rpartition(" ")
        part = int(number) if name and number.isdecimal() else 0
        name = name if part else phase.name
        if part > 1 and part == before + 1 and found and found[-1][0] == name:
            found[-1] = (name, found[-1][1], end_s)
        else:
            found.append((name, begin_s, end_s))
        before = part
    return found


def _done_by_marks(profile: PowerProfile, run: Run) -> float | None:
    """Return how far a run came by the last of its marks that names a phase; None without one."""
    stretches = _stretches(profile)
    at, since = -1, 0.0
    for event in run.events:
        label = plain_label(event.label)
        later = (place for place in range(at + 1, len(stretches)) if stretches[place][0] == label)
        place = next(later, None)
        if place is not None and event.time <= run.end:
            at, since = place, event.time
    if at < 0:
        return None
    _, begin_s, end_s = stretches[at]
    return min(begin_s + run.end - since, end_s)


def _left_by_marks(profile: PowerProfile, run: Run) -> float | None:
    """Return how much work a resumed run had left by the first of its marks that names a phase."""
    stretches = _stretches(profile)
    said = [plain_label(event.label) for event in run.events if event.time <= run.end]
    at = len(stretches)
    for label in reversed(said):
        earlier = (place for place in range(at - 1, -1, -1) if stretches[place][0] == label)
        at = next(earlier, at)
    return None if at == len(stretches) else profile.work_s - stretches[at][1]


def _check(
    kind: str,
    profile: PowerProfile,
    runs: Sequence[Run],
    starts: Sequence[tuple[float, float]],
    baseline_w: float,
) -> Check:
    measured_j = predicted_j = predicted_s = 0.0
    errors_w = []
    for number, (run, (begin_s, end_s)) in enumerate(zip(runs, starts, strict=True)):
        series = RunSeries.of(run, baseline_w=baseline_w)
        spans = []
        lead_s = profile.starting_s(number)
        if lead_s:
            kind_of_start = start_kind(profile, number)
            spans.append(Span(kind=kind_of_start, start=0.0, duration_s=lead_s, progress_s=0.0))
        if end_s > begin_s:
            spans.append(
                Span(
                    kind="work",
                    start=lead_s,
                    duration_s=end_s - begin_s,
                    progress_s=begin_s,
                )
            )
        schedule = Schedule(job_id=run.id, spans=tuple(spans))
        times, power_w = power_steps(schedule, profile)
        seconds, drawn_w = np.diff(times), power_w[:-1]
        measured_j += series.energy_j
        predicted_j += float(seconds @ drawn_w)
        predicted_s += lead_s + max(end_s - begin_s, 0.0)
        errors_w.append(predicted_w(seconds, drawn_w, series.times_s) - series.power_w)
    return Check(
        runs=tuple(run.id for run in runs),
        kind=kind,
        measured_j=measured_j,
        predicted_j=predicted_j,
        measured_s=sum(run.duration_s for run in runs),
        predicted_s=predicted_s,
        error=energy_error(predicted_j, measured_j, sum(run.energy_j() for run in runs)),
        rmse_w=rmse(np.concatenate(errors_w)),
        starts=tuple(starts),
    )
