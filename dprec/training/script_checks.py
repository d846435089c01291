"""What a script gives that one private gradient a step cannot train, and gradients as its optimizer takes them."""

from __future__ import annotations

import inspect

from torch import nn
from torch.optim import Optimizer

from dprec.contract import AsksOfAll, Losses, offers
from dprec.errors import UserError
from dprec.gradients.parameters import trained_parameters


def refuse_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that needs more than a gradient, or moves other parameters than those that are trained."""
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
    moved = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if not trained:
        raise UserError(f"{type(model).__name__} has no parameter that requires a gradient, so nothing is trained")
    if other := moved - trained.keys():
        raise UserError(
            f"the optimizer moves {len(other)} parameters that are not the model's: train a module that holds all "
            "that is trained"
        )
    if still := [name for key, name in trained.items() if key not in moved]:
        raise UserError(
            f"'{still[0]}' requires a gradient, and the optimizer does not move it: set its requires_grad to False, or "
            "give it to the optimizer"
        )


def refuse_losses(losses: Losses) -> None:
    """Refuse a function that wants more, or less, than a batch."""
    try:
        signature = inspect.signature(losses)
    except (TypeError, ValueError):  # of a builtin, which tells nothing
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
    """Refuse a model that asks for sums over all data, which a script's data cannot answer."""
    if offers(model, AsksOfAll) and model.releases:
        raise UserError(
            f"{type(model).__name__} looks at all data before training: train it with dprec.Privacy and a datamodule"
        )
