"""Lightning's trainer as tests want it: on the CPU, without files, bars and sentences; and a run saved on its way."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from dprec.accounting.terms import Terms

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    """Return a trainer that says nothing and, unless `options` say otherwise, evaluates nothing."""
    warnings.simplefilter("ignore")
    return pl.Trainer(callbacks=list(callbacks), **QUIET | {"limit_val_batches": 0} | options)


class Noise(pl.Callback):
    """Stands for a private run whose steps have so much noise, and whose sums have none."""

    def __init__(self, std: float) -> None:
        self.terms = Terms(noise_std=std)


def with_noise(model: pl.LightningModule, std: float, **options: Any) -> None:
    """Give a model a trainer whose run has so much noise in each entry of a step's gradient."""
    model.trainer = trainer(Noise(std), **options)


class SaveAt(pl.Callback):
    """Saves the run after a step, and lets it go on."""

    def __init__(self, step: int, file: Path) -> None:
        self.step, self.file = step, file

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.file)
