"""Double threshold pause and resume: deciding slot by slot, without any forecast.

The online pause and resume problem (Lechowicz et al., 2023): k slots of work are to be done within
a window; each slot shows a price between L and U; every change between running and not running
costs β. The i-th slot is taken at a price up to u_i while running, and up to u_i − 2β while not.
The thresholds are the published ones, which balance two sums:

    u_1 + … + u_i + (k − i)·U + 2β = α·(k·(u_{i+1} − 2β) + 2β)    for i = 0 … k

On the left is the most that is paid after taking i slots and being forced into the others; on the
right α times the least that the others, all above u_{i+1} − 2β, let anybody pay. So
u_{i+1} − U = (u_i − U)·(1 + 1/(kα)), and α brings the last threshold, u_{k+1} − 2β, down to L.

α is published as the ratio to the optimum that is kept. With more than one slot it is not: the
balance leaves out that a slot may be taken far below its threshold, and then the optimum has it
too. Two slots at 10 … 1010, α = 8.9, thresholds 114 and 63: of the prices 10, 68, 68, 1010, 1010
the 10 is taken, the 68 are left and a 1010 is forced. That is 1020, and the optimum is 78.
`Guarantee.ratio` is what does hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from lowtide.errors import InvalidInput
from lowtide.job import TIME_TOLERANCE_S, Job
from lowtide.policies.policy import Decision
from lowtide.policies.stopping import carry_out
from lowtide.signal import FloatArray, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What DTPR promises for a job of constant power in whole slots.

    Attributes:
        alpha: α, the published ratio: what the thresholds are made with, not what they keep; inf
            where the optimum may be free.
        low: L, the lowest price that is reckoned with, 0 or more.
        high: U, the highest.
        beta: β, what a change between running and not running costs, each way.
        slots: k, how many slots of work there are.

    >>> bound = guarantee(low=100.0, high=500.0, beta=20.0, slots=12)
    >>> round(bound.alpha, 3), round(float(bound.thresholds[0])), round(float(bound.thresholds[-1]))
    (2.132, 273, 154)
    >>> round(bound.ratio, 3)
    2.313
    """

    alpha: float
    low: float
    high: float
    beta: float
    slots: int

    @property
    def thresholds(self) -> FloatArray:
        """Up to which price the running job takes its first, second, … slot."""
        if self.high - self.low <= 2 * self.beta:
            return np.full(self.slots, self.high + 2 * self.beta)
        share, k = 1 / self.alpha, self.slots
        growth = np.exp(np.arange(k) * math.log1p(share / k))
        fall = self.high * (1 - share) - 2 * self.beta * (1 - (1 - share) / k)
        thresholds: FloatArray = self.high - fall * growth
        return thresholds

    def threshold(self, number: int, *, running: bool) -> float:
        """Return up to which price a slot is taken.

        Args:
            number: The how manieth slot of work it would be, from 1.
        """
        limit = float(self.thresholds[min(number, self.slots) - 1])
        return limit if running else limit - 2 * self.beta

    @property
    def ratio(self) -> float:
        """What is paid at most, in optima, while prices stay between `low` and `high`.

        Say that i slots were taken, the j-th at price p_j and with s_j for the switches that it
        took (2β or nothing, p_j + s_j ≤ u_j), and k − i were forced, at most at U and with 2β for
        their switches. All prices that were left are above v = u_{i+1} − 2β (v = L for i = k). So

            paid ≤ Σ (p_j + s_j) + (k − i)·U + 2β,   optimum ≥ Σ min(p_j, v) + (k − i)·v + 2β.

        That paid − R·optimum is largest where each p_j is as high as it may be, u_j against v,
        or as low, L + 2β against L; and a forced slot likewise, U against v or L against L. The
        ratio is the R for which the largest over all i is 0.
        """
        if self.high - self.low <= 2 * self.beta or self.alpha == math.inf:
            # It runs at once, and α is what that costs; or the optimum may be free.
            return self.alpha
        low, switch = self.low, 2 * self.beta
        u = self.thresholds
        most_paid = np.concatenate(([0.0], np.cumsum(u)))
        taken = np.arange(self.slots + 1)
        forced = self.slots - taken
        left = np.append(u - switch, low)
        ratio = 1.0
        while True:
            # Thresholds fall, so those of the first slots are the ones worth going up to.
            worth = low + switch + ratio * (left - low)
            high = np.minimum(np.searchsorted(-u, -worth, side="right"), taken)
            dear = self.high - low >= ratio * (left - low)
            paid = most_paid[high] + (taken - high) * (low + switch) + switch * (forced > 0)
            paid += forced * np.where(dear, self.high, low)
            least = high * left + (taken - high) * low + switch
            least += forced * np.where(dear, left, low)
            found = float(np.max(paid / least))
            if found <= ratio * (1 + 1e-12):
                return ratio
            ratio = found

    def __str__(self) -> str:
        ratio = self.ratio
        if ratio == math.inf:
            return (
                "no ratio to the optimum can be promised: it may be free, at prices down to 0 and "
                "without a cost of switching"
            )
        published = (
            f"; the published ratio, {self.alpha:.2f}, does not hold"
            if ratio > self.alpha * (1 + 1e-9)
            else ""
        )
        # Rounded up: less is not promised.
        return (
            f"at most {math.ceil(100 * ratio - 1e-9) / 100:.2f} × the optimum of the same job at "
            f"constant power, for {self.slots} slots at {self.low:.4g} to {self.high:.4g} and "
            f"{self.beta:.4g} a switch{published}; the real job's startup draws energy, so what a "
            "switch costs moves with the signal, and the promise does not cover that"
        )


