"""The Lightning callback that makes a model's training private: it passes Lightning's hooks to a private run.

`automatic` has the step. The docstring of `dprec.privacy` lists the files of a private run, that of `dprec` says where
to add a model, a strategy or an operation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from dprec.accounting.terms import Terms
from dprec.checks.loading import Loading
from dprec.contract import AsksOfAll, Drawable, offers
from dprec.data.draws.length import draw_from, steps_of
from dprec.distributed.replicas import begin_alike, leave_to_the_step, ranks_of, refuse_strategy
from dprec.lightning import Callback, kinds
from dprec.privacy.run import PrivateRun
from dprec.privacy.steps import PrivateSteps, TrainingTarget
from dprec.training.automatic import AutomaticStep, not_begun
from dprec.training.loaders import private_loader
from dprec.training.refusals import refuse_averaging, refuse_module, refuse_switches, refuse_tuners, switches_of

if TYPE_CHECKING:
    import pytorch_lightning as pl


class Privacy(PrivateRun, Callback):
    """A Lightning callback that trains your model with differential privacy, per user or per record.

    Add it to the trainer's callbacks and let `Privacy.loader` draw the users; the model needs no privacy code. The
    model is a LightningModule with `losses(batch)`, or with a `training_step` that returns one loss for each user. In
    each step the gradient of each user is clipped, the sum gets noise, and the ledger records what this costs. After
    training, `guarantee()` states in one sentence what holds. For a training loop of your own, use `dprec.private`.

    Args:
        epsilon: the budget ε; training stops before a step that would pass it. None: ε is only reported.
        delta: δ of the guarantee. None: 1 / users.
        noise_multiplier: σ, noise per clipping norm. None: the smallest that keeps the whole run in the budget.
        clipping: auto-v (every user's gradient scaled to `max_norm`), auto-s or flat.
        max_norm: C, the most one user can add to the sum of gradients.
        noise_seed: repeatable noise for tests. Anyone who knows it can remove the noise: the run is not private.
        verify: the share of the time that checks of random steps may take (`dprec.verify.self_check`); 0 for none.
        sparsity: strategies for the rows of embedding tables, in order (`dprec.sparsity`). None: dense noise.
        budget_over_time: {"epsilon": 8, "days": 365}: the most that this run and those that it continues
            (`continue_from`) may spend together in so many days. Without `epsilon` and `noise_multiplier`, this run
            gets the share of one of the days that are left.

    >>> import pytorch_lightning as pl
    >>> import torch
    >>> from dprec import Privacy
    >>> class Model(pl.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(3, 1)
    ...     def training_step(self, batch, batch_idx):
    ...         return self.layer(batch).squeeze(1).square()  # one loss for each user
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> privacy, users = Privacy(epsilon=2, noise_multiplier=4), torch.randn(50, 3)  # a row for each user
    >>> trainer = pl.Trainer(accelerator="cpu", max_steps=2, callbacks=[privacy], barebones=True)
    >>> trainer.fit(Model(), Privacy.loader(users, expected_batch=10))
    >>> privacy.steps, 0 < privacy.spent < 2
    (2, True)
    """

    _automatic: AutomaticStep | None = None  # while a module trains

    @staticmethod
    def loader(data: Drawable, expected_batch: int | None = None, **options: Any) -> DataLoader[Any]:
        """Return a loader of a data set, or of another loader's, that draws every user with the same probability.

        Args:
            data: a data set of which each item is all of one user, or a DataLoader of one, whose order is then dropped.
            expected_batch: users in a step, on average: the loader's batch size by default.
            options: those of `dprec.training.loaders.private_loader`: max_users, tokens, collate_fn, sampling,
                num_workers.
        """
        return private_loader(data, expected_batch, **options)

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        """Put this callback first: no other one may see a batch before it is checked, or train before this one does."""
        if stage == "fit":
            refuse_tuners(trainer)
            refuse_strategy(trainer)
            leave_to_the_step(trainer)
            self._automatic = AutomaticStep(trainer, pl_module)
            others = [each for each in trainer.callbacks if each is not self]  # type: ignore[attr-defined]
            trainer.callbacks = [self, *others]  # type: ignore[attr-defined]

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        refuse_switches(switches_of(trainer))
        if self.strategies.owe_noise:
            refuse_averaging(trainer)
        refuse_module(trainer, pl_module)
        automatic: Any = self._automatic
        total, loader = steps_of(trainer), trainer.train_dataloader
        releases = tuple(pl_module.releases) if offers(pl_module, AsksOfAll) else ()
        self.plan(getattr(loader, "batch_sampler", None), total, releases)
        self.coarse |= "bf16" in str(trainer.precision)

        def transfer(batch: Any) -> Any:
            batch = trainer.precision_plugin.convert_input(batch)
            batch = pl_module._on_before_batch_transfer(batch, dataloader_idx=0)
            return trainer.strategy.batch_to_device(batch, dataloader_idx=0)

        trained = TrainingTarget(pl_module, automatic.losses, pl_module.optimizers(use_pl_optimizer=False))
        loading = Loading(loader, self.sampling.unit, [pl_module], transfer)
        ranks = ranks_of(trainer)
        begin_alike(pl_module, ranks)
        self._steps = PrivateSteps(self, trained, loading, trainer.global_step, total, ranks)
        automatic.begin(self._steps)
        trainer.fit_loop.epoch_loop.max_steps = self.terms.steps(total)
        draw_from(trainer, trainer.global_step)

    @property
    def terms(self) -> Terms:
        """What a model may ask of this run, from the start of training on."""
        if not hasattr(self, "_steps"):
            raise not_begun()
        return self._steps.terms

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._automatic is not None:
            self._automatic.draw(batch, batch_idx)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._automatic is not None:
            self._automatic.end()

    def on_validation_start(self, *_: Any) -> None:
        self.strategies.settle()

    def on_train_end(self, *_: Any) -> None:
        self.strategies.settle()

    def on_exception(self, *_: Any) -> None:
        self.strategies.settle()
        self._leave()

    def teardown(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        self._leave()

    def _leave(self) -> None:
        if hasattr(self, "_steps"):
            self._steps.end()
        if self._automatic is not None:
            self._automatic.leave()
            self._automatic = None

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        forget_evaluation(checkpoint)
        forget_measured(checkpoint, trainer.callbacks)  # type: ignore[attr-defined]

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        resumed = trainer.state.fn == "fit"
        for name in begins_anew(trainer.callbacks) if resumed else ():  # type: ignore[attr-defined]
            warnings.warn(f"{name} begins anew: what it had measured of the data is in no checkpoint", stacklevel=2)


EVALUATION = ("validate_loop", "test_loop", "predict_loop")
MEASURING = ("callbacks.Checkpoint", "callbacks.EarlyStopping", "callbacks.spike.SpikeDetection", "callbacks.Timer")
# Lightning's own callbacks whose states depend on released weights only.
KEPT = ("callbacks.BaseFinetuning", "callbacks.StochasticWeightAveraging", "callbacks.WeightAveraging")


def forget_evaluation(checkpoint: MutableMapping[str, Any]) -> None:
    """Set Lightning's counts of evaluated batches to zero: a user's long history can add a batch to them.

    >>> counts = {"total": {"ready": 3}, "is_last_batch": True}
    >>> loops = {"fit_loop": {"epoch_loop.val_loop.batch_progress": counts, "epoch_progress": {"total": 2}}}
    >>> forget_evaluation({"loops": loops})
    >>> loops["fit_loop"]["epoch_loop.val_loop.batch_progress"], loops["fit_loop"]["epoch_progress"]
    ({'total': {'ready': 0}, 'is_last_batch': False}, {'total': 2})
    """
    for loop, state in checkpoint.get("loops", {}).items():
        for key in state:
            if loop in EVALUATION or ".val_loop." in key:
                state[key] = _zeroed(state[key])


def forget_measured(checkpoint: MutableMapping[str, Any], callbacks: Iterable[pl.Callback]) -> None:
    """Leave out the states of callbacks that keep a metric, or how long training took: neither is private.

    >>> from pytorch_lightning.callbacks import Timer
    >>> saved = {"callbacks": {Timer().state_key: {"time_elapsed": 0.1}, "Mine": {"rounds": 3}}}
    >>> forget_measured(saved, [Timer()])
    >>> saved
    {'callbacks': {'Mine': {'rounds': 3}}}
    """
    for callback in callbacks:
        if _measures(callback):
            checkpoint.get("callbacks", {}).pop(callback.state_key, None)


def begins_anew(callbacks: Iterable[pl.Callback]) -> list[str]:
    """Return the names of callbacks that act differently after a resume than without a break."""
    measuring = [each for each in callbacks if isinstance(each, kinds(*MEASURING))]
    blind = [each for each in measuring if isinstance(each, kinds(MEASURING[0])) and not getattr(each, "monitor", None)]
    return [type(each).__name__ for each in measuring if each not in blind]


def _measures(callback: pl.Callback) -> bool:
    own = type(callback).__module__.startswith(("pytorch_lightning.", "lightning."))
    return isinstance(callback, kinds(*MEASURING)) or (own and not isinstance(callback, kinds(*KEPT)))


def _zeroed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _zeroed(inner) for key, inner in value.items()}
    return type(value)(0) if isinstance(value, (bool, int, float)) else value
