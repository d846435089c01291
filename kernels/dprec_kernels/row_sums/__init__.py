"""Sums of users' reads by rows of several tables: on a GPU in a launch or two for all tables."""

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
    """Return the sums of the tables' rows, (rows, d) of one table after the other, as one list of numbers.

    Reads are numbered over parts, their users, and the columns of all tables side by side. Rows are numbered over all
    tables, which have `counts`; row n gets reads order[starts[n]:stops[n]], and rows are in the order of their reads. A
    read is multiplied by its user's scale, and left out if that is 0, even if it is not finite. Sums are in float64.

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
