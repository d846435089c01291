"""Checkpoints of a run: what they hold beyond Lightning's, when they are written, and how to load a model from one."""

from __future__ import annotations

import errno
import math
import os
import sys
import textwrap
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities.exceptions import SIGTERMException

from dprec.cli.classes import build, refuse_foreign
from dprec.errors import UserError
from dprec.models import Learner
from dprec.notices import say
from dprec.run.saved.folder import RunFolder, checkpoint_of, replace_file, write_json
from dprec.run.saved.texts import unpacked

FORMAT = 1  # of the `dprec` part of a checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a new file beside the old checkpoint, and renames both; reads only plain tensors and values."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        last = Path(path)

        def write(temporary: Path) -> None:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:
                if not any(name in str(error) for name in ("PytorchStreamWriter", "inline_container")):
                    raise  # not torch's writer of files, which does not say what the system said
                raise OSError(errno.ENOSPC, "the disk takes no more") from error
            if last.exists():
                _keep(last, last.with_name(RunFolder(last).previous.name))

        replace_file(last, write)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        return torch.load(path, map_location=map_location, weights_only=True, mmap=True)


def _keep(last: Path, previous: Path) -> None:
    """Let `previous` be what `last` is now, at no cost where the file system has two names for one file."""
    with suppress(OSError):
        spare = previous.with_name(f".{previous.name}.{os.getpid()}.part")
        spare.unlink(missing_ok=True)
        os.link(last, spare)
        os.replace(spare, previous)


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
            try:
                self._save(trainer)
            except OSError as error:
                if trainer.world_size > 1:  # the other processes wait for this one
                    raise self._stop(error) from None
                print(f"warning: {self._unsaved(error)}; training goes on", file=sys.stderr)  # the next may find room

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save_or_stop(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """This exception is raised between two steps, in all processes alike, so the run can go on from here."""
        if isinstance(exception, SIGTERMException):
            self._save_or_stop(trainer)

    def _save_or_stop(self, trainer: pl.Trainer) -> None:
        try:
            self._save(trainer)
        except OSError as error:
            raise self._stop(error) from None

    def _stop(self, error: OSError) -> UserError:
        return UserError(
            f"{self._unsaved(error)}: make room, and continue with python -m dprec.fit --resume {self.run.quoted}"
        )

    def _unsaved(self, error: OSError) -> str:
        kept = f"the one of step {self._saved_at} is kept" if self._saved_at > 0 else "there is none before it"
        return f"cannot write the checkpoint {self.run.checkpoint} ({error.strerror or error}); {kept}"

    def _save(self, trainer: pl.Trainer) -> None:
        if trainer.global_step != self._saved_at:
            if trainer.is_global_zero:  # first, so that it never tells less than a checkpoint that is there
                write_json(self.run.privacy, self.guarantee())
            trainer.save_checkpoint(self.run.checkpoint)  # by all processes, of which the first writes
            if trainer.is_global_zero:
                # Not into the checkpoint, because the time of a step depends on the histories in it.
                write_json(self.run.clock, {"seconds": self.seconds})
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
        # The arguments of the model, by which Lightning's own load_from_checkpoint(path) makes it again.
        checkpoint[pl_module.CHECKPOINT_HYPER_PARAMS_KEY] = dict(self.facts["model"]["init_args"])
        if self.keep_generator:
            checkpoint["dprec"]["generator"] = torch.get_rng_state()

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.seconds_before = self.run.seconds
        self._generator = checkpoint["dprec"].get("generator")


def read_checkpoint(path: Path, every_byte: bool = False) -> dict[str, Any]:
    """A checkpoint that dprec wrote; it is loaded with ``weights_only``, so nothing in it can run.

    With ``every_byte``, its weights too are compared with their checksums, which loading alone does not do.
    """
    try:
        if every_byte:
            _refuse_changed_bytes(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file that is no checkpoint, torch says more than that it is none
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # torch.load raises many kinds of error for a damaged pickle or zip.
        reason = textwrap.shorten(str(error), 80, placeholder=" ...")
        raise UserError(
            f"{path} cannot be read as a checkpoint ({reason}): {_other(path) or 'give one that dprec.fit wrote'}"
        ) from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("dprec"), dict):
        raise UserError(f"{path} is not a checkpoint of dprec: give one that dprec.fit wrote")
    found = checkpoint["dprec"].get("format")
    if found != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {found}, but this version reads {FORMAT}: use the dprec that wrote it"
        )
    _refuse_misshapen(checkpoint, path)
    if isinstance(kept := checkpoint["dprec"].get("catalogue"), dict):
        try:
            checkpoint["dprec"]["catalogue"] = unpacked(kept)
        except ValueError as error:
            raise UserError(
                f"{path}: {error} in its catalogue, so it is not as dprec.fit wrote it: give another one"
            ) from None
    return checkpoint


def _refuse_changed_bytes(path: Path) -> None:
    with zipfile.ZipFile(path) as packed:
        damaged = packed.testzip()
    if damaged is not None:
        raise ValueError(f"the bytes of {damaged} have changed")


def _refuse_misshapen(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint without what every one of this format has: somebody has changed it."""
    ours = checkpoint["dprec"]
    texts = (("model", "class_path"), ("data", "class_path"), ("guarantee", "guarantee"))
    for group, key in texts:
        if not isinstance(ours.get(group), dict) or not isinstance(ours[group].get(key), str):
            raise UserError(f"{path} does not say {group}.{key}, so it is not as dprec.fit wrote it: give another one")
    described = [("init_args", ours[group]) for group in ("model", "data") if ours[group].get("init_args") is not None]
    for group, holder in (*described, ("identity", ours), ("recipe", ours), ("state_dict", checkpoint)):
        if not isinstance(holder.get(group), dict):
            raise UserError(f"{path} holds no {group}, so it is not as dprec.fit wrote it: give another one")


def _other(path: Path) -> str | None:
    """What to do where a run's last checkpoint is damaged and it has the one before."""
    previous = RunFolder(path.parent.parent).previous
    if path.name != RunFolder(path).checkpoint.name or not previous.is_file():
        return None
    return (
        f"use {previous}, the one before. To continue from it, put it in this one's place; its ledger is without the "
        "steps in between, which count too if anybody has seen the damaged one whole"
    )


def load_run(run: str, trusted: Sequence[str] = ()) -> tuple[dict[str, Any], Learner]:
    """The checkpoint of a run folder or a file, and the trained model in it; no data is needed.

    Says of a run that has not taken all of its steps that it is unfinished. The author of the file cannot run code
    here: a class outside of dprec is imported only from `trusted` modules.
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
    _say_if_unfinished(ours, Path(run))
    return checkpoint, model.eval()


def _say_if_unfinished(ours: Mapping[str, Any], run: Path) -> None:
    step, planned = ours.get("step"), ours["identity"].get("steps")
    if isinstance(step, int) and isinstance(planned, int) and step < planned:
        goes_on = RunFolder(run).config.is_file() and not RunFolder(run).metrics.exists()
        how = f": continue it with python -m dprec.fit --resume {RunFolder(run).quoted}" if goes_on else ""
        say(f"{run} is at step {step:,} of {planned:,}, so it is not trained to the end{how}")
