"""Helpers of rules for the arguments of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dprec.errors import NoRule
from dprec.gradients.layouts.layout import layout_of, mark, of_users

# Other names that torch's functions accept for an argument.
ALIASES = {"x": "input", "x1": "input", "a": "input", "x2": "other", "mat2": "other", "axis": "dim"}


def named(names: Sequence[str], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, whichever of them were given by place; `self` counts as the first name.

    >>> named(("input", "dim", "index"), ("weight",), {"axis": 0, "index": "ids"})
    {'input': 'weight', 'dim': 0, 'index': 'ids'}
    """
    known = {name if name in names else ALIASES.get(name, name): value for name, value in kwargs.items()}
    return dict(zip(names, args, strict=False)) | known


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or unchanged if it has that precision or more."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def by_user(tensor: Tensor, users: int) -> Tensor:
    """Return (users, positions, features) of a tensor whose rows are in the users' order."""
    tensor = tensor.detach()
    if tensor.dtype.itemsize < 4:
        tensor = tensor.float()
    if tensor.ndim == 3 and tensor.shape[0] == users:
        return tensor
    positions = tensor.numel() // max(1, users * tensor.shape[-1])
    return tensor.reshape(users, positions, tensor.shape[-1])


def refuse_of_users(name: str, *sides: Any) -> None:
    """Refuse a weight or bias that is computed from the batch: it would mix users."""
    for side in sides:
        known = layout_of(side) if isinstance(side, Tensor) else None
        if known is not None and known.known:
            raise NoRule(
                f"{name} has a weight or bias {tuple(side.shape)} that is computed from the batch, which mixes "
                "users: write it with * and +"
            )


def marked(tensor: Tensor, rows: int) -> Tensor:
    """Return the tensor, declared to have `rows` rows of each user in the batch's order."""
    mark(tensor, of_users(rows))
    return tensor
