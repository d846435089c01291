"""The plain truth: gradients of the whole table's size, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def gradient(size: int, rows: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Return (size, d) the sum of every user's values, multiplied by the user's scale, in the rows they belong to."""
    total = torch.zeros(size, values.shape[-1], dtype=torch.float64)
    for user, scale in enumerate(scales.double()):
        if scale != 0:
            for row, value in zip(rows[user].flatten(), values[user].reshape(-1, values.shape[-1]), strict=True):
                total[row] += scale * value
    return total


def sgd(table: Tensor, gradient: Tensor, lr: float, decay: float) -> Tensor:
    """Return the table after a step."""
    return table - lr * (gradient + decay * table)
