"""The inner loops of planning many jobs to the optimum, each as `plan` would alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.compiled import compiled
from lowtide.job import TIME_TOLERANCE_S
from lowtide.policies.columns import (
    PARTS,
    RESTART,
    STARTUP,
    STOP,
    WORK,
    Jobs,
    Rent,
    SignalSteps,
)
from lowtide.policies.kernels import forward, row_powers, settle, slot_costs, way_back
from lowtide.policies.piecewise import add_shifted, first_minimum
from lowtide.policies.published_kernels import (
    FloatArray,
    IntArray,
    Made,
    longer,
    no_stretches,
    upto,
)
from lowtide.units import JOULES_PER_KWH

# As in `continuous`: how far past its slack a job may be planned.
_ROOM_S = TIME_TOLERANCE_S / 2


@compiled(inner=True)
def _phases(
    place: int,
    work_s: float,
    power: float,
    durations_s: FloatArray,
    watts: FloatArray,
    bounds: IntArray,
    part: int,
) -> FloatArray:
    """Return the durations of a job's phases and what each costs per second and unit, in rows.

    It takes what it needs of the jobs and no more: to hand all columns on would take longer.
    """
    if place < 0:
        made = np.empty((2, 1 if part == WORK else 0))
        if part == WORK:
            made[0, 0], made[1, 0] = work_s, power / JOULES_PER_KWH
        return made
    first = bounds[PARTS * place + part]
    made = np.empty((2, bounds[PARTS * place + part + 1] - first))
    for k in range(made.shape[1]):
        made[0, k] = durations_s[first + k]
        made[1, k] = power * watts[first + k] / JOULES_PER_KWH
    return made


@compiled(inner=True)
def _length(phases: FloatArray) -> float:
    """Return how long phases take together."""
    total_s = 0.0
    for k in range(phases.shape[1]):
        total_s += phases[0, k]
    return total_s


@compiled(inner=True)
def _falls(phases: FloatArray, begin_s: float) -> tuple[FloatArray, FloatArray]:
    """Return when the power changes in phases that follow each other, and by how much it falls."""
    count = phases.shape[1]
    cuts_s, falls = np.empty(count + 1), np.empty(count + 1)
    after_s = before = 0.0
    for k in range(count):
        cuts_s[k], falls[k] = begin_s + after_s, before - phases[1, k]
        after_s += phases[0, k]
        before = phases[1, k]
    cuts_s[count], falls[count] = begin_s + after_s, before
    return cuts_s, falls


@compiled(inner=True)
def _paid(cuts_s: FloatArray, falls: FloatArray, series: SignalSteps) -> float:
    """Return what phases cost that change at some times after the signal's start."""
    total = 0.0
    for k in range(cuts_s.size):
        total += falls[k] * upto(cuts_s[k], series)
    return total


