"""Sources of standard normals for operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dprec_kernels.paths import host_readable
from dprec_kernels.workspace import workspace

PIECE = 1 << 16  # normals at once: 256 KB stay in the second-level cache

Source = Callable[[Tensor, Tensor], object]  # fills out (n, d) with standard normals for rows (n,), as `RowNoise` does


def draw(source: Source, rows: Tensor, like: Tensor) -> Tensor:
    """Return standard normals for rows (n,), of the shape (n, d) and dtype of `like`, in memory that is reused."""
    out = workspace.take("normals", like.shape, like)
    source(out, rows)
    return out


def parts(count: int, width: int) -> Iterator[slice]:
    """Divide `count` rows into consecutive slices, each with about as many numbers as are drawn at once."""
    step = max(1, PIECE // max(1, width))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def check(table: Tensor, rows: Tensor) -> None:
    """Refuse a table to which noise cannot be added, and, on the CPU, rows that are not sorted and distinct."""
    if table.dim() != 2 or table.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"table must be float32 or float64 (rows, d), not {table.dtype} {tuple(table.shape)}")
    ascend = len(rows) < 2 or not host_readable(rows) or not bool((rows[1:] <= rows[:-1]).any())
    if rows.dim() != 1 or rows.dtype != torch.int64 or not ascend:
        raise ValueError("rows must be int64 (n,), sorted, and each there once")
