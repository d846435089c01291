"""What a checkpoint of a run holds beyond Lightning's own, when it is written, and a model out of it."""

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
    """Writes beside the old checkpoint and renames; reads plain tensors and values only, and those from the file."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        replace_file(Path(path), lambda temporary: torch.save(checkpoint, temporary))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        return torch.load(path, map_location=map_location, weights_only=True, mmap=True)


class SaveRun(pl.Callback):
    """Saves ``checkpoints/last.ckpt`` at intervals and at the end, with all that using the model takes.

    ``facts`` are plain values that stay the same while training; ``guarantee`` gives what holds at this step.
    ``keep_generator`` makes dropout go on where it was; a private run must not, since how far the generator has
    come tells how much the users drawn had in their histories.
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
        """Time spent training, that of the interrupted parts of the run included."""
        return self.seconds_before + time.monotonic() - self._started

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.monotonic()
        self._saved_at = trainer.global_step

    def on_train_batch_start(self, *_: Any) -> None:
        if self._generator is not None:  # only now: making the data loaders has drawn from it
            torch.set_rng_state(self._generator)
            self._generator = None

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self.every and trainer.global_step % self.every == 0:
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        if trainer.global_step != self._saved_at:
            trainer.save_checkpoint(self.run.checkpoint)
            write_json(self.run.privacy, self.guarantee())
            # Not into the checkpoint: how long a step takes depends on whose histories are in it.
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
    """A checkpoint dprec wrote; it is loaded with ``weights_only``, so nothing in it can run."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # torch.load raises whatever a damaged pickle or zip happens to trip over.
        reason = textwrap.shorten(str(error), 80, placeholder=" ...")
        raise UserError(f"{path} cannot be read as a checkpoint, it is damaged or something else: {reason}") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("dprec"), dict):
        raise UserError(f"{path} is a checkpoint, but not one of dprec: give one that dprec.fit wrote")
    found = checkpoint["dprec"].get("format")
    if found != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {found}, this version reads {FORMAT}: use the dprec that wrote it"
        )
    return checkpoint


def load_run(run: str, trusted: Sequence[str] = ()) -> tuple[dict[str, Any], Learner]:
    """The checkpoint of a run, named by its folder or as a file, and the trained model in it; no data is needed.

    Whoever wrote the file runs nothing here: a model's class outside of dprec is imported only from `trusted` modules.
    """
    path = checkpoint_of(run)
    checkpoint = read_checkpoint(path)
    ours = checkpoint["dprec"]
    refuse_foreign(ours["model"], str(path), trusted)
    described = dict(ours["model"])
    if (described.get("init_args") or {}).get("memory_map"):  # where to write is not the file's to say
        described["init_args"] = {**described["init_args"], "memory_map": str(path.parent)}
    model: Learner = build(Learner, described, "model")
    try:
        model.load_state_dict(checkpoint["state_dict"])
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path} does not fit {ours['model']['class_path']}, has its code changed? {reason}") from None
    return checkpoint, model.eval()
