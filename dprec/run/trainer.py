"""The Lightning trainer of a run: the switches that it refuses, its progress display, and its checkpoints."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from rich.console import Console

from dprec.cli.arguments import short
from dprec.cli.parser import Settings
from dprec.distributed.replicas import refuse_strategy
from dprec.errors import UserError
from dprec.models.learning.kept import FORMAT
from dprec.notices import left
from dprec.run.saved.folder import RunFolder, full_disk_is_one_line, replace_file, write_json
from dprec.run.tasks import Task
from dprec.training.callback import Privacy
from dprec.training.refusals import refuse_switches


def refuse_unsafe(trainer: Mapping[str, Any]) -> None:
    """Refuse a switch that would make the run differ from its settings, with or without privacy."""
    refuse_switches(trainer)
    for key, reason in (
        ("fast_dev_run", "set trainer.max_steps to 1 instead"),
        ("barebones", "the run would not be saved"),
    ):
        if trainer[key] is not False:
            raise UserError(f"trainer.{key} cannot be {trainer[key]}: {reason}")
    if trainer["max_steps"] == 0:
        raise UserError("trainer.max_steps is 0: give a number of at least 1, or -1 to use trainer.max_epochs")
    _refuse_no_card(trainer["accelerator"])
    every = trainer["check_val_every_n_epoch"]
    if every is not None and every < 1:
        raise UserError(f"trainer.check_val_every_n_epoch is {every}: give a number of passes, at least 1")


def _refuse_no_card(accelerator: object) -> None:
    """Refuse a missing GPU, and Metal, which has no float64 for sums."""
    metal = accelerator == "mps" or (accelerator == "gpu" and torch.backends.mps.is_available())
    if torch.cuda.is_available() or not (metal or accelerator in ("gpu", "cuda")):
        return
    why = "Metal has no float64, in which gradients are added up" if metal else "torch finds no GPU here"
    raise UserError(
        f"trainer.accelerator is {accelerator}, and {why}: give cpu, or a CUDA GPU and a torch built for it"
    )


def said_of(device: torch.device) -> str:
    """Return a run's notice about its training device."""
    if device.type == "cuda":
        return f"trains on {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"trains on the {device.type.upper()}, {threads} thread{'s' * (threads != 1)}"


def make_trainer(settings: Settings, run: RunFolder, steps: int, callbacks: list[pl.Callback]) -> pl.Trainer:
    """A trainer that ends after ``steps``, logs into the run folder and writes only complete checkpoints."""
    try:
        options = settings.trainer()
    except ValueError as error:
        raise UserError(f"trainer: {short(error)}") from None
    if options["accelerator"] == "auto":  # Lightning's own choice may be Metal
        options["accelerator"] = "gpu" if torch.cuda.is_available() else "cpu"
    options |= {
        "enable_progress_bar": False,  # dprec's own shows ε
        "default_root_dir": str(run.path),
        "max_steps": steps,
        "max_epochs": -1,
        "callbacks": [*_listed(options["callbacks"]), *callbacks],
        "plugins": [*_listed(options["plugins"]), AtomicCheckpointIO()],
    }
    if options["logger"] in (None, True):
        options["logger"] = CSVLogger(str(run.path), name="logs")
    try:
        trainer = pl.Trainer(**options)
    except (MisconfigurationException, ValueError, TypeError, ImportError) as error:
        raise UserError(f"trainer: {error}") from None
    refuse_strategy(trainer)
    if settings.tree["trainer"]["logger"] not in (None, True, False):  # the run folder has loggers already
        for logger in trainer.loggers:
            logger.log_hyperparams(settings.flat)
    return trainer


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


LINES = 10  # in a run; more if these would be further apart than:
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
        self._first_step = 0  # the pace is measured after it: the model was checked before
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
            of = "" if self.privacy.limit is None else f" of {self.privacy.limit:g}"
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


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a new file beside the old checkpoint, and renames it; reads only plain tensors and values."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        def write(temporary: Path) -> None:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:
                if not any(name in str(error) for name in ("PytorchStreamWriter", "inline_container")):
                    raise  # instead of the error of torch's writer, which hides the system's message
                raise OSError(errno.ENOSPC, "the disk takes no more") from error

        replace_file(Path(path), write)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        return torch.load(path, map_location=map_location, weights_only=True, mmap=True)


class SaveRun(pl.Callback):
    """Saves ``checkpoints/last.ckpt`` at intervals and at the end, with everything that is needed to use the model.

    ``facts`` are plain values that do not change during training; ``guarantee`` returns the guarantee at this step. The
    state of torch's generator is left out, because it reveals how long the histories of the drawn users were.
    """

    def __init__(
        self,
        run: RunFolder,
        facts: Mapping[str, Any],
        guarantee: Callable[[], dict[str, Any]],
        every: int,
    ) -> None:
        self.run = run
        self.facts = dict(facts)
        self.guarantee = guarantee
        self.every = every
        self._saved_at = -1
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time spent training, since the run began or was resumed."""
        return time.monotonic() - self._started

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.monotonic()
        self._saved_at = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self.every and trainer.global_step % self.every == 0:
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save after SIGTERM: it is raised between two steps, in all processes, so the run can continue from here."""
        if isinstance(exception, SIGTERMException):
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        if trainer.global_step == self._saved_at:
            return
        with full_disk_is_one_line(self.run):
            if trainer.is_global_zero:  # first, so that it never reports less than an existing checkpoint
                write_json(self.run.privacy, self.guarantee())
            trainer.save_checkpoint(self.run.checkpoint)  # by all processes, of which the first writes
            self._saved_at = trainer.global_step
            if (epsilon := self.guarantee().get("epsilon")) is not None and math.isfinite(epsilon):
                for logger in trainer.loggers:
                    logger.log_metrics({"epsilon": epsilon}, step=trainer.global_step - 1)  # as Lightning counts

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["dprec"] = {
            **self.facts,
            "format": FORMAT,
            "step": trainer.global_step,
            "guarantee": self.guarantee(),
        }
