"""The plain truth: every user's gradient is built, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(left: Tensor, right: Tensor) -> Tensor:
    """Return (B,) ‖Σ_t left_t rightᵀ_t‖²."""
    return _square(left.double().mT @ right.double())


def rows(ids: Tensor, values: Tensor) -> Tensor:
    """Return (B,) ‖Σ_n e_ids ⊗ values_n‖²."""
    items = int(ids.max()) + 1 if ids.numel() else 0
    tables = torch.zeros(len(ids), items, *values.shape[2:], dtype=torch.float64, device=ids.device)
    for table, row, value in zip(tables, ids, values.double(), strict=True):
        table.index_put_((row,), value, accumulate=True)
    return _square(tables)


def _square(gradients: Tensor) -> Tensor:
    return gradients.square().flatten(1).sum(1)
