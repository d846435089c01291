"""The plain truth."""

from __future__ import annotations

from torch import Tensor


def lazy_noise(table: Tensor, rows: Tensor, std: Tensor, mean: Tensor, normals: Tensor) -> Tensor:
    """Set table[rows] to mean · table[rows] + std · normals, for normals (n, d), and return these values."""
    values = mean.unsqueeze(1) * table[rows] + std.unsqueeze(1) * normals
    table[rows] = values
    return values