def guarantee(*, low: float, high: float, beta: float, slots: int) -> Guarantee:
    """Return the published ratio, and with it the thresholds and what they really promise.

    Where switching back and forth costs as much as the whole range of prices, the job runs at
    once and is not stopped, which is at most (kU + 2β) / (kL + 2β) times the optimum.

    Args:
        beta: What a change between running and not running costs, each way.
    """
    if not (0 <= low <= high < math.inf):
        raise InvalidInput(f"dtpr needs a range of prices, 0 ≤ low ≤ high, not {low} to {high}")
    if not 0 <= beta < math.inf:
        raise InvalidInput(f"a switch costs 0 or more, not beta = {beta}")
    if slots < 1:
        raise InvalidInput(f"there is at least one slot of work, not {slots}")

    def made(alpha: float) -> Guarantee:
        return Guarantee(alpha=alpha, low=low, high=high, beta=beta, slots=slots)

    least = slots * low + 2 * beta
    if low == high:
        return made(1.0)
    if least == 0:
        return made(math.inf)
    if high - low <= 2 * beta:
        return made((slots * high + 2 * beta) / least)

    def excess(share: float) -> float:
        fall = high * (1 - share) - 2 * beta * (1 - (1 - share) / slots)
        return fall * math.exp(slots * math.log1p(share / slots)) - (high - low - 2 * beta)

    # In 1/α the excess falls throughout, from L + 2β/k to below 0: it has one root.
    below, above = 0.0, 1.0
    while below < (middle := (below + above) / 2) < above:
        below, above = (middle, above) if excess(middle) > 0 else (below, middle)
    return made(1 / above)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot that is offered to a job of constant power.

    Attributes:
        begin: The instant it begins.
        end: The instant it ends.
        price: What a kWh emits or costs in it.
        done_s: Work done before it.
        number: The how manieth slot of work it would be, from 1.
        running: Whether the job ran up to its beginning.
        since: The instant from which it has been running, or not.
        starts: How often the job was started so far.
    """

    begin: float
    end: float
    price: float
    done_s: float
    number: int
    running: bool
    since: float
    starts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtpr:
    """Take a slot if its price is below a threshold that falls with every slot taken.

    It looks at the present slot alone. What it reckons with beforehand is the range of prices and
    the cost of a switch, for a job of constant power whose stops take no time; the wish is then
    carried out on the real job.

    Attributes:
        low: Lowest price that is reckoned with; by default the lowest of the job's window, which
            assumes that the range is known though the course is not.
        high: Highest price that is reckoned with; by default the highest of the window.
        beta: What a switch costs each way, in prices per slot; by default half of what stopping
            the job and starting it again draw at the middle of that range, over a slot's mean
            energy.
    """

    stops_jobs: ClassVar[bool] = True
    low: float | None = None
    high: float | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high", "beta"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InvalidInput(f"dtpr's {name} is a number of at least 0, not {value}")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InvalidInput(
                f"dtpr's range runs from low to high, not from {self.low} to {self.high}"
            )

    def decide(self, job: Job, signal: Signal) -> Decision:
        """Decide for one job."""
        promise = self.guarantee(job, signal)

        def takes(slot: Slot) -> bool:
            return slot.price <= promise.threshold(slot.number, running=slot.running)

        return Decision(
            schedule=carry_out(job, taken(job, signal, takes)),
            step_s=signal.step_s,
            note=str(promise),
        )

    def guarantee(self, job: Job, signal: Signal) -> Guarantee:
        """Return what is promised for a job, at constant power.

        Args:
            signal: What a kWh emits or costs; of its values only the range is used, and only
                where it is not given.
        """
        values = signal.window(job.arrival, job.deadline).values
        low = max(float(values.min()), 0.0) if self.low is None else self.low
        high = max(float(values.max()), 0.0) if self.high is None else self.high
        if self.low is None:
            low = min(low, high)
        profile = job.profile
        beta = self.beta
        if beta is None:
            switching_j = sum(phase.energy_j for phase in (*profile.starting(1), *profile.stop))
            work_j = sum(phase.energy_j for phase in profile.work)
            slot_j = work_j / profile.work_s * signal.step_s
            # Beside work that draws nothing, a startup counts as much as a slot.
            weight = switching_j / slot_j if slot_j > 0 else 1.0
            beta = weight * (low + high) / 2 / 2
        # A part of a slot is a slot.
        slots = max(math.ceil(profile.work_s / signal.step_s - 1e-9), 1)
        return guarantee(low=low, high=max(low, high), beta=beta, slots=slots)


def taken(job: Job, signal: Signal, takes: Callable[[Slot], bool]) -> list[tuple[float, float]]:
    """Offer a job its slots one after the other, and return the stretches it works in.

    The job is taken for one of constant power that stops and starts in no time, one startup after
    its arrival. When its slack is gone it runs through, whatever the price.

    Args:
        signal: What a kWh emits or costs; its steps are the slots.

    >>> from lowtide.profile import PowerProfile
    >>> job = Job(id="a", arrival=0, deadline="+4h", profile=PowerProfile.constant(100, "2h"))
    >>> curve = Signal.from_values([300, 100, 300, 300], start=0, step_s="1h")
    >>> taken(job, curve, lambda slot: slot.price < 200)
    [(3600.0, 7200.0), (10800.0, 14400.0)]
    """
    begin, work_s = job.arrival + job.profile.startup_s, job.profile.work_s
    window = signal.window(begin, job.deadline)
    edges = np.clip(window.edges, begin, job.deadline).tolist()
    wanted: list[tuple[float, float]] = []
    done_s = 0.0
    running = False
    for (a, b), price in zip(pairwise(edges), window.values.tolist(), strict=True):
        latest = job.deadline - (work_s - done_s)
        if latest <= a + TIME_TOLERANCE_S:
            _extend(wanted, a, job.deadline, running=running)
            break
        slot = Slot(
            begin=a,
            end=b,
            price=price,
            done_s=done_s,
            number=math.floor(done_s / signal.step_s + 1e-9) + 1,
            running=running,
            since=wanted[-1][0 if running else 1] if wanted else job.arrival,
            starts=len(wanted),
        )
        if takes(slot):
            until = min(b, a + work_s - done_s)
            _extend(wanted, a, until, running=running)
            done_s += until - a
            running = True
            if work_s - done_s <= TIME_TOLERANCE_S:
                break
        elif latest < b - TIME_TOLERANCE_S:
            wanted.append((latest, job.deadline))
            break
        else:
            running = False
    return wanted


def _extend(wanted: list[tuple[float, float]], begin: float, end: float, *, running: bool) -> None:
    if running:
        wanted[-1] = (wanted[-1][0], end)
    else:
        wanted.append((begin, end))
