"""A real training job for measuring: a small language model on a GPU, with checkpoints.

It is what `docs/studies/h200.md` was measured with. Epochs, evaluations and checkpoints are marked;
a later start goes on from the newest checkpoint. On USR1 the plain loop ends with exit code 75 once
it has saved, as `lowtide run --save-on USR1` wants it. The model trains in a loop of its own, in
Hugging Face's Trainer or in Lightning's, which shows the callbacks at work in the real libraries.

    lowtide measure --repeat 4 --before 'rm -rf ckpt' -- python benchmarks/gpu_training.py
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from lowtide.marks import mark
from lowtide.measuring.callbacks import huggingface_callback, lightning_callback

VOCABULARY = 32_000


class LanguageModel(nn.Module):  # type: ignore[misc]
    """A decoder of plain transformer layers.

    Args:
        width: Numbers per token.
        layers: How many layers.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, batch_first=True, norm_first=True, dropout=0.0
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the loss of guessing each next token.

        Args:
            input_ids: Tokens, one row per text.
            labels: What to guess; the same tokens where left out.
        """
        labels = input_ids if labels is None else labels
        mask = nn.Transformer.generate_square_subsequent_mask(
            input_ids.shape[1], device=input_ids.device
        )
        with torch.autocast("cuda", torch.bfloat16, enabled=input_ids.is_cuda):
            guess = self.head(self.body(self.embed(input_ids), mask=mask, is_causal=True))
            loss = nn.functional.cross_entropy(guess[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss}


class Texts(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random tokens, the same for the same number.

    Args:
        size: How many texts.
        length: Tokens in each.
    """

    def __init__(self, size: int, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, VOCABULARY, (size, length), generator=generator)

    def __len__(self) -> int:
        """Return how many texts there are."""
        return len(self.tokens)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return one text, twice: what is read and what is to be guessed.

        Args:
            number: Which.
        """
        return {"input_ids": self.tokens[number], "labels": self.tokens[number]}


def train_plainly(model: LanguageModel, options: argparse.Namespace, folder: Path) -> None:
    """Train in a loop of one's own, and go on from the newest checkpoint.

    Args:
        model: The model.
        options: What was asked for.
        folder: Where checkpoints are.
    """
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    begun = 0
    saved = sorted(folder.glob("epoch-*.pt"))
    if saved:
        state = torch.load(saved[-1], map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun = state["epoch"] + 1
    # Half as many texts to evaluate on as to train on.
    texts = Texts(options.steps * options.batch, options.length)
    batches = torch.utils.data.DataLoader(texts, batch_size=options.batch)
    for epoch in range(begun, options.epochs):
        mark(f"epoch_{epoch}")
        for batch in batches:
            loss = model(batch["input_ids"].to(device, non_blocking=True))["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()
        mark(f"evaluate_{epoch}")
        with torch.no_grad():
            for number, batch in enumerate(batches):
                if 2 * number >= len(batches):
                    break
                loss = model(batch["input_ids"].to(device, non_blocking=True))["loss"]
        loss.item()
        mark(f"save_{epoch}")
        new = folder / f"epoch-{epoch:03}.new"
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, new
        )
        new.replace(new.with_suffix(".pt"))
        mark(f"saved_{epoch}", checkpoint=True)
        print(f"epoch {epoch} loss {loss.item():.3f}")
        if asked and epoch + 1 < options.epochs:
            sys.exit(75)


def train_in_huggingface(model: LanguageModel, options: argparse.Namespace, folder: Path) -> None:
    """Train in Hugging Face's Trainer.

    Args:
        model: The model.
        options: What was asked for.
        folder: Where checkpoints are.
    """
    from transformers import Trainer, TrainingArguments

    texts = Texts(options.steps * options.batch, options.length)
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=texts, eval_dataset=texts)
    trainer.add_callback(huggingface_callback())
    trainer.train()


def train_in_lightning(model: LanguageModel, options: argparse.Namespace, folder: Path) -> None:
    """Train in Lightning's Trainer.

    Args:
        model: The model.
        options: What was asked for.
        folder: Where checkpoints are.
    """
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    texts = Texts(options.steps * options.batch, options.length)
    batches = torch.utils.data.DataLoader(texts, batch_size=options.batch)
    trainer = pytorch_lightning.Trainer(
        max_epochs=options.epochs,
        default_root_dir=folder,
        callbacks=[lightning_callback()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), batches, batches)


LOOPS = {
    "plain": train_plainly,
    "huggingface": train_in_huggingface,
    "lightning": train_in_lightning,
}


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=LOOPS, default="plain")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50, help="batches in an epoch")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024, help="tokens in a text")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--folder", type=Path, default=Path("ckpt"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    LOOPS[options.loop](LanguageModel(options.width, options.layers), options, options.folder)
    mark("end")


if __name__ == "__main__":
    main()
