"""Standard normals that are a function of their place, so that any row's noise of any step can be drawn at any time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dprec_kernels import paths
from dprec_kernels.row_noise import pieces, reference
from dprec_kernels.row_noise.pieces import PLACES, STREAMS, WIDEST

__all__ = ["PLACES", "STREAMS", "WIDEST", "RowNoise", "pieces", "reference", "row_noise"]


def row_noise(
    seed: int, stream: int, rows: Tensor, steps: Tensor | int, width: int, out: Tensor | None = None
) -> Tensor:
    """Return (n, width) standard normals, one row for each of rows (n,) and steps (n,) or one step.

    Philox4x32-10 under a seed of 128 bits. Its counter holds stream (16 bits), row and step (48 bits each) and column,
    so no two places share a draw. Radii come from 64-bit uniforms, so that |z| reaches 9.4. The same place always has
    the same number, with any other rows, up to the last digit of a device's logarithm and cosine.

    >>> rows = torch.tensor([3, 1 << 40])
    >>> both = row_noise(seed=7, stream=0, rows=rows, steps=5, width=4)
    >>> torch.equal(row_noise(7, 0, rows[1:], 5, 4), both[1:])
    True
    """
    if not 0 <= seed < 1 << 128:
        raise ValueError(f"seed {seed} must have at most 128 bits")
    if not 0 <= stream < STREAMS:
        raise ValueError(f"stream {stream} must be from 0 to {STREAMS - 1}")
    if not 0 <= width <= WIDEST:
        raise ValueError(f"width {width} must be from 0 to {WIDEST}")
    steps = torch.as_tensor(steps, dtype=torch.int64, device=rows.device).expand(rows.shape)
    if rows.dim() != 1 or rows.dtype != torch.int64:
        raise ValueError(f"rows must be int64 (n,), not {rows.dtype} {tuple(rows.shape)}")
    if bool(((rows | steps) >> PLACES).any()):
        raise ValueError(f"rows and steps must be from 0 to 2**{PLACES} - 1")
    if out is None:
        out = torch.empty(len(rows), width, dtype=torch.float32, device=rows.device)
    if out.shape != (len(rows), width) or not out.is_floating_point():
        raise ValueError(f"out {tuple(out.shape)} must be floating point ({len(rows)}, {width})")
    if out.numel():
        plain = paths.lies_plainly(out, torch.float32, torch.float64)
        paths.fast(__name__, out, plain).row_noise(seed, stream, rows, steps, out)
    return out


@dataclass(frozen=True)
class RowNoise:
    """The noise of one step, for operations that take a source of normals.

    >>> RowNoise(seed=7, stream=0, step=5)(torch.empty(2, 4), torch.tensor([3, 8])).shape
    torch.Size([2, 4])
    """

    seed: int
    stream: int
    step: int

    def __call__(self, out: Tensor, rows: Tensor) -> Tensor:
        """Write standard normals for rows (n,) over out (n, d)."""
        return row_noise(self.seed, self.stream, rows, self.step, out.shape[1], out)
