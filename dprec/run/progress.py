"""The progress of training: a bar on a terminal, elsewhere a line after every tenth of the run, or half a minute."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dprec.run.tasks import Task
from dprec.training.callback import Privacy

LEAST_SECONDS = 2.0  # between two computations of ε, each of which composes the whole ledger
LINES = 10  # printed if there is no terminal, and more where these are further apart than:
MOST_SECONDS = 30.0


class TrainingProgress(pl.Callback):
    """Steps, ε spent of ε, the loss (not private), the metric of the last evaluation and the time left."""

    def __init__(self, steps: int, task: Task, privacy: Privacy | None, console: Console) -> None:
        self.steps = steps
        self.task = task
        self.privacy = privacy
        self.console = console
        self.bar: Progress | None = None
        self._epsilon = ""
        self._epsilon_read = float("-inf")
        self._lines, self._said = 0, 0.0
        self._judged = 0  # the step of the last evaluation
        self._first_step = 0
        self._started = 0.0
        self._begins = True  # until the first step is taken

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._first_step, self._started = trainer.global_step, time.monotonic()
        self._said = self._started
        self._lines = trainer.global_step * LINES // self.steps
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("training"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._task = self.bar.add_task("training", total=self.steps, completed=trainer.global_step, facts="")
            self.bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, now = trainer.global_step, time.monotonic()
        if self._begins:  # before it the model was looked at: what comes tells the pace
            self._first_step, self._started, self._begins = step, now, False
        if self.bar is not None:
            self.bar.update(self._task, completed=step, facts=self._facts(trainer, LEAST_SECONDS))
        elif step * LINES // self.steps > self._lines or now - self._said >= MOST_SECONDS:
            self._lines, self._said = step * LINES // self.steps, now
            self.console.print(
                f"step {step}/{self.steps}  {self._facts(trainer, 0.0)}  {self._left(step)}".rstrip(),
                soft_wrap=True,
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._judged = trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _facts(self, trainer: pl.Trainer, patience: float) -> str:
        facts = []
        if self.privacy is not None:
            facts.append(self._spent(self.privacy, patience))
        metrics = trainer.callback_metrics
        if "loss_not_private" in metrics:
            facts.append(f"loss {float(metrics['loss_not_private']):.3f} (not private)")
        name, written = self.task.watched
        if name in metrics:
            split = "validation" if getattr(getattr(trainer, "datamodule", None), "validation", False) else "test"
            facts.append(f"{written} {float(metrics[name]):.4f} on {split} {self.task.held_out} at step {self._judged}")
        return "  ".join(facts)

    def _spent(self, privacy: Privacy, patience: float) -> str:
        now = time.monotonic()
        if now - self._epsilon_read >= patience:
            of = "" if privacy.epsilon is None else f" of {privacy.epsilon:g}"
            self._epsilon = f"ε {privacy.spent_at_most:.2f}{of}"
            self._epsilon_read = time.monotonic()
        return self._epsilon

    def _left(self, step: int) -> str:
        if step == self._first_step:
            return ""
        rate = (time.monotonic() - self._started) / (step - self._first_step)
        minutes, seconds = divmod(round(rate * (self.steps - step)), 60)
        return f"{minutes}:{seconds:02d} left"
