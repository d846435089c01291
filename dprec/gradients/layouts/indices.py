"""Checks whether `x[index]` keeps each user's rows in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dprec.gradients.layouts.layout import layout_of, tensors_in


def index_keeps_rows(index: Any, lead: Tensor) -> bool:
    """Whether row u of lead[index] is taken from row u of lead.

    >>> x = torch.ones(3, 4)
    >>> [index_keeps_rows(index, x) for index in (slice(None), slice(1, None), (..., 0), (..., 0, slice(None)))]
    [True, False, True, False]
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not parts:
        return True
    first = parts[0]
    if type(first) is slice and all(map(_is_plain, parts)) and not tensors_in(parts):
        return takes_all(first, len(lead))
    tensors = tensors_in(parts)
    if isinstance(first, (list, range)) and list(first) == list(range(len(lead))):
        first = torch.arange(len(lead))
        tensors = [first, *tensors]
    if isinstance(first, Tensor) and not is_mask(first):
        if first.dim() == 0 or first.shape[0] != lead.shape[0]:
            return False
        if any(is_mask(t) or t.dim() > first.dim() for t in tensors) or any(isinstance(part, list) for part in parts):
            return False
        if any(t.dim() < first.dim() and layout_of(t) is not None for t in tensors):
            return False
        own = torch.arange(len(lead), device=first.device)
        return bool((own == first.reshape(len(own), -1).T).all())
    if any(layout_of(tensor) is not None for tensor in tensors):
        return False  # it would read all users' rows at one user's index
    places = [place for place, part in enumerate(parts) if not _is_plain(part)]
    if places and places[-1] - places[0] >= len(places):
        return False  # index tensors that are not adjacent put their dimension first
    if first is Ellipsis:  # stands for all dimensions that the other parts do not index
        return sum(_dimensions_of(part) for part in parts[1:]) < lead.dim()
    return isinstance(first, slice) and takes_all(first, len(lead))  # else the rows are chosen or shifted


def takes_all(part: slice, rows: int) -> bool:
    ends = (part.start, part.stop, part.step)
    return all(end is None or type(end) is int for end in ends) and part.indices(rows) == (0, rows, 1)


def _is_plain(part: Any) -> bool:
    return part is None or part is Ellipsis or isinstance(part, slice) or (isinstance(part, int) and part is not True)


def _dimensions_of(part: Any) -> int:
    if isinstance(part, Tensor) and is_mask(part):
        return part.dim()
    return 0 if part is None else 1


def parts_of(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) and index else (index,)


def is_mask(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8)
