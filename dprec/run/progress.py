"""The progress of training: a line after every tenth of the run, or half a minute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
from rich.console import Console

from dprec.notices import left
from dprec.run.tasks import Task
from dprec.training.callback import Privacy

LINES = 10  # in a run, and more where these are further apart than:
MOST_SECONDS = 30.0


class TrainingProgress(pl.Callback):
    """Steps, ε spent of ε, the loss (not private), the metric of the last evaluation and the time left."""

    def __init__(self, steps: int, task: Task, privacy: Privacy | None, console: Console) -> None:
        self.steps = steps
        self.task = task
        self.privacy = privacy
        self.console = console
        self._lines, self._said = 0, 0.0
        self._judged = 0  # the step of the last evaluation
        self._first_step = 0  # before it the model was looked at: what comes then tells the pace
        self._started = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._said = time.monotonic()
        self._lines = trainer.global_step * LINES // self.steps

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, now = trainer.global_step, time.monotonic()
        if not self._first_step:
            self._first_step, self._started = step, now
        if step * LINES // self.steps > self._lines or now - self._said >= MOST_SECONDS:
            self._lines, self._said = step * LINES // self.steps, now
            self.console.print("  ".join([f"step {step}/{self.steps}", *self._facts(trainer, step)]), soft_wrap=True)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._judged = trainer.global_step

    def _facts(self, trainer: pl.Trainer, step: int) -> Iterator[str]:
        if self.privacy is not None:
            of = "" if self.privacy.epsilon is None else f" of {self.privacy.epsilon:g}"
            yield f"ε {self.privacy.spent_at_most:.2f}{of}"
        metrics = trainer.callback_metrics
        if "loss_not_private" in metrics:
            yield f"loss {float(metrics['loss_not_private']):.3f} (not private)"
        name, written = self.task.watched
        if name in metrics:
            split = "validation" if getattr(getattr(trainer, "datamodule", None), "validation", False) else "test"
            yield f"{written} {float(metrics[name]):.4f} on {split} {self.task.held_out} at step {self._judged}"
        if step > self._first_step:
            rate = (time.monotonic() - self._started) / (step - self._first_step)
            yield left(rate * (self.steps - step))
