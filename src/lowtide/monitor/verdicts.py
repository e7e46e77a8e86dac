"""What a job's use says about it: did it need what it had, will it scale, was it in the way.

Each question has an answer and the evidence for it in words. What the data do not tell is
answered with `cannot tell`, never with a guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

from lowtide.units import MISSING, format_hours, format_number, format_percent

YES = "yes"
NO = "no"
PARTLY = "partly"
CANNOT_TELL = "cannot tell"

_percent = partial(format_percent, digits=0)

# Who never has more than half of something busy does not lack it.
_HALF = 0.5
# Who has this much of something busy all the time is limited by it.
_FULL = 0.8
# A GPU that never gets busier or fuller than this for so long is wasted.
_BAD_GPU = 0.25
_BAD_GPU_S = 2 * 3600.0
# Use of CPUs that may be in the way of others: this share of the node's cores for so long, or a
# core for a day.
_HOG_SHARE = 0.1
_HOG_S = 600.0
_HOG_CORE_S = 86400.0
# A node this busy has others waiting.
SATURATED = 0.9
# Whoever waits for something for this share of the time is held back by it.
_WAITS = 0.1
# Who never keeps more of a core busy than this hardly uses one.
_ASLEEP = 0.05
# Who holds this much of its memory has none left to speak of.
_NEAR = 0.9
# What was watched for less of its time than this may have done anything meanwhile.
_WATCHED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How much of one thing a job had, and how much of it it used. NaN where not known.

    Attributes:
        asked: How much was kept for it.
        node: How much its nodes have.
        mean: How much it used on average.
        peak: The most it used.
    """

    asked: float = math.nan
    node: float = math.nan
    mean: float = math.nan
    peak: float = math.nan

    @property
    def had(self) -> float:
        """How much it could use: what was kept for it, else what its nodes have."""
        return self.node if math.isnan(self.asked) else self.asked

    @property
    def is_used(self) -> bool | None:
        """Whether it used any; None where that is not known."""
        return None if math.isnan(self.peak) else self.peak > 0

    def share(self, what: str, of: str) -> float:
        """Return a use as a share of what there was; NaN where either is not known, or none.

        Args:
            what: `mean` or `peak`.
            of: `asked`, `node` or `had`.
        """
        whole = float(getattr(self, of))
        return float(getattr(self, what)) / whole if whole > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What was seen of a job from its beginning to its end.

    Attributes:
        length_s: How long it was watched; NaN for a job that was seen once, which has no known
            duration.
        cpus: Its cores.
        memory: Its memory, in bytes.
        gpus: Its GPUs, as how many were busy.
        gpu_memory: Memory on its GPUs, in bytes; `asked` is all memory of the GPUs it held.
        load: Share of the cores that were busy while it ran on the busiest of its nodes, its own
            included.
        cpu_wait: Share of its time in which something of it waited for CPUs.
        memory_wait: The same for memory.
        io_wait: The same for storage.
        watched: Share of its time in which it was watched.
        out_of_memory: Whether it ended because it had no memory left, whatever was seen of that.
    """

    length_s: float
    cpus: Use = field(default_factory=Use)
    memory: Use = field(default_factory=Use)
    gpus: Use = field(default_factory=Use)
    gpu_memory: Use = field(default_factory=Use)
    load: float = math.nan
    cpu_wait: float = math.nan
    memory_wait: float = math.nan
    io_wait: float = math.nan
    watched: float = 1.0
    out_of_memory: bool = False

    @property
    def starved(self) -> str | None:
        """Why it may have had fewer cores than it could use; empty where not, None if unknown."""
        if self.load >= SATURATED:
            return f"its node was {_percent(self.load)} busy"
        if self.cpu_wait >= _WAITS:
            return f"it waited for CPUs for {_percent(self.cpu_wait)} of its time"
        # Where its own waits are not known, those of a node that is not full are few.
        return None if math.isnan(self.load) else ""

    @property
    def unseen(self) -> str:
        """Why what was never seen may have been all the same; empty where it was seen."""
        if math.isnan(self.watched):
            return "for how much of its time it was watched is not known"
        if self.watched >= _WATCHED:
            return ""
        return f"it was watched for {_percent(self.watched)} of its time only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An answer.

    Attributes:
        question: What was asked.
        answer: `yes`, `no`, `partly` or `cannot tell`.
        evidence: Why, in words.
    """

    question: str
    answer: str
    evidence: str


