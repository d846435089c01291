"""Dense noise in one sweep over the table, in pieces that fit a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels import normals


def dense_noise(
    table: Tensor,
    std: float,
    source: normals.Source | None,
    alpha: float,
    keep: float,
    rows: Tensor,
    values: Tensor,
) -> None:
    """Set the table to keep · table + alpha · (std · N(0, 1) + gradient); a row is rounded with its noise in it."""
    parts = list(normals.parts(*table.shape))
    stops = torch.tensor([part.stop for part in parts], dtype=torch.int64, device=rows.device)
    first = 0
    for part, last in zip(parts, torch.searchsorted(rows, stops).tolist(), strict=True):
        piece = table[part]
        if keep != 1:
            piece.mul_(keep)
        here, gradient = rows[first:last] - part.start, values[first:last]
        if source is not None and std > 0:
            own = torch.arange(part.start, part.stop, device=rows.device)
            noise = normals.draw(source, own, piece).index_add_(0, here, gradient, alpha=1 / std)
            piece.add_(noise, alpha=alpha * std)
        elif last > first:
            piece.index_add_(0, here, gradient, alpha=alpha)
        first = last
