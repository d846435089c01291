"""Which losses another process finds, too: those that follow from parameters, buffers and a user's row alone.

Of the models of this package that is known, and a class of one's own can say it. Hooks, and any other losses, may
follow from what is in this process alone.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from dprec.contract import Losses
from dprec.gradients.uses.batches import select_users

_PLAIN = (bool, int, float, str, type(None))


def computes_anywhere(module: nn.Module, losses: Losses) -> bool:
    """Whether a copy of the module in another process has these losses, if it has the same numbers.

    >>> layer = nn.Linear(1, 1)
    >>> computes_anywhere(layer, layer)
    False
    """
    own: Any = losses
    while hasattr(own, "__wrapped__") and _is_of(type(own), "dprec"):  # what a run puts around it
        own = own.__wrapped__
    known = getattr(module, "losses", None)
    says, parts = vars(type(module)), _parts(module)
    return (
        row_local(module)
        and own in (known, getattr(known, "__func__", known))  # what Lightning's loop asks is the function itself
        and not any(map(_is_hooked, parts))
        and not _is_watched()
        and ("loss_is_row_local" in says or all(_is_of(type(part), "torch", "dprec") for part in parts))
    )


def row_local(module: nn.Module) -> bool:
    """Whether a model says that its losses follow from parameters, buffers and a user's row."""
    return bool(getattr(module, "loss_is_row_local", False))


def _is_watched() -> bool:
    """Whether modes of torch are on, which another process may not have."""
    return torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack() > 0


def _parts(module: nn.Module) -> list[nn.Module]:
    """Return a module and what it holds, but no metrics, which losses do not ask."""
    return [part for part in module.modules() if not any(_is_of(kind, "torchmetrics") for kind in type(part).__mro__)]


def _is_of(kind: type, *packages: str) -> bool:
    return kind.__module__.partition(".")[0] in packages


def _is_hooked(part: nn.Module) -> bool:
    """Whether a module has hooks, or holds functions, which may stand in for its own."""
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    held = {name for name, value in vars(part).items() if isinstance(value, (FunctionType, MethodType))}
    return any(hooks) or bool(held - {"configure_model"})


def draws(losses: Losses, part: Any) -> bool:
    """Whether losses draw from torch's generator, which belongs to one process; it is left as it was."""
    before = torch.get_rng_state()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        losses(select_users(part, [0]))
        return not torch.equal(before, torch.get_rng_state())


def likeness(module: nn.Module) -> Any:
    """Return what losses may follow from beside the numbers of a module's parameters and buffers."""
    own: list[Any] = [getattr(type(module), name, None) for name in ("losses", "encode")]
    for part in _parts(module):
        own.append((id(part), type(part), type(part).forward))
        own += [(name, mark) for name, value in vars(part).items() if (mark := _mark(value)) is not None]
    registered = [*module.parameters(), *module.buffers()]
    return own, [(id(tensor), tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in registered]


def _mark(value: Any) -> Any:
    """Return what tells an attribute from another: a number or text, and of a tensor that it was not written to."""
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, tuple) and not all(isinstance(each, _PLAIN) for each in value):
        return None
    return (value,) if isinstance(value, (*_PLAIN, tuple)) else None
