"""Tensors of which some rows are given, and all others are 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def of_rows(rows: Tensor, values: Tensor, shape: Sequence[int], *, merged: bool = False) -> Tensor:
    """Return a sparse tensor with these rows (n,) and their values (n, ...); `merged` ones ascend, each there once.

    Torch's checks of all sparse tensors are off meanwhile, in other threads, too.

    >>> of_rows(torch.tensor([2, 0, 2]), torch.tensor([[1.0], [2.0], [4.0]]), (3, 1)).to_dense().flatten()
    tensor([2., 0., 5.])
    """
    with torch.sparse.check_sparse_tensor_invariants(False):  # an argument that says so is warned of by torch 2.11
        return torch.sparse_coo_tensor(rows.unsqueeze(0), values, tuple(shape), is_coalesced=merged or None)
