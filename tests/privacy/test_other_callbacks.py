"""Callbacks beside `Privacy`: none sees a batch before it, wherever it is listed, and none trains without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import BatchSizeFinder, LearningRateFinder

from dprec import Privacy
from dprec.errors import UserError
from tests.privacy import support


class RepeatsOne(pl.Callback):
    """Makes every row of a batch the first user's."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: list[Any], batch_idx: int) -> None:
        batch[:] = [part.select([0] * len(part)) for part in batch]


class Overtakes(RepeatsOne):
    """Puts itself before all others once training has begun."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        trainer.callbacks = [self, *(each for each in trainer.callbacks if each is not self)]


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


@pytest.mark.parametrize(
    ("callback", "said"), [(RepeatsOne, "another batch than was drawn"), (Overtakes, "put before Privacy")]
)
def test_a_callback_that_is_listed_first_changes_no_batch(callback: type[pl.Callback], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        train(callback())
    assert "\n" not in str(caught.value)


def test_a_callback_that_looks_on_may_be_listed_first() -> None:
    assert train(pl.Callback()).steps == 6


@pytest.mark.parametrize(
    "callback", [lambda: LearningRateFinder(num_training_steps=3), lambda: BatchSizeFinder(max_trials=1), TrainsAhead]
)
def test_a_callback_that_trains_by_itself_is_refused_for_that(callback: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without privacy") as caught:
        train(callback(), default_root_dir=str(tmp_path))
    assert "\n" not in str(caught.value)
