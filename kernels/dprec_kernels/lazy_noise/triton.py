# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""The same with every number read once, its noise made on chip, and written once. Not measured yet on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.row_noise import RowNoise, reference
from dprec_kernels.row_noise.triton import normals, tile


@triton.jit(do_not_specialize=["step", "stream", "key_low", "key_high", "row_shift", "step_shift"])
def lazy_noise_fwd_kernel(
    table, rows, std, mean, where, out, count, width, step, stream, key_low, key_high, row_shift, step_shift,
    DECAYS: tl.constexpr, CHOSEN: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """One program: BP pairs of columns of BN rows."""
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)  # [BN]
    pair = tl.program_id(1).to(tl.int64) * BP + tl.arange(0, BP)  # [BP]
    column = tl.program_id(1).to(tl.int64) * 2 * BP + tl.arange(0, 2 * BP)  # [2 BP]
    taken = n < count
    row = tl.load(rows + n, mask=taken, other=0)  # int64, and so is every offset below
    if CHOSEN:  # others may repeat a row, which somebody else writes
        taken &= tl.load(where + n, mask=taken, other=0) != 0
    at, here = row[:, None] * width + column[None, :], taken[:, None] & (column < width)[None, :]
    value = tl.load(table + at, mask=here, other=0.0)
    if DECAYS:
        value *= tl.load(mean + n, mask=n < count, other=0.0)[:, None]
    z = normals(row, tl.zeros_like(row) + step, pair, stream, key_low, key_high, row_shift, step_shift)
    value += z * tl.load(std + n, mask=n < count, other=0.0)[:, None]
    tl.store(table + at, value, mask=here)
    tl.store(out + n[:, None] * width + column[None, :], value, mask=here)


def lazy_noise(
    table: Tensor, rows: Tensor, std: Tensor, source: RowNoise, mean: Tensor | None, out: Tensor,
    where: Tensor | None = None,
) -> None:  # fmt: skip
    """Write mean · table[rows] + std · N(0, 1) over table[rows] and over a contiguous out (n, d), all float32.

    With a mask `where` (n,), only there.
    """
    count, width = out.shape
    block, pairs = tile(width)
    with torch.cuda.device_of(table):
        lazy_noise_fwd_kernel[(triton.cdiv(count, block), triton.cdiv(width, 2 * pairs))](
            table, rows.contiguous(), std.contiguous(), std if mean is None else mean.contiguous(),
            rows if where is None else where.contiguous(), out, count, width, source.step, source.stream,
            *reference.keys(source.seed), DECAYS=mean is not None, CHOSEN=where is not None, BN=block, BP=pairs,
        )  # fmt: skip
