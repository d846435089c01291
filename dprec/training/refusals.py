"""Refuses features of a LightningModule, trainer or optimizer that do not fit one private update a step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_utilities.core.overrides import is_overridden
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dprec.contract import AsksOfAll, Losses, offers
from dprec.errors import UserError
from dprec.gradients.parameters import trained_parameters
from dprec.lightning import kinds

if TYPE_CHECKING:
    import pytorch_lightning as pl


GRADIENTS = {
    "backward": "gradients are made for each user: leave it out",
    "configure_gradient_clipping": "each user's gradient is clipped: leave it out, and set Privacy(max_norm=…)",
}
TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def refuse_hooks(module: pl.LightningModule) -> None:
    """Refuse a module that makes, clips or applies gradients by itself."""
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UserError(
            f"{name} optimizes by hand, past the private gradient: leave automatic_optimization on, and let "
            "training_step return one loss for each user"
        )
    for hook, reason in GRADIENTS.items():
        if _overrides(module, hook):
            raise UserError(f"{name}.{hook} cannot be kept: {reason}")


def refuse_module(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Refuse a trainer's optimizers, schedules, loader or hooks for moving batches, if they do not fit."""
    none = kinds("core.optimizer._MockOptimizer")  # where configure_optimizers returns None
    optimizers: list[Any] = [each for each in trainer.optimizers if not isinstance(each, none)]
    if len(optimizers) != 1:
        raise UserError(
            f"configure_optimizers returns {len(optimizers)} optimizers, but a step uses one: return one, with "
            "parameter groups for what differs"
        )
    refuse_optimizer(module, optimizers[0])
    if any(isinstance(each.scheduler, ReduceLROnPlateau) for each in trainer.lr_scheduler_configs):
        raise UserError(
            "ReduceLROnPlateau follows a metric, which is not private: use a schedule of the step's number, such as "
            "torch.optim.lr_scheduler.LambdaLR"
        )
    sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
    if not hasattr(sampler, "kind"):
        raise UserError(
            f"training batches come from {type(sampler).__name__}, whose sampling cannot be accounted for: give the "
            "trainer Privacy.loader(loader), which draws every user with the same probability"
        )
    for holder in (module, getattr(trainer, "datamodule", None)):
        for hook in TRANSFERS:
            if holder is not None and _overrides(holder, hook):
                raise UserError(
                    f"{type(holder).__name__}.{hook} gets a step's micro-batches, not one batch: do what it does in "
                    "the data set, in collate_fn or in training_step"
                )


def _overrides(holder: Any, hook: str) -> bool:
    """Whether a module or data module, of either Lightning package, overrides a hook."""
    bases = kinds("LightningModule", "LightningDataModule")
    base = next((base for base in bases if isinstance(holder, base)), None)
    return base is not None and is_overridden(hook, holder, base)


def refuse_tuners(trainer: pl.Trainer) -> None:
    """Refuse callbacks that train to find a setting: those steps would look at the data and have no noise."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, kinds("callbacks.LearningRateFinder", "callbacks.BatchSizeFinder")):
            raise UserError(
                f"{type(callback).__name__} trains without privacy to find its setting: leave it out and give "
                "model.learning_rate and data.batch_size"
            )


def refuse_averaging(trainer: pl.Trainer) -> None:
    """Refuse averages of weights, for a run whose rows owe noise between steps."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    averaging = kinds("callbacks.WeightAveraging", "callbacks.StochasticWeightAveraging")
    if any(isinstance(callback, averaging) for callback in callbacks):
        raise UserError("averaged weights would hold rows that still owe noise: leave LazyDP or averaging out")


def refuse_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that needs more than a gradient, or does not update exactly the trained parameters."""
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"the optimizer is a {type(optimizer).__name__}: give one torch.optim.Optimizer")
    if type(optimizer).__module__.split(".")[0] == "opacus":
        raise UserError("the optimizer is Opacus's, which adds noise of its own: give optimizer.original_optimizer")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"{type(optimizer).__name__} asks for the loss several times a step, and a step has one gradient: use "
            "another optimizer"
        )
    trained = {id(p): name for name, p in trained_parameters(model).items()}
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if not trained:
        raise UserError(f"{type(model).__name__} has no parameter that requires a gradient, so nothing is trained")
    if other := optimized - trained.keys():
        raise UserError(
            f"the optimizer moves {len(other)} parameters that are not the model's: train a module that holds all "
            "that is trained"
        )
    if still := [name for key, name in trained.items() if key not in optimized]:
        raise UserError(
            f"'{still[0]}' requires a gradient, and the optimizer does not move it: set its requires_grad to False, or "
            "give it to the optimizer"
        )


def refuse_losses(losses: Losses) -> None:
    """Refuse a losses function that cannot be called with a batch alone."""
    try:
        signature = inspect.signature(losses)
    except (TypeError, ValueError):  # a builtin, which has no signature
        return
    try:
        signature.bind("a batch")
    except TypeError:
        name = getattr(losses, "__name__", type(losses).__name__)
        raise UserError(
            f"{name}{signature} is called with a batch alone: write it with one argument, such as "
            "lambda batch: losses_of(model, batch)"
        ) from None


def refuse_asking(model: nn.Module) -> None:
    """Refuse a model that asks for sums over all data, which a script's data cannot compute."""
    if offers(model, AsksOfAll) and model.releases:
        raise UserError(
            f"{type(model).__name__} looks at all data before training: train it with dprec.Privacy and a datamodule"
        )


# Switches of Lightning's Trainer that would change which users a step sees, or what it releases.

# The allowed values, and why others are refused.
ALLOWED: dict[str, tuple[tuple[Any, ...], str]] = {
    "accumulate_grad_batches": (
        (1,),
        "a step is one batch; set data.batch_size, and data.tokens to bound memory",
    ),
    "overfit_batches": ((0, 0.0), "it repeats batches; overfit without Privacy"),
    "reload_dataloaders_every_n_epochs": ((0,), "a run has one training loader, which is checked before it begins"),
    "gradient_clip_val": ((None,), "set privacy.max_norm, which bounds each user's gradient"),
}


def refuse_switches(switches: Mapping[str, Any]) -> None:
    """Refuse the first of a Trainer's arguments whose value is not allowed."""
    for key, (allowed, reason) in ALLOWED.items():
        value = switches[key]
        if not any(value == choice and type(value) is type(choice) for choice in allowed):
            raise UserError(f"trainer.{key} cannot be {value}: {reason}")
    if str(switches["precision"]).startswith(("16", "transformer-engine")):
        raise UserError(
            f"trainer.precision cannot be {switches['precision']}: loss scaling skips steps; use 32-true or bf16-mixed"
        )


def switches_of(trainer: pl.Trainer) -> dict[str, Any]:
    """Return these arguments of a trainer."""
    return {key: getattr(trainer, key) for key in (*ALLOWED, "precision")}
