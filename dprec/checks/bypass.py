"""Ways round the private gradient that a model or its training could take, each refused in one line."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim import Optimizer

from dprec.contract import MixesUsers, offers
from dprec.errors import UserError


def refuse_model(model: nn.Module) -> None:
    """Refuse a model that says itself that it mixes users, or that writes in every pass."""
    if offers(model, MixesUsers) and model.mixes_users:
        raise UserError(f"{type(model).__name__} cannot be trained privately: {model.mixes_users}")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise UserError(
                f"parameter '{name}' is complex, and noise is made of real numbers: hold its real and imaginary parts "
                "in one more dimension, and use torch.view_as_complex of it"
            )
    for name, part in model.named_modules():
        if reason := _rewritten(part):
            raise UserError(f"'{name}' cannot be trained privately: {reason}")


def _rewritten(part: nn.Module) -> str | None:
    """Why the weight of a module is not the same in all passes of a step, or not seen; None where it is both."""
    hooks = part._forward_pre_hooks.values()
    if part.training and (isinstance(part, _SpectralNorm) or any(isinstance(h, SpectralNorm) for h in hooks)):
        return (
            "spectral_norm writes its vectors in every pass, so that a user's gradient depends on how many passes came "
            "before; use torch.nn.utils.parametrizations.weight_norm or a LayerNorm"
        )
    if any(isinstance(hook, WeightNorm) for hook in hooks):
        return (
            "torch.nn.utils.weight_norm keeps the weight of the last pass in the module; use the one in "
            "torch.nn.utils.parametrizations"
        )
    return None


def refuse_gradient_hooks(model: nn.Module) -> None:
    """Refuse hooks on the gradient of a trained parameter: no backward pass makes the private one."""
    for name, parameter in model.named_parameters():
        hooks: Any = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
        if hooks and parameter.requires_grad:
            raise UserError(
                f"parameter '{name}' has a hook on its gradient, which would see no private gradient: remove the hook; "
                "a penalty goes into the losses, a bound on a user's gradient is max_norm"
            )


def refuse_other_gradients(model: Any, optimizer: Optimizer, private: Collection[int]) -> None:
    """Refuse a step that would move a parameter by a gradient not among these, which are given by `id`."""
    moved = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(id(parameter) not in private for parameter in moved):
        raise UserError(
            f"{type(model).__name__}: the optimizer moves a parameter whose gradient is not private: make it "
            "an nn.Parameter of the model, and do not change requires_grad in losses(batch)"
        )


def refuse_own_step(model: Any, taken: int) -> None:
    """Refuse a training step that did not ask for the private gradient exactly once."""
    if taken != 1:
        raise UserError(
            f"{type(model).__name__}.training_step took a step without the private gradient: "
            "do not override training_step, write losses(batch)"
        )
