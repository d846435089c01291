"""Checkpoints of a run: what they hold beyond Lightning's, when they are written, and how to load a model from one."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from dprec.cli.classes import build, refuse_foreign
from dprec.errors import UserError
from dprec.models import Learner
from dprec.run.folder import RunFolder, checkpoint_of, replace_file, write_json

FORMAT = 1  # of the `dprec` part of a checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a new file beside the old checkpoint and renames it; reads only plain tensors and values."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        replace_file(Path(path), lambda temporary: torch.save(checkpoint, temporary))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        return torch.load(path, map_location=map_location, weights_only=True, mmap=True)


class SaveRun(pl.Callback):
    """Saves ``checkpoints/last.ckpt`` at intervals and at the end, with everything that using the model needs.

    ``facts`` are plain values that do not change during training; ``guarantee`` returns what holds at this step.
    ``keep_generator`` lets dropout continue where it stopped. A private run must not set it, because the state of the
    generator reveals how long the histories of the drawn users were.
    """

    def __init__(
        self,
        run: RunFolder,
        facts: Mapping[str, Any],
        guarantee: Callable[[], dict[str, Any]],
        every: int,
        keep_generator: bool,
    ) -> None:
        self.run = run
        self.facts = dict(facts)
        self.guarantee = guarantee
        self.every = every
        self.keep_generator = keep_generator
        self.seconds_before = 0.0
        self._saved_at = -1
        self._generator: torch.Tensor | None = None
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time spent training, including the interrupted parts of the run."""
        return self.seconds_before + time.monotonic() - self._started

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.monotonic()
        self._saved_at = trainer.global_step

    def on_train_batch_start(self, *_: Any) -> None:
        if self._generator is not None:  # not earlier, because making the data loaders draws from it
            torch.set_rng_state(self._generator)
            self._generator = None

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self.every and trainer.global_step % self.every == 0:
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        if trainer.global_step != self._saved_at:
            trainer.save_checkpoint(self.run.checkpoint)  # by all processes, of which the first writes
            if trainer.is_global_zero:
                write_json(self.run.privacy, self.guarantee())
                # Not into the checkpoint, because the time of a step depends on the histories in it.
                write_json(self.run.clock, {"seconds": self.seconds})
            self._saved_at = trainer.global_step

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["dprec"] = {
            **self.facts,
            "format": FORMAT,
            "step": trainer.global_step,
            "guarantee": self.guarantee(),
        }
        if self.keep_generator:
            checkpoint["dprec"]["generator"] = torch.get_rng_state()

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.seconds_before = self.run.seconds
        self._generator = checkpoint["dprec"].get("generator")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint that dprec wrote; it is loaded with ``weights_only``, so nothing in it can run."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # torch.load raises many kinds of error for a damaged pickle or zip.
        reason = textwrap.shorten(str(error), 80, placeholder=" ...")
        raise UserError(f"{path} cannot be read as a checkpoint ({reason}): give one that dprec.fit wrote") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("dprec"), dict):
        raise UserError(f"{path} is not a checkpoint of dprec: give one that dprec.fit wrote")
    found = checkpoint["dprec"].get("format")
    if found != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {found}, but this version reads {FORMAT}: use the dprec that wrote it"
        )
    return checkpoint


def load_run(run: str, trusted: Sequence[str] = ()) -> tuple[dict[str, Any], Learner]:
    """The checkpoint of a run folder or a file, and the trained model in it; no data is needed.

    The author of the file cannot run code here: a class outside of dprec is imported only from `trusted` modules.
    """
    path = checkpoint_of(run)
    checkpoint = read_checkpoint(path)
    ours = checkpoint["dprec"]
    refuse_foreign(ours["model"], str(path), trusted)
    described = dict(ours["model"])
    if (described.get("init_args") or {}).get("memory_map"):  # the file must not decide where to write
        described["init_args"] = {**described["init_args"], "memory_map": str(path.parent)}
    model: Learner = build(Learner, described, "model")
    try:
        model.load_state_dict(checkpoint["state_dict"])
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{path} does not fit {ours['model']['class_path']} ({reason}): use the code that wrote it"
        ) from None
    return checkpoint, model.eval()
