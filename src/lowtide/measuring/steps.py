"""Experiments as plans: which runs there are, and how each is to end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run of a plan.

    Attributes:
        kind: One of `recording.KINDS`.
        command: What is run; empty for idle time.
        pair: What it shares with the run it belongs to.
        stop_mark: The mark at which it is ended before its time.
        stop_delay_s: How long after that mark.
        with_signal: How it is ended, with all that it started: SIGTERM to stop, SIGKILL to kill.
        before: A shell command that is run first, unmeasured: to remove checkpoints, for example.
    """

    kind: str
    command: Sequence[str] = ()
    pair: str | None = None
    stop_mark: str | None = None
    stop_delay_s: float = 0.0
    with_signal: signal.Signals = signal.SIGTERM
    before: str = ""


def plan(
    experiment: str,
    command: Sequence[str],
    *,
    repeat: int = 1,
    resume: Sequence[str] = (),
    stop_mark: str | None = None,
    stop_delay_s: float = 0.0,
    before: str = "",
) -> list[tuple[str, Step]]:
    """Return the named runs of an experiment.

    Args:
        experiment: `full`, `stop-resume`, `kill-resume`, `startup` or `idle`.
        command: What is run.
        repeat: How often the whole is repeated.
        resume: What is run to resume; by default the same command.
        stop_mark: The mark at which a run is ended before its time.
        stop_delay_s: How long after that mark.
        before: A shell command that is run before each run but resumptions.
    """
    known = ("full", "stop-resume", "kill-resume", "startup", "idle")
    if experiment not in known:
        raise InvalidInput(f"an experiment is one of {', '.join(known)}, not {experiment!r}")
    if experiment not in ("full", "idle") and not stop_mark:
        raise InvalidInput(f"{experiment} needs to know where to stop: --stop-after-mark NAME")
    if experiment != "idle" and not command:
        raise InvalidInput("say what to run: lowtide measure -- python train.py")
    steps: list[tuple[str, Step]] = []
    for number in range(repeat):
        if experiment == "idle":
            steps.append((f"idle_{number}", Step(kind="idle")))
            continue
        if experiment == "full":
            steps.append((f"full_{number}", Step(kind="full", command=command, before=before)))
            continue
        kind = {"stop-resume": "stop", "kill-resume": "kill", "startup": "startup"}[experiment]
        pair = None if kind == "startup" else f"{kind}_{number}"
        first = Step(
            kind=kind,
            command=command,
            pair=pair,
            stop_mark=stop_mark,
            stop_delay_s=stop_delay_s,
            with_signal=signal.SIGKILL if kind == "kill" else signal.SIGTERM,
            before=before,
        )
        steps.append((f"{kind}_{number}", first))
        if pair is not None:
            again = Step(kind="resume", command=resume or command, pair=pair)
            steps.append((f"resume_after_{pair}", again))
    return steps
