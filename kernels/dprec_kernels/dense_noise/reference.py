"""The plain truth, and what a step costs that is not fused: gradient and noise are as large as the table."""

from __future__ import annotations

import torch
from torch import Tensor


def dense_noise(
    table: Tensor, std: float, normals: Tensor, alpha: float, keep: float, rows: Tensor, values: Tensor
) -> None:
    """Set the table to keep · table + alpha · (std · normals + gradient), for normals of the table's shape."""
    gradient = torch.zeros_like(table)
    gradient[rows] = values
    gradient += std * normals
    table.mul_(keep).add_(gradient, alpha=alpha)
