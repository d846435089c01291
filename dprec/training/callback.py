"""The Lightning callback that makes a model's training private: Lightning's hooks, handed to a private run."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from torch.optim import Optimizer

from dprec.checks.loading import Loading
from dprec.checks.switches import refuse_switches, switches_of
from dprec.errors import UserError
from dprec.privacy.descent import NoDescent
from dprec.privacy.run import PrivateRun
from dprec.privacy.steps import PrivateSteps, Trained
from dprec.training.other_callbacks import refuse_averaging, refuse_overtaking, refuse_tuners
from dprec.training.saved import forget_evaluation


class Privacy(PrivateRun, pl.Callback):
    """Trains whatever model it is given with differential privacy per user, or whatever else the data draws as one.

    Its arguments are those of `PrivateRun`.
    """

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        """Stand before all other callbacks: none sees a batch before this one holds it, and none trains before."""
        if stage == "fit":
            refuse_tuners(trainer)
            if hasattr(pl_module, "descent"):
                pl_module.descent = NoDescent()
            others = [each for each in trainer.callbacks if each is not self]  # type: ignore[attr-defined]
            trainer.callbacks = [self, *others]  # type: ignore[attr-defined]

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        refuse_switches(switches_of(trainer))
        if self.rules.defer:
            refuse_averaging(trainer)
        if not hasattr(pl_module, "descent") or not hasattr(pl_module, "losses"):
            raise UserError(f"{type(pl_module).__name__} cannot be trained privately: subclass dprec.Learner")
        total: int = pl_module.total_steps
        loader = trainer.train_dataloader
        self.plan(getattr(loader, "batch_sampler", None), total, tuple(getattr(pl_module, "releases", ())))
        self.coarse |= "bf16" in str(trainer.precision)

        def transfer(batch: Any) -> Any:
            batch = trainer.precision_plugin.convert_input(batch)
            batch = pl_module._on_before_batch_transfer(batch, dataloader_idx=0)
            return trainer.strategy.batch_to_device(batch, dataloader_idx=0)

        trained = Trained(pl_module, pl_module.losses, pl_module.optimizers(use_pl_optimizer=False))
        loading = Loading(loader, self.sampling.unit, [pl_module], transfer)
        self._steps = PrivateSteps(self, trained, loading, trainer.global_step, total)
        pl_module.descent = self._steps.descent

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        refuse_overtaking(trainer, self)
        self._steps.draw(batch)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Optimizer) -> None:
        """Let no parameter move by a gradient that was not made private."""
        self._steps.release(optimizer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._steps.refuse_own_step()

    def on_validation_start(self, *_: Any) -> None:
        self.rules.settle()

    def on_train_end(self, *_: Any) -> None:
        self.rules.settle()

    def on_exception(self, *_: Any) -> None:
        self.rules.settle()

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        forget_evaluation(checkpoint)
