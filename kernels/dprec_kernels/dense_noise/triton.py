# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""Noise for every entry, drawn in registers as it is added; rows of a sparse gradient follow. Not timed on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.row_noise import RowNoise, reference
from dprec_kernels.row_noise.triton import normals, tile


@triton.jit(do_not_specialize=["keep", "scale", "step", "stream", "key_low", "key_high", "row_shift", "step_shift"])
def dense_noise_fwd_kernel(
    table, count, width, keep, scale, step, stream, key_low, key_high, row_shift, step_shift,
    BN: tl.constexpr, BP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: BP pairs of columns of BN rows."""
    row = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)  # [BN]
    pair = tl.program_id(1).to(tl.int64) * BP + tl.arange(0, BP)  # [BP]
    column = tl.program_id(1).to(tl.int64) * 2 * BP + tl.arange(0, 2 * BP)  # [2 BP]
    at, here = row[:, None] * width + column[None, :], (row < count)[:, None] & (column < width)[None, :]
    z = normals(row, tl.zeros_like(row) + step, pair, stream, key_low, key_high, row_shift, step_shift, WIDE)
    tl.store(table + at, tl.load(table + at, mask=here, other=0.0) * keep + z * scale, mask=here)


def dense_noise(
    table: Tensor, std: float, source: RowNoise, alpha: float, keep: float, rows: Tensor, values: Tensor
) -> None:
    """Set a contiguous float32 or float64 table to keep · table + alpha · (std · N(0, 1) + gradient)."""
    count, width = table.shape
    block, pairs = tile(width)
    if table.numel():
        with torch.cuda.device_of(table):
            dense_noise_fwd_kernel[(triton.cdiv(count, block), triton.cdiv(width, 2 * pairs))](
                table, count, width, float(keep), float(alpha * std), source.step, source.stream,
                *reference.keys(source.seed), BN=block, BP=pairs, WIDE=table.dtype == torch.float64,
            )  # fmt: skip
    if len(rows):
        table.index_add_(0, rows, values, alpha=alpha)  # rows are there once, so the order of the sums is none
