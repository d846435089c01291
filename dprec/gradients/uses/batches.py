"""A batch's tensors, and the batch of some of its users."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dprec.errors import UserError
from dprec.gradients.contributions.base import TAIL

Alone: TypeAlias = Callable[[Any, int], Any]  # (micro-batch, place) -> the batch of the user at that place


_WITHOUT: tuple[type, ...] = (
    *(str, bytes, int, float, complex, type(None), type, ModuleType, FunctionType, nn.Module),
    *(torch.dtype, torch.device, torch.Generator),
)


def batch_tensors(batch: Any) -> list[Tensor]:
    """Return the tensors in a batch, in order, whatever objects hold them.

    >>> batch_tensors({"a": [torch.ones(1), {"b": torch.ones(2)}]})
    [tensor([1.]), tensor([1., 1.])]
    """
    return list(_tensors((batch,), set()))


def _tensors(values: Iterable[Any], seen: set[int]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif not isinstance(value, _WITHOUT) and id(value) not in seen:
            seen.add(id(value))
            yield from _tensors(_held(value), seen)


def _held(value: Any) -> list[Any]:
    """Return the contents of a batch or a part of it: fields, items and other attributes."""
    own = _set_on(value)
    fields = getattr(value, "__dataclass_fields__", ())
    items: list[Any] = [getattr(value, name, None) for name in fields if name not in own]  # in slots
    if not fields and isinstance(value, Collection) and not isinstance(value, np.ndarray):
        items = list(value.values()) if isinstance(value, Mapping) else list(value)
    return [*items, *own.values()]


def _set_on(value: Any) -> dict[str, Any]:
    """Return the attributes that were set on an object, which not every object can have."""
    return dict(getattr(value, "__dict__", {}))


def has_row_for_each(batch: Any) -> bool:
    """Return whether each tensor of a batch has a row for each user."""
    return all(tensor.dim() and len(tensor) == len(batch) for tensor in batch_tensors(batch))


def select_users(batch: Any, users: Sequence[int] | Tensor) -> Any:
    """Return the batch of these users alone, in this order."""
    if selects(batch):
        return batch.select(users)
    places = users if isinstance(users, Tensor) else torch.tensor(users)  # once for all tensors
    return tree_map(lambda leaf: _select(leaf, users, places), batch)


def _select(leaf: Any, users: Sequence[int] | Tensor, places: Tensor) -> Any:
    """Return the part of these users, at these places, of a leaf (no list, tuple or dict)."""
    if isinstance(leaf, Tensor):
        return leaf[places.to(leaf.device)] if leaf.dim() else leaf
    if is_dataclass(leaf) and not isinstance(leaf, type):
        return replace(leaf, **{f.name: select_users(getattr(leaf, f.name), users) for f in fields(leaf) if f.init})
    if isinstance(leaf, (dict, UserDict)):  # of a class of its own, such as transformers' BatchEncoding
        own = copy.copy(leaf)
        own.update({key: select_users(value, users) for key, value in leaf.items()})
        for name, value in _set_on(own).items():
            if isinstance(getattr(type(own), name, None), cached_property):
                delattr(own, name)  # it was computed from all users
            elif not (isinstance(own, UserDict) and name == "data"):
                setattr(own, name, select_users(value, users))
        return own
    if batch_tensors(leaf):
        raise UserError(
            f"a batch holds tensors in a {type(leaf).__name__}, which does not show whose they are: use a "
            "dataclass, a dict or a list, or write select(users)"
        )
    return leaf


LEAST_ROWS = 16  # with one thread, libraries multiply a row in the same way from this many rows on
ROWS_A_THREAD, THREADS = 12, 8  # with several, MKL splits fewer rows by columns; rows for more threads cost too much
_FILLED: list[Any] = [None, None]  # the batch that was filled up last, and what it was before


def filled_up(batch: Any, each: int | None = None) -> Any:
    """Append copies of row 0, so that rounding does not depend on the batch size.

    Libraries multiply few rows differently than many, and treat a tensor's last numbers differently than others. With
    enough rows appended, neither changes the bits of a user's results.

    Args:
        each: the fewest numbers in a row of any tensor computed from it; by default, of the batch's own tensors.

    >>> filled_up(torch.tensor([[1.0], [2.0]])).flatten().tolist()[:4], len(filled_up(torch.ones(100, 50)))
    ([1.0, 2.0, 1.0, 1.0], 101)
    """
    users = len(batch)
    rows = [tensor for tensor in batch_tensors(batch) if tensor.shape[:1] == (users,)]
    if not users or not rows or any(tensor.device.type != "cpu" for tensor in rows):  # a GPU would have to wait for it
        return batch
    each = min(tensor[0].numel() for tensor in rows) if each is None else each
    least = max(LEAST_ROWS, ROWS_A_THREAD * min(THREADS, torch.get_num_threads()))
    more = max(least - users, -(-TAIL // max(1, each)))
    try:
        _FILLED[:] = select_users(batch, [*range(users), *[0] * more]), batch
    except UserError:  # it does not say whose its tensors are
        return batch
    return _FILLED[0]


def before_filling(batch: Any) -> Any:
    """Return the batch without the rows that `filled_up` appended: users' own code may log it."""
    return _FILLED[1] if batch is _FILLED[0] else batch


def select_alone(batch: Any, user: int) -> Any:
    """Return the batch of this user alone."""
    return select_users(batch, [user])


def selects(batch: Any) -> bool:
    """Return whether a batch has its own `select(users)`, which removes padding that only others needed."""
    return hasattr(batch, "select") and not isinstance(batch, Tensor)  # a tensor's `select` is another thing
