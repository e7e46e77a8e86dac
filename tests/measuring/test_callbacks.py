"""Callbacks, driven in the order in which the real libraries were seen to call them.

`benchmarks/gpu_training.py --loop huggingface` and `--loop lightning` run them in the libraries.
"""

from __future__ import annotations

import csv
import sys
import types
from pathlib import Path

import pytest

from lowtide.marks import EVENTS_VARIABLE, RUN_VARIABLE
from lowtide.measuring.callbacks import huggingface_callback, lightning_callback


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "events.csv"
    path.touch()
    monkeypatch.setenv(EVENTS_VARIABLE, str(path))
    monkeypatch.setenv(RUN_VARIABLE, "run")
    return path


def marked(path: Path) -> list[tuple[str, bool]]:
    with path.open() as file:
        return [(row[2], row[3] == "1") for row in csv.reader(file)]


def test_huggingface(events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.SimpleNamespace(TrainerCallback=object)
    monkeypatch.setitem(sys.modules, "transformers", library)  # type: ignore[arg-type]
    callback = huggingface_callback()
    state = types.SimpleNamespace(epoch=None, global_step=0)
    callback.on_train_begin(None, state, None)
    for epoch in range(2):
        state.epoch = float(epoch)
        callback.on_epoch_begin(None, state, None)
        state.global_step += 8
        for _ in range(3):
            callback.on_prediction_step(None, state, None)
        callback.on_evaluate(None, state, None, metrics={})
        callback.on_save(None, state, None)
    callback.on_train_end(None, state, None)
    assert marked(events) == [
        ("train_begin", False),
        ("epoch_0", False),
        ("evaluate_8", False),
        ("evaluated_8", False),
        ("saved_8", True),
        ("epoch_1", False),
        ("evaluate_16", False),
        ("evaluated_16", False),
        ("saved_16", True),
        ("train_end", False),
    ]


def test_lightning_has_saved_by_the_next_mark(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = types.SimpleNamespace(Callback=object)
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", library)  # type: ignore[arg-type]
    callback = lightning_callback()
    trainer = types.SimpleNamespace(current_epoch=0, global_step=0, sanity_checking=True)
    callback.on_validation_start(trainer, None)
    trainer.sanity_checking = False
    for epoch in range(2):
        trainer.current_epoch = epoch
        callback.on_train_epoch_start(trainer, None)
        callback.on_validation_start(trainer, None)
        trainer.global_step += 8
        callback.on_save_checkpoint(trainer, None, {})
    callback.on_fit_end(trainer, None)
    assert marked(events) == [
        ("try_validation_0", False),
        ("epoch_0", False),
        ("validate_0", False),
        ("save_8", False),
        ("epoch_1", True),
        ("validate_1", False),
        ("save_16", False),
        ("fit_end", True),
    ]
