"""Callbacks beside `Privacy` that would train, look at users first, or keep weights that are not private yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dprec.errors import UserError
from dprec.lightning import kinds

if TYPE_CHECKING:
    import pytorch_lightning as pl


def refuse_tuners(trainer: pl.Trainer) -> None:
    """Refuse callbacks that train to find a setting: those steps would look at the data and have no noise."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, kinds("callbacks.LearningRateFinder", "callbacks.BatchSizeFinder")):
            raise UserError(
                f"{type(callback).__name__} trains without privacy to find its setting: leave it out and give "
                "model.learning_rate and data.batch_size"
            )


def refuse_overtaking(trainer: pl.Trainer, privacy: pl.Callback) -> None:
    """Refuse a step whose batch another callback was the first to see."""
    first: pl.Callback = trainer.callbacks[0]  # type: ignore[attr-defined]
    if first is not privacy:
        raise UserError(
            f"{type(first).__name__} was put before Privacy while training, so it could change the batch: give the "
            "trainer its callbacks before trainer.fit"
        )


def refuse_averaging(trainer: pl.Trainer) -> None:
    """Refuse averages of weights, for a run whose rows owe noise between steps."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    averaging = kinds("callbacks.WeightAveraging", "callbacks.StochasticWeightAveraging")
    if any(isinstance(callback, averaging) for callback in callbacks):
        raise UserError("averaged weights would hold rows that still owe noise: leave LazyDP or averaging out")
