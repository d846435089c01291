"""Sorts ids. On a CPU it uses numpy, whose vector instructions sort numbers ten times as fast as torch.

The lower bits of each sort key hold an id's place, so that one sort of plain numbers finds both.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dprec_kernels.paths import by_numpy, host_readable

BITS = 63


def ordered(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return int64 ids (..., n), ascending along the last dimension, and their places; equal ones keep their order.

    >>> rows, places = ordered(torch.tensor([7, 3, 7]))
    >>> rows.tolist(), places.tolist()
    ([3, 7, 7], [1, 0, 2])
    """
    bits = max(1, (ids.shape[-1] - 1).bit_length())
    if not by_numpy(ids) or ids.numel() == 0 or _reach(ids) >= 1 << BITS - bits:
        rows, places = ids.sort(stable=True)
        return rows, places
    both = (ids.long() << bits).bitwise_or_(torch.arange(ids.shape[-1]))
    both.numpy().sort(axis=-1)
    return both >> bits, both.bitwise_and_((1 << bits) - 1)


def ascending(ids: Tensor) -> Tensor:
    """Return ids (..., n), ascending along the last dimension."""
    return torch.from_numpy(np.sort(ids.numpy(), axis=-1)) if by_numpy(ids) else ids.sort().values


def distinct(ids: Tensor) -> Tensor:
    """Return each of the ids once, ascending.

    >>> distinct(torch.tensor([[7, 3], [3, 5]])).tolist()
    [3, 5, 7]
    """
    return ascending(ids.flatten()).unique_consecutive()


def picked(kept: Tensor, *parallel: Tensor) -> tuple[Tensor, ...]:
    """Return the kept entries of tensors of equal length; the tensors themselves, without a copy, if all are kept."""
    if not host_readable(kept):  # one wait for their number, instead of one for each tensor
        places = kept.nonzero().squeeze(1)
        return tuple(each.index_select(0, places) for each in parallel)
    return parallel if bool(kept.all()) else tuple(each[kept] for each in parallel)


def is_among(rows: Tensor, ascending: Tensor) -> Tensor:
    """Return whether each of these rows is in an ascending list.

    >>> is_among(torch.tensor([[5, 2], [7, 9]]), torch.tensor([2, 7]))
    tensor([[False,  True],
            [ True, False]])
    """
    if not len(ascending):
        return torch.zeros_like(rows, dtype=torch.bool)
    if len(ascending) == 1:  # a table's padding: a tenth of the time
        return rows == ascending
    place = torch.searchsorted(ascending, rows.contiguous()).clamp(max=len(ascending) - 1)
    return ascending[place] == rows


def _reach(ids: Tensor) -> int:
    """Return a number that bounds the absolute value of all ids."""
    smallest, largest = torch.aminmax(ids)
    return max(-int(smallest), int(largest)) + 1
