"""Sums of what users read of the rows of several tables: on a GPU in a launch or two for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dprec_kernels.paths import on_gpu
from dprec_kernels.row_sums import reference
from dprec_kernels.row_sums.reference import Part

__all__ = ["Part", "reference", "row_sums"]


def row_sums(
    parts: Sequence[Part], order: Tensor, starts: Tensor, stops: Tensor, counts: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return the sums of each table's rows, (rows, d) of one behind those of the other, as one list of numbers.

    Reads are numbered over parts, their users, and the columns of all tables side by side. Row n of all, of which
    tables have `counts`, gets reads order[starts[n]:stops[n]]; rows stand in the order of their reads. A read counts as
    often as its user's scale says, and at 0 not at all, whatever was read. Added up in float64.

    >>> part = Part([torch.tensor([[[1.0]], [[2.0]]]), torch.ones(2, 1, 2)], torch.tensor([1.0, 0.5]))
    >>> order, starts, stops = torch.tensor([0, 2, 3, 1]), torch.tensor([0, 2, 2]), torch.tensor([2, 2, 3])
    >>> row_sums([part], order, starts, stops, [2, 1], torch.float32)
    tensor([2.0000, 0.0000, 0.5000, 0.5000])
    """
    tensors = [tensor for part in parts for tensor in (*part.values, part.scales)]
    with torch.no_grad():
        if len(starts) and on_gpu(order) and all(each.dtype != torch.float64 for each in tensors):
            from dprec_kernels.row_sums import triton

            return triton.row_sums(parts, order, starts, stops, counts, dtype)
        return reference.row_sums(parts, order, starts, stops, counts, dtype)
