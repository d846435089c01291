"""The plain truth."""

from __future__ import annotations

from torch import Tensor


def lazy_noise(table: Tensor, rows: Tensor, std: Tensor, mean: Tensor, normals: Tensor) -> None:
    """Set table[rows] to mean · table[rows] + std · normals, for normals (n, d)."""
    table[rows] = mean.unsqueeze(1) * table[rows] + std.unsqueeze(1) * normals