def judge(behaviour: Behaviour) -> tuple[Verdict, ...]:
    """Answer every question about a job."""
    return (
        appropriate(behaviour),
        will_scale(behaviour),
        is_held_back(behaviour),
        misuses_gpu_node(behaviour),
        is_bad_gpu_job(behaviour),
        is_hogging(behaviour),
    )


def appropriate(behaviour: Behaviour) -> Verdict:
    """Say whether a job used what was kept for it: whether it had half of it busy at its peak.

    Who could not have used more, or was not watched all the time, is not told that it did not.

    >>> job = Behaviour(length_s=3600, cpus=Use(asked=16, mean=1, peak=1),
    ...                 memory=Use(asked=128, mean=4, peak=4), load=0.3)
    >>> appropriate(job).evidence
    'at its peak it used 6 % of the cores and 3 % of the memory that it asked for'
    """
    question = "Did it use what it asked for?"
    named = (("cores", behaviour.cpus), ("memory", behaviour.memory), ("GPUs", behaviour.gpus))
    shares = {
        name: share for name, use in named if not math.isnan(share := use.share("peak", "asked"))
    }
    if behaviour.out_of_memory:
        # It came to its limit in less time than there is between two looks.
        shares["memory"] = 1.0
    if not shares:
        return _unknown(question, "what it asked for, or what it used, is not known")
    # What others were in the way of says nothing of the job.
    starved = shares.get("cores", 1.0) < _HALF and behaviour.starved != ""
    used = [share >= _HALF for name, share in shares.items() if not (starved and name == "cores")]
    told = _listed([f"{100 * share:.0f} % of the {name}" for name, share in shares.items()])
    told = f"at its peak it used {told} that it asked for"
    unknown = [name for name, use in named if use.asked > 0 and name not in shares]
    if unknown and len(set(used)) < 2:
        return _unknown(question, f"{told}; what it used of the {_listed(unknown)} is not known")
    if starved and len(set(used)) < 2:
        return _unknown(question, f"{told}, but {behaviour.starved or _NO_LOAD}")
    if not all(used) and behaviour.unseen:
        return _unknown(question, f"{told}, but {behaviour.unseen}")
    return Verdict(
        question=question,
        answer=YES if all(used) else PARTLY if any(used) else NO,
        evidence=told,
    )


def will_scale(behaviour: Behaviour) -> Verdict:
    """Say whether a job would gain from a larger node.

    >>> job = Behaviour(length_s=3600, cpus=Use(node=64, mean=5, peak=8),
    ...                 gpus=Use(node=8, mean=0.6, peak=1), load=0.3)
    >>> verdict = will_scale(job)
    >>> verdict.answer, verdict.evidence
    ('no', 'unlikely to gain from a larger node: never above 8 of 64 cores and 1 of 8 GPUs')
    """
    question = "Will it scale?"
    if math.isnan(behaviour.length_s):
        return _unknown(question, "it was seen only once")
    named = [("cores", behaviour.cpus)]
    gpus = behaviour.gpus
    if gpus.had > 0 or gpus.peak > 0:
        named.append(("GPUs", gpus))
    peaks = [use.share("peak", "had") for _, use in named]
    if any(math.isnan(peak) for peak in peaks):
        missing = next(name for (name, _), peak in zip(named, peaks, strict=True) if peak != peak)
        return _unknown(question, f"how many {missing} it had or used is not known")
    if max(peaks) <= _HALF:
        told = _listed([f"{_amount(use.peak)} of {_amount(use.had)} {name}" for name, use in named])
        limits = [
            "" if behaviour.starved == "" else behaviour.starved or _NO_LOAD,
            behaviour.unseen,
            _NO_GPU if math.isnan(gpus.had) and gpus.is_used is None else "",
            *_limits(behaviour),
        ]
        if limits := [each for each in limits if each]:
            return _unknown(question, f"never above {told}, but {_listed(limits)}")
        return Verdict(
            question=question,
            answer=NO,
            evidence=f"unlikely to gain from a larger node: never above {told}",
        )
    for name, use in named:
        if use.share("mean", "had") >= _FULL:
            return Verdict(
                question=question,
                answer=YES,
                evidence=f"may gain from more {name}: {_amount(use.mean)} of {_amount(use.had)} "
                "were busy on average",
            )
    told = "; ".join(
        f"{_amount(use.mean)} of {_amount(use.had)} {name} on average, {_amount(use.peak)} at most"
        for name, use in named
    )
    return _unknown(question, f"it neither fills what it had nor leaves it idle ({told})")


