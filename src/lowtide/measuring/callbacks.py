"""Marks for training loops that are not one's own: Hugging Face Trainer, and Lightning.

Each library is imported when its callback is asked for, and only then.
"""

from __future__ import annotations

from typing import Any

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
