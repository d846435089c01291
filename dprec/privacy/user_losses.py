"""Calls the losses, removes tensors that the module cached, and sets the losses of empty histories to 0.

Many models make a mask or position angles at their first call and keep it. Another batch would then get the first
batch's mask, or training the float64 mask of a check. So it is removed before the next batch.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import MutableMapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor

from dprec.contract import Losses
from dprec.errors import FailsForOneUser, first_line, line_of
from dprec.gradients.layouts.layout import layout_of

KNOWN = ("torch", "dprec", "torchmetrics")  # packages whose modules cache nothing that losses read
CONTAINERS = (dict, list, set, deque)
OF_MODULES = frozenset(vars(nn.Module()))  # containers that every module has
FAILURES = (IndexError, RuntimeError, ValueError)  # raised for wrong shapes
SQUEEZE = "a squeeze() drops the dimension of users where there is one: name another, as in squeeze(-1)"


class UserLosses:
    """Computes losses, then removes what the module has cached; the loss of an empty history is 0.

    Lists, dictionaries and sets get their former content: no check would find a value of the first batch that stays.
    Tensors that depend on users stay, and so do those that are written to in place: the checks look for them. With
    batches of a fixed size, neighbouring data sets differ by one history, which is empty in one of them. It must add
    nothing, whatever loss the model computes for it.

    >>> import torch
    >>> class Masked(nn.Module):
    ...     __module__ = "mine"
    ...     mask = None
    ...     def losses(self, batch):
    ...         if self.mask is None:
    ...             self.mask = torch.ones(batch.shape[1])
    ...         return (batch * self.mask).sum(1)
    >>> model = Masked()
    >>> with warnings.catch_warnings(record=True):
    ...     print(UserLosses(model, model.losses)(torch.ones(1, 3)), model.mask)
    tensor([3.]) None
    """

    def __init__(self, module: nn.Module, losses: Losses) -> None:
        self.__wrapped__ = losses
        parts = [
            (path, part) for path, part in module.named_modules() if type(part).__module__.split(".")[0] not in KNOWN
        ]
        self._places: list[tuple[str, nn.Module, MutableMapping[str, Any]]] = [
            (path, part, names) for path, part in parts for names in (part.__dict__, part._buffers)
        ]

    def __call__(self, batch: Any) -> Tensor:
        before = [dict(names) for _, _, names in self._places]
        contents = [
            (path, name, value, copy(value))
            for (path, _, _), names in zip(self._places, before, strict=True)
            for name, value in names.items()
            if isinstance(value, CONTAINERS) and name not in OF_MODULES
        ]
        try:
            losses = self.__wrapped__(batch)
        except Exception as error:
            if len(batch) == 1 and isinstance(error, FAILURES) and not isinstance(error, torch.OutOfMemoryError):
                raise FailsForOneUser(
                    f"losses(batch) fails for one user ({first_line(error)}) in {line_of(error)}: let it take any "
                    f"number of users; {SQUEEZE}"
                ) from error
            raise
        finally:
            for (path, part, names), old in zip(self._places, before, strict=True):
                for name in [name for name, value in names.items() if _is_cached(value, old.get(name))]:
                    if name in old:
                        names[name] = old[name]
                    else:
                        del names[name]
                        part._non_persistent_buffers_set.discard(name)
                    _warn(f"{path}.{name}".strip("."))
            for path, name, value, content in contents:
                if _parts(value) != _parts(content):
                    value.clear()
                    (value.extend if isinstance(value, (list, deque)) else value.update)(content)
                    _warn(f"{path}.{name}".strip("."))
        if len(batch) == 1 and isinstance(losses, Tensor) and not losses.dim():
            raise FailsForOneUser(f"losses(batch) of one user has shape (), not (1,): {SQUEEZE}")
        empty = getattr(batch, "empty", None)
        return losses if empty is None or empty.shape != losses.shape else losses.masked_fill(empty, 0.0)


def _is_cached(value: Any, before: Any) -> bool:
    """Whether this is a tensor that depends on sizes alone, and is new or has a new shape; or another container."""
    if isinstance(value, CONTAINERS):
        return value is not before
    if isinstance(value, Tensor) and is_batchedtensor(value):
        return True  # outside torch.vmap it has no values
    if type(value) is not Tensor or value is before or layout_of(value) is not None or value.requires_grad:
        return False
    return not isinstance(before, Tensor) or before.shape != value.shape  # with the same shape, it may be a counter


def _parts(container: Any) -> list[int]:
    """Return which objects a container holds."""
    return [*map(id, (*container, *(container.values() if isinstance(container, dict) else ())))]


@functools.cache
def _warn(name: str) -> None:
    warnings.warn(
        f"losses(batch) makes '{name}' and keeps it: training makes it anew for each micro-batch, so that nothing goes "
        "from one to the next",
        UserWarning,
        stacklevel=2,
    )
