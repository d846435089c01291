"""Writes a run's checkpoints while it trains: when, and what they hold beyond Lightning's."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities.exceptions import SIGTERMException

from dprec.models.learning.kept import FORMAT
from dprec.run.saved.folder import RunFolder, full_disk_is_one_line, replace_file, write_json


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a new file beside the old checkpoint, and renames it; reads only plain tensors and values."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        def write(temporary: Path) -> None:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:
                if not any(name in str(error) for name in ("PytorchStreamWriter", "inline_container")):
                    raise  # not torch's writer of files, which does not say what the system said
                raise OSError(errno.ENOSPC, "the disk takes no more") from error

        replace_file(Path(path), write)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        return torch.load(path, map_location=map_location, weights_only=True, mmap=True)


class SaveRun(pl.Callback):
    """Saves ``checkpoints/last.ckpt`` at intervals and at the end, with everything that using the model needs.

    ``facts`` are plain values that do not change during training; ``guarantee`` returns what holds at this step. The
    state of torch's generator stays out, because it reveals how long the histories of the drawn users were.
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
        """This exception is raised between two steps, in all processes alike, so the run can go on from here."""
        if isinstance(exception, SIGTERMException):
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        if trainer.global_step == self._saved_at:
            return
        with full_disk_is_one_line(self.run):
            if trainer.is_global_zero:  # first, so that it never tells less than a checkpoint that is there
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