def is_held_back(behaviour: Behaviour) -> Verdict:
    """Say whether a job was held back by too little memory, slow storage or busy CPUs.

    >>> is_held_back(Behaviour(length_s=60, memory=Use(asked=100, mean=80, peak=99))).evidence
    'it came to 99 % of the memory that it asked for'
    """
    question = "Was it held back?"
    found = _limits(behaviour)
    # What hardly ever wants a CPU may have slept on a full node as on any other.
    slept = behaviour.cpus.peak < _ASLEEP and not behaviour.cpu_wait >= _WAITS
    if behaviour.starved and not slept:
        found.append(behaviour.starved)
    if found:
        return Verdict(question=question, answer=YES, evidence=_listed(found))
    if behaviour.starved:
        told = f"it hardly used a CPU, and {behaviour.starved}"
        return _unknown(question, told)
    unknown = [
        what
        for what, known in (
            ("how near it came to its memory", behaviour.memory.share("peak", "had")),
            ("whether it waited for storage", behaviour.io_wait),
            ("whether it waited for CPUs", 0.0 if behaviour.starved == "" else math.nan),
        )
        if math.isnan(known)
    ]
    if unknown:
        return _unknown(question, f"{_listed(unknown)} is not known")
    if behaviour.unseen:
        return _unknown(question, behaviour.unseen)
    return Verdict(
        question=question,
        answer=NO,
        evidence="it neither came near its memory nor waited for storage or CPUs",
    )


def _limits(behaviour: Behaviour) -> list[str]:
    """Return what held a job back besides CPUs, as far as is known."""
    found = []
    memory = behaviour.memory
    if behaviour.out_of_memory:
        found.append("it ran out of memory")
    elif memory.share("peak", "had") >= _NEAR:
        of = "it asked for" if memory.asked > 0 else "its node has"
        found.append(f"it came to {_percent(memory.share('peak', 'had'))} of the memory that {of}")
    for what, share in (("memory", behaviour.memory_wait), ("storage", behaviour.io_wait)):
        if share >= _WAITS:
            found.append(f"it waited for {what} for {_percent(share)} of its time")
    return found


def misuses_gpu_node(behaviour: Behaviour) -> Verdict:
    """Say whether a job sits on a node with GPUs and uses none of them."""
    question = "Does it keep a GPU node from others?"
    gpus = behaviour.gpus
    if gpus.is_used:
        of = f" of {_amount(gpus.node)}" if gpus.node > 0 else ""
        told = f"it used {_amount(gpus.peak)}{of} GPUs"
        return Verdict(question=question, answer=NO, evidence=told)
    if math.isnan(gpus.node) or (gpus.node == 0 and gpus.asked > 0):
        return _unknown(question, "whether its node has GPUs is not known")
    if gpus.node == 0:
        return Verdict(question=question, answer=NO, evidence="its node has no GPU")
    if gpus.is_used is None:
        return _unknown(question, "whether it used a GPU is not known")
    if behaviour.unseen:
        return _unknown(question, f"it was not seen to use a GPU, but {behaviour.unseen}")
    asked = f", though it asked for {_amount(gpus.asked)}" if gpus.asked > 0 else ""
    return Verdict(
        question=question,
        answer=YES,
        evidence=f"implicit misuse: its node has {_amount(gpus.node)} GPUs, it used none{asked}",
    )


