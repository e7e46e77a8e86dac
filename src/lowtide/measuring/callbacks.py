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
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            mark("train_begin")

        def on_epoch_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            mark(f"epoch_{int(state.epoch or 0)}")

        def on_evaluate(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
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
        def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
            mark(f"epoch_{trainer.current_epoch}")

        def on_validation_start(self, trainer: Any, *_: Any) -> None:
            mark(f"validate_{trainer.current_epoch}")

        def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
            mark(f"saved_{trainer.global_step}", checkpoint=True)

        def on_fit_end(self, *_: Any) -> None:
            mark("fit_end")

    return MarkEpochs()
