"""What a measured program is told to do, and says: plans of runs, and marks of training loops.

Hugging Face Trainer and Lightning are imported when their callbacks are asked for, and only then.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.errors import InvalidInput
from lowtide.marks import mark


def huggingface_callback() -> Any:
    """Return a callback that marks epochs, evaluations and checkpoints of a `Trainer`.

    ```
    trainer.add_callback(huggingface_callback())
    ```
    """
    from transformers import TrainerCallback

    class MarkEpochs(TrainerCallback):  # type: ignore[misc]
        evaluating = False

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            mark("train_begin")

        def on_epoch_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            mark(f"epoch_{int(state.epoch or 0)}")

        def on_prediction_step(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            # Nothing is said when an evaluation begins, only after each of its batches.
            if not self.evaluating:
                self.evaluating = True
                mark(f"evaluate_{state.global_step}")

        def on_evaluate(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            self.evaluating = False
            mark(f"evaluated_{state.global_step}")

        def on_save(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            mark(f"saved_{state.global_step}", checkpoint=True)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            mark("train_end")

    return MarkEpochs()


def lightning_callback() -> Any:
    """Return a callback that marks epochs, validations and checkpoints of a Lightning `Trainer`.

    ```
    trainer = Trainer(callbacks=[lightning_callback()])
    ```
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class MarkEpochs(Callback):  # type: ignore[misc]
        saving = False

        def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
            self.say(f"epoch_{trainer.current_epoch}")

        def on_validation_start(self, trainer: Any, *_: Any) -> None:
            # Before the first epoch Lightning tries a few batches.
            what = "try_validation" if trainer.sanity_checking else "validate"
            self.say(f"{what}_{trainer.current_epoch}")

        def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
            self.say(f"save_{trainer.global_step}")
            self.saving = True

        def on_fit_end(self, *_: Any) -> None:
            self.say("fit_end")

        def say(self, label: str) -> None:
            # Lightning tells when it begins to save, not when it has: by the next mark it has.
            mark(label, checkpoint=self.saving)
            self.saving = False

    return MarkEpochs()


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