def is_bad_gpu_job(behaviour: Behaviour) -> Verdict:
    """Say whether a job holds GPUs that it hardly uses."""
    question = "Does it waste GPUs?"
    gpus, memory = behaviour.gpus, behaviour.gpu_memory
    if not gpus.asked > 0 and not gpus.peak > 0:
        if not math.isnan(gpus.peak):
            return Verdict(question=question, answer=NO, evidence="it holds no GPU")
        if gpus.asked == 0:
            return Verdict(question=question, answer=NO, evidence="it asked for no GPU")
        return _unknown(question, "whether it holds a GPU is not known")
    if gpus.is_used is None and math.isnan(memory.peak):
        return _unknown(question, "what it used of its GPUs is not known")
    busy, full = gpus.share("peak", "had"), memory.share("peak", "had")
    shares = [share for share in (busy, full) if not math.isnan(share)]
    parts = [
        f"{_percent(share)} {word}"
        for share, word in ((busy, "busy"), (full, "full"))
        if not math.isnan(share)
    ]
    length = MISSING if math.isnan(behaviour.length_s) else format_hours(behaviour.length_s)
    told = f"its GPUs were {_listed(parts) if parts else MISSING} at most, over {length}"
    if shares and max(shares) >= _BAD_GPU:
        return Verdict(question=question, answer=NO, evidence=told)
    if len(shares) < 2 or math.isnan(behaviour.length_s):
        return _unknown(question, told)
    if behaviour.unseen:
        return _unknown(question, f"{told}, but {behaviour.unseen}")
    if behaviour.length_s < _BAD_GPU_S:
        return _unknown(question, f"{told}, which is less than {format_hours(_BAD_GPU_S)}")
    return Verdict(question=question, answer=YES, evidence=told)


def is_hogging(behaviour: Behaviour) -> Verdict:
    """Say whether a job without GPUs uses CPUs that others wait for.

    A job that uses no more cores than were kept for it is in nobody's way.
    """
    question = "Does it hog the CPUs?"
    cpus, length_s = behaviour.cpus, behaviour.length_s
    if behaviour.gpus.is_used:
        return Verdict(question=question, answer=NO, evidence="it used GPUs")
    if math.isnan(cpus.peak) or math.isnan(length_s):
        return _unknown(question, "how many cores it used for how long is not known")
    if cpus.peak <= cpus.asked:
        return Verdict(
            question=question,
            answer=NO,
            evidence=f"never above the {_amount(cpus.asked)} cores that were kept for it",
        )
    told = f"up to {_amount(cpus.peak)} of {_amount(cpus.node)} cores over {format_hours(length_s)}"
    large = cpus.share("peak", "node") >= _HOG_SHARE and length_s >= _HOG_S
    if not large and not cpus.mean * length_s >= _HOG_CORE_S:
        return Verdict(question=question, answer=NO, evidence=f"only {told}")
    if math.isnan(behaviour.load):
        return _unknown(question, f"{told}; how busy its node was is not known")
    busy = f"its node was {_percent(behaviour.load)} busy"
    if behaviour.load >= SATURATED and behaviour.gpus.is_used is None and behaviour.gpus.had != 0:
        return _unknown(question, f"{told}, while {busy}; whether it used GPUs is not known")
    return Verdict(
        question=question,
        answer=YES if behaviour.load >= SATURATED else NO,
        evidence=f"{told}, while {busy}",
    )


def whole_percent(share: float) -> str:
    """Return a share of a node in whole percent, rounded up: what was used is never 0 %.

    >>> whole_percent(90 / 800), whole_percent(0.0), whole_percent(float("nan"))
    ('12 %', '0 %', '---')
    """
    return MISSING if math.isnan(share) else f"{math.ceil(100 * share - 1e-9)} %"


_NO_LOAD = "how busy its node was is not known"
_NO_GPU = "whether it had or used a GPU is not known"


def _unknown(question: str, why: str) -> Verdict:
    return Verdict(question=question, answer=CANNOT_TELL, evidence=why)


def _listed(parts: list[str]) -> str:
    return " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), parts[-1]])


def _amount(number: float) -> str:
    return format_number(number, digits=3)
