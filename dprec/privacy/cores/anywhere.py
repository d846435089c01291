"""Which losses another process finds, too: those that follow from parameters, buffers and a user's row alone.

Of the models of this package that is known, and a class of one's own can say it. Functions that were put into a model,
hooks, and any other losses may follow from what is in this process alone.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from dprec.contract import Losses, RowsAlone, offers
from dprec.gradients.uses.batches import select_users

_PLAIN = (bool, int, float, str, type(None))


def computes_anywhere(module: nn.Module, losses: Losses) -> bool:
    """Whether a copy of the module in another process has these losses, if it has the same numbers.

    >>> layer = nn.Linear(1, 1)
    >>> computes_anywhere(layer, layer)
    False
    """
    own: Any = losses
    while hasattr(own, "__wrapped__") and _is_of("dprec", type(own)):  # what a run puts around it
        own = own.__wrapped__
    parts = _parts(module)
    return (
        offers(module, RowsAlone)
        and module.rows_alone
        and own == getattr(module, "losses", None)
        and not any(map(_is_changed, parts))
        and not _is_watched()
        and ("rows_alone" in vars(type(module)) or all(_is_of("torch dprec", type(part)) for part in parts))
    )


def _parts(module: nn.Module) -> list[nn.Module]:
    """Return a module and what it holds, but no metrics, which losses do not ask."""
    return [part for part in module.modules() if not _is_of("torchmetrics", *type(part).__mro__)]


def _is_of(packages: str, *kinds: type) -> bool:
    return any(kind.__module__.partition(".")[0] in packages.split() for kind in kinds)


def _is_watched() -> bool:
    """Whether hooks of all modules, or modes of torch, are on: another process may not have them."""
    hooks = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    return modes > 0 or any(getattr(torch_modules, f"_global_{name}") for name in hooks)


def _is_changed(part: nn.Module) -> bool:
    """Whether a module has hooks, or holds functions, which may stand in for its own."""
    held = {name for name, value in vars(part).items() if isinstance(value, (FunctionType, MethodType))}
    return bool(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or held - {"configure_model"}
    )


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
        own += [(name, told) for name, value in vars(part).items() if (told := _told(value)) is not None]
    registered = [*module.parameters(), *module.buffers()]
    return own, [(id(tensor), tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in registered]


def _told(value: Any) -> Any:
    """Return what tells an attribute from another: a number or text, and of a tensor that it was not written to."""
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, tuple) and not all(isinstance(each, _PLAIN) for each in value):
        return None
    return (value,) if isinstance(value, (*_PLAIN, tuple)) else None
