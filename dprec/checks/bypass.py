"""Refuses ways in which a model or its training could bypass the private gradient."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from dprec.contract import MixesUsers, offers
from dprec.errors import UserError


def refuse_model(model: nn.Module) -> None:
    """Refuse a model that declares that it mixes users, or has a parameter that no step can update."""
    if offers(model, MixesUsers) and model.mixes_users:
        raise UserError(f"{type(model).__name__} cannot be trained privately: {model.mixes_users}")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (reason := _unusable(parameter)):
            raise UserError(f"parameter '{name}' {reason}")
    for name, part in model.named_modules():
        if any(_of_opacus(getattr(hook, "__self__", None)) for hook in part._forward_hooks.values()):
            raise UserError(
                f"'{name}' cannot be trained privately: hooks of Opacus keep each user's gradient there; give dprec "
                "the model without, model.to_standard_module()"
            )


def _unusable(parameter: nn.Parameter) -> str | None:
    """Return why no step can update a parameter, and what to do; None if steps can."""
    if isinstance(parameter, UninitializedParameter):
        return "has no size yet: call the model on a batch first"
    if parameter.is_complex():
        return (
            "is complex, and noise is made of real numbers: hold its real and imaginary parts in one more dimension, "
            "and use torch.view_as_complex of it"
        )
    if not parameter.numel():
        return f"has no elements, {tuple(parameter.shape)}: leave it out, or set its requires_grad to False"
    if any(size > 1 and step == 0 for size, step in zip(parameter.shape, parameter.stride(), strict=True)):
        return "has several elements in one place in memory (expand): make it of a copy, by clone()"
    return None


def refuse_shared_memory(model: nn.Module, owing: Mapping[str, nn.Parameter]) -> None:
    """Refuse trained parameters that share memory, and tables of `owing` that have a second name.

    A step updates each parameter by itself. If a table is read under another name, its noise schedule does not notice,
    and rows would be read without the noise that they owe.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for (one, own), (other, its) in pairwise(sorted(trained, key=lambda named: _extent(named[1]))):
        if _meet(own, its):
            raise UserError(
                f"parameters '{one}' and '{other}' share memory, so that each step would move it twice: tie them by "
                "one nn.Parameter that both modules hold"
            )
    for held, value in _tensors_of(model) if owing else ():
        for name, table in owing.items():
            if value is not table and value.layout == torch.strided and _meet(table, value):
                raise UserError(
                    f"'{held}' shares memory with table '{name}', whose rows get their noise when they are read by "
                    "that name: read the table itself"
                )


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors: parameters, buffers, and tensors in plain attributes and their lists."""
    yield from (*model.named_parameters(), *model.named_buffers())
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, Tensor):
                    yield f"{path}.{name}".strip("."), tensor


def _extent(value: Tensor) -> tuple[int, int]:
    """Return where a tensor begins and ends in memory."""
    if not value.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.data_ptr(), value.data_ptr() + (last + 1) * value.element_size()


def _meet(one: Tensor, other: Tensor) -> bool:
    (begin, end), (first, last) = _extent(one), _extent(other)
    return one.device == other.device and one.device.type != "meta" and begin < last and first < end


def _of_opacus(owner: Any) -> bool:
    return any(kind.__module__.split(".")[0] == "opacus" for kind in type(owner).__mro__)


def refuse_gradient_hooks(model: nn.Module) -> None:
    """Refuse hooks on a trained parameter's gradient: no backward pass computes the private one."""
    for name, parameter in model.named_parameters():
        hooks: Any = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
        if hooks and parameter.requires_grad:
            raise UserError(
                f"parameter '{name}' has a hook on its gradient, which would see no private gradient: remove the hook, "
                "and put penalties into the losses"
            )


def refuse_other_gradients(model: Any, optimizer: Optimizer, private: Collection[int]) -> None:
    """Refuse a step with a gradient of a parameter whose `id` is not in `private`."""
    moved = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(id(parameter) not in private for parameter in moved):
        raise UserError(
            f"{type(model).__name__}: the optimizer moves a parameter whose gradient is not private: make it "
            "an nn.Parameter of the model, and do not change requires_grad in losses(batch)"
        )
