"""Callbacks beside `Privacy`: none sees a batch before it, wherever it is listed, and none trains without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BatchSizeFinder, EarlyStopping, LearningRateFinder, ModelCheckpoint, Timer
from pytorch_lightning.callbacks.spike import SpikeDetection

from dprec import Privacy
from dprec.errors import UserError
from tests.privacy import support


class RepeatsOne(pl.Callback):
    """Makes every row of a batch the first user's."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: list[Any], batch_idx: int) -> None:
        batch[:] = [part.select([0] * len(part)) for part in batch]


class TrainsAhead(pl.Callback):
    """Runs the loop in its own company, as tuners do."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        others, trainer.callbacks = trainer.callbacks, []
        trainer.fit_loop.run()
        trainer.callbacks = others


def train(*callbacks: pl.Callback, **options: Any) -> Privacy:
    module, privacy = support.data(), Privacy(noise_multiplier=1.0)
    trainer = support.trainer(None, **options)
    trainer.callbacks = [*callbacks, privacy]
    trainer.fit(support.model(module), module)
    return privacy


def test_a_callback_that_is_listed_first_changes_no_batch() -> None:
    with pytest.raises(UserError, match="another batch than was drawn"):
        train(RepeatsOne())


def test_a_callback_that_looks_on_may_be_listed_first() -> None:
    assert train(pl.Callback()).steps == 6


@pytest.mark.parametrize(
    "callback", [lambda: LearningRateFinder(num_training_steps=3), lambda: BatchSizeFinder(max_trials=1), TrainsAhead]
)
def test_a_callback_that_trains_by_itself_is_refused_for_that(callback: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without privacy"):
        train(callback(), default_root_dir=str(tmp_path))


class Spikes(SpikeDetection):
    """Keeps losses of training."""

    def on_train_batch_end(self, *_: Any) -> None:  # type: ignore[override]
        self.last_val = 0.7


class Counts(pl.Callback):
    """What a callback of one's own keeps is one's own."""

    steps = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_a_checkpoint_has_neither_metrics_nor_times(tmp_path: Path) -> None:
    """A metric of held-out items has no noise, and a checkpoint is what is published."""

    def callbacks() -> list[pl.Callback]:
        return [
            EarlyStopping("ndcg@10", mode="max"),
            ModelCheckpoint(tmp_path, monitor="ndcg@10"),
            Timer(),
            Counts(),
            Spikes(),
        ]

    file, module, before = tmp_path / "saved.ckpt", support.data(), callbacks()
    trainer = support.trainer(None, limit_val_batches=1, enable_checkpointing=True)
    trainer.callbacks = [*before, Privacy(noise_multiplier=1.0)]
    trainer.fit(support.model(module), module)
    trainer.save_checkpoint(file)
    assert float(before[0].best_score) >= 0  # so that there was something to tell
    told = torch.load(file, weights_only=False)["callbacks"]
    assert sorted(key.partition("{")[0] for key in told) == ["Counts", "Privacy"]

    trainer = support.trainer(None, limit_val_batches=1, enable_checkpointing=True, max_epochs=4)
    after, module = callbacks(), support.data()
    trainer.callbacks = [*after, Privacy(noise_multiplier=1.0)]
    with pytest.warns(UserWarning, match="begins anew") as told:
        trainer.fit(support.model(module), module, ckpt_path=file, weights_only=False)
    names = [str(each.message).partition(" ")[0] for each in told if "begins anew" in str(each.message)]
    assert sorted(names) == ["EarlyStopping", "ModelCheckpoint", "Spikes", "Timer"]
    assert after[3].steps >= before[3].steps