@compiled()
def best_straight(
    jobs: Jobs, rows: IntArray, series: SignalSteps
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Plan jobs that run through, at any moment, as `continuous` does.

    Returns:
        The start of each; what it comes to; and what it does when it runs at once.
    """
    start, costs, at_once = np.empty(rows.size), np.empty(rows.size), np.empty(rows.size)
    nothing = np.zeros(1)
    for number in range(rows.size):
        job = rows[number]
        arrival, startup_s = jobs.arrival[job], jobs.startup_s[job]
        base = arrival + startup_s
        slack_s = jobs.deadline[job] - base - jobs.work_s[job]
        shift_s = base - series.start
        place, work_s, power = jobs.place[job], jobs.work_s[job], jobs.power[job]
        durations_s, watts, bounds = jobs.durations_s, jobs.watts, jobs.bounds
        startup = _phases(place, work_s, power, durations_s, watts, bounds, STARTUP)
        work = _phases(place, work_s, power, durations_s, watts, bounds, WORK)
        lead_s, lead = _falls(startup, shift_s - startup_s)
        cuts_s, falls = _falls(work, shift_s)
        start[number] = arrival
        if slack_s <= TIME_TOLERANCE_S:
            # There is one way to run a job without slack.
            at_once[number] = costs[number] = _paid(cuts_s, falls, series) + _paid(
                lead_s, lead, series
            )
            continue
        x, left, right = np.array([0.0, slack_s + _ROOM_S]), nothing, nothing
        prefix, values, step_s = series.prefix, series.values, series.step_s
        if lead.size > 1:
            x, left, right = add_shifted(x, left, right, lead_s, lead, prefix, values, step_s)
        x, left, right = add_shifted(x, left, right, cuts_s, falls, prefix, values, step_s)
        delay_s, costs[number] = first_minimum(x, left, right, slack_s)
        start[number] = arrival + min(delay_s, slack_s)
        at_once[number] = left[0]
    return start, costs, at_once


@compiled()
def best_gridded(
    jobs: Jobs,
    rows: IntArray,
    steps_s: FloatArray,
    lossless: npt.NDArray[np.bool_],
    series: SignalSteps,
    rent: Rent,
) -> tuple[Made, FloatArray, FloatArray]:
    """Plan jobs that may be stopped anywhere, as `exact` does on a step.

    Args:
        steps_s: The step of each.
        lossless: Whether nothing is lost by deciding on the step, counted from its arrival.
        rent: What holding a machine costs: nothing.

    Returns:
        Job (as its place in `rows`), start, work and lost work of every stretch; what each job
        comes to; and what it does when it runs at once.
    """
    made = no_stretches(2 * rows.size + 64)
    costs, at_once = np.empty(rows.size), np.empty(rows.size)
    count = 0
    for number in range(rows.size):
        job, step_s = rows[number], steps_s[number]
        begin, work_s = jobs.arrival[job], jobs.work_s[job]
        # What holds wherever the steps are counted from.
        startup_s, deadline = jobs.startup_s[job], jobs.deadline[job]
        place, power = jobs.place[job], jobs.power[job]
        durations_s, watts, bounds = jobs.durations_s, jobs.watts, jobs.bounds
        resumes = place >= 0 and jobs.resumes[place]
        startup = _phases(place, work_s, power, durations_s, watts, bounds, STARTUP)
        restart = startup
        if resumes:
            restart = _phases(place, work_s, power, durations_s, watts, bounds, RESTART)
        phases = (
            startup,
            restart,
            _phases(place, work_s, power, durations_s, watts, bounds, WORK),
            _phases(place, work_s, power, durations_s, watts, bounds, STOP),
        )
        # Starts after the first begin so much later before their work.
        later_s = startup_s - _length(restart) if resumes else 0.0
        held = power * jobs.suspended_w[place] / JOULES_PER_KWH if place >= 0 else 0.0
        cost, at_once[number], its_rows, its_columns = _on_grid(
            begin + startup_s, deadline, work_s, phases, resumes, held, series, rent, step_s
        )
        offset_s = (series.start - (begin + startup_s)) % step_s
        slack_s = deadline - (begin + startup_s) - work_s
        if not lossless[number] and TIME_TOLERANCE_S < offset_s < slack_s - step_s:
            later = begin + offset_s
            other, _, other_rows, other_columns = _on_grid(
                later + startup_s, deadline, work_s, phases, resumes, held, series, rent, step_s
            )
            if other < cost:
                begin, cost, its_rows, its_columns = later, other, other_rows, other_columns
        costs[number] = cost
        if count + its_rows.size > made[0].size:
            made = longer(made, 2 * (count + its_rows.size))
        for k in range(its_rows.size - 1, -1, -1):
            progress_s = step_s * its_rows[k]
            until_s = step_s * its_rows[k - 1] if k else work_s
            at = begin + progress_s + step_s * its_columns[k]
            made[0][count], made[1][count] = number, at if progress_s == 0.0 else at + later_s
            made[2][count], made[3][count] = until_s - progress_s, 0.0
            count += 1
    return (made[0][:count], made[1][:count], made[2][:count], made[3][:count]), costs, at_once


@compiled(inner=True)
def _on_grid(
    base: float,
    deadline: float,
    work_s: float,
    phases: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    resumes: bool,
    held_power: float,
    series: SignalSteps,
    rent: Rent,
    step_s: float,
) -> tuple[float, float, IntArray, IntArray]:
    """Solve one job on a grid, as `gridded.solve` does.

    Returns:
        The least cost, that of running at once, and the rows and columns of the starts that reach
        the least, last first.
    """
    startup, restart, work, stop = phases
    rows = max(int(np.ceil(work_s / step_s - 1e-9)), 1)
    columns = int(np.floor(max(deadline - base - work_s, 0.0) / step_s + 1e-9)) + 1
    shift_s = base - series.start
    slot, extra, start, held, leave = slot_costs(
        rows + columns,
        step_s,
        deadline - base,
        (series.prefix, series.values, series.step_s, shift_s),
        rent,
        restart,
        stop,
        held_power,
    )
    first = start
    if resumes:
        first = slot_costs(
            columns,
            step_s,
            deadline - base,
            (series.prefix, series.values, series.step_s, shift_s),
            rent,
            startup,
            stop,
            held_power,
        )[2]
    edges_s = np.empty(work.shape[1] + 1)
    edges_s[0] = 0.0
    for k in range(work.shape[1]):
        edges_s[k + 1] = edges_s[k] + work[0, k]
    powers, special = row_powers(edges_s, work[1], step_s, rows)
    special_cost = _special_costs(edges_s, work[1], special, shift_s, series, step_s, columns)
    lag_s = _length(restart) + _length(stop)
    cost = np.empty((1, columns))
    for j in range(columns):
        cost[0, j] = first[j]
    at_once = first[0] + _through(powers, slot, special, special_cost)
    if held_power != 0.0:
        for m in range(start.size):
            start[m] += held[m]
    flags = np.zeros((rows, columns), dtype=np.uint8)
    lag = int(np.ceil(lag_s / step_s - 1e-9))
    forward(cost[0], powers, special, special_cost, slot, extra, leave, start, lag, 1, flags)
    by_delay = np.empty(columns)
    column = settle(cost, 0.0, by_delay)
    of_starts = flags.reshape((rows, 1, columns))
    rows_of, columns_of = way_back(of_starts, 0, column, lag, 1, 0, False, False)
    return float(by_delay[column]), float(at_once), rows_of, columns_of


@compiled(inner=True)
def _through(
    power: FloatArray, slot: FloatArray, special: IntArray, special_cost: FloatArray
) -> float:
    """Return what running through all rows without a delay costs."""
    total = 0.0
    for i in range(power.size):
        total += power[i] * slot[i] if special[i] < 0 else special_cost[special[i], 0]
    return total


@compiled(inner=True)
def _special_costs(
    edges_s: FloatArray,
    power: FloatArray,
    special: IntArray,
    shift_s: float,
    series: SignalSteps,
    step_s: float,
    columns: int,
) -> FloatArray:
    """Return, per delay, the costs of the rows in which the power changes or the work ends."""
    count, k = 0, 0
    for i in range(special.size):
        count += special[i] >= 0
    costs = np.zeros((count, columns))
    for i in range(special.size):
        if special[i] < 0:
            continue
        begin_s, end_s = i * step_s, min((i + 1) * step_s, edges_s[-1])
        while k + 1 < power.size and edges_s[k + 1] <= begin_s + TIME_TOLERANCE_S:
            k += 1
        at_s, last, before = begin_s, k, 0.0
        while True:
            after = 0.0 if at_s == end_s else power[last]
            if after != before:
                for j in range(columns):
                    reached = upto(step_s * j + (at_s + shift_s), series)
                    costs[special[i], j] += (before - after) * reached
            if at_s == end_s:
                break
            before = after
            last += 1
            at_s = edges_s[last] if edges_s[last] < end_s - TIME_TOLERANCE_S else end_s
    return costs
