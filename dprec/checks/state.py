"""Detects writes to parameters or buffers between two moments, by their versions and cheap sums.

Whatever `losses(batch)` writes to them is released, or changes later losses, without noise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dprec.errors import MixedUsers, UserError
from dprec.gradients.parameters import trained_parameters

AT_ONCE = 2**20  # tensors of up to so many numbers are summed; larger ones are compared by memory and version
State: TypeAlias = Mapping[str, Any]


class Unchanged:
    """Finds writes to a model's parameters and buffers between `Unchanged(module)` and `refuse()`.

    Tables whose ids are in `owing` are not compared: their rows get owed noise when they are read.
    """

    def __init__(self, module: nn.Module, owing: Collection[int] = ()) -> None:
        self._module, self._owing = module, owing
        self._trained, self._before = trained_parameters(module).keys(), quick_state(held(module, owing))

    def refuse(self) -> None:
        """Refuse writes since then; call it before the optimizer updates anything."""
        refuse_frozen(self._trained, trained_parameters(self._module).keys())
        if names := changed(self._before, quick_state(held(self._module, self._owing))):
            raise MixedUsers(
                f"'{names[0]}' changes with the users' data and would be released without noise: use a layer without "
                "running statistics, and keep nothing between batches"
            )


def refuse_frozen(before: Collection[str], now: Collection[str]) -> None:
    """Refuse a model whose set of trained parameters has changed."""
    if other := sorted(set(before) ^ set(now)):
        raise UserError(
            f"parameter '{other[0]}' is {'frozen' if other[0] in before else 'unfrozen'} while training: set "
            "requires_grad before trainer.fit and leave it alone"
        )


def held(module: nn.Module, owing: Collection[int] = ()) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name, without those of which the ids are `owing`."""
    each = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor for name, tensor in each.items() if id(tensor) not in owing}


def quick_state(tensors: Mapping[str, Tensor]) -> State:
    """Return each tensor's address, version and checksum: cheap to compute, and different after a write."""
    return {name: (t.data_ptr(), t._version, checksum(t) if t.numel() <= AT_ONCE else 0) for name, t in tensors.items()}


def checksum(values: Tensor) -> int:
    """Return the sum of a tensor's bits as integers: it changes if a number changes.

    >>> x = torch.arange(6.0).view(3, 2)
    >>> checksum(x) == checksum(x.clone()), checksum(x) == checksum(x + 1e-6)
    (True, False)
    """
    whole = values.detach()
    if whole.layout != torch.strided:
        whole = whole.to_dense()
    raw = whole.contiguous().reshape(-1).view(torch.uint8)
    return int((raw.view(torch.int64) if len(raw) % 8 == 0 and raw.storage_offset() % 8 == 0 else raw).sum())


def changed(before: State, after: State) -> list[str]:
    """Return the names of tensors that differ between two states."""
    return [n for n in {**before, **after} if n not in before or n not in after or before[n] != after[n]]
