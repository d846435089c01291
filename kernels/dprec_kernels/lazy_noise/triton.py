# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""Kernels of lazy noise: every number is read once, gets noise made on chip, and is written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.row_noise import RowNoise, reference
from dprec_kernels.row_noise.triton import normals, tile
from dprec_kernels.tables import Tables


@triton.jit(do_not_specialize=["step", "stream", "key_low", "key_high", "row_shift", "step_shift"])
def lazy_noise_fwd_kernel(
    table, which, rows, std, mean, where, count, width, step, stream, key_low: tl.int64, key_high: tl.int64,
    row_shift: tl.int64, step_shift: tl.int64, DECAYS: tl.constexpr, CHOSEN: tl.constexpr, SEVERAL: tl.constexpr,
    BN: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """One program: BP pairs of columns of BN rows.

    Of SEVERAL tables, `table` has the place and the columns of each, `which` says which one a row is of.
    """
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)  # [BN]
    pair = tl.program_id(1).to(tl.int64) * BP + tl.arange(0, BP)  # [BP]
    column = tl.program_id(1).to(tl.int64) * 2 * BP + tl.arange(0, 2 * BP)  # [2 BP]
    taken = n < count
    row = tl.load(rows + n, mask=taken, other=0)  # int64, and so is every offset below
    if CHOSEN:  # others may repeat a row, which somebody else writes
        taken &= tl.load(where + n, mask=taken, other=0) != 0
    if SEVERAL:
        own = tl.load(which + n, mask=n < count, other=0)
        wide = tl.load(table + 2 * own + 1)[:, None]
        into = tl.load(table + 2 * own).to(tl.pointer_type(tl.float32))[:, None] + row[:, None] * wide
        here, drawn = taken[:, None] & (column[None, :] < wide), (stream + own)[:, None]
    else:
        into, drawn = table + row[:, None] * width, stream
        here = taken[:, None] & (column < width)[None, :]
    into += column[None, :]
    value = tl.load(into, mask=here, other=0.0)
    if DECAYS:
        value *= tl.load(mean + n, mask=n < count, other=0.0)[:, None]
    z = normals(row, tl.zeros_like(row) + step, pair, drawn, key_low, key_high, row_shift, step_shift)
    value += z * tl.load(std + n, mask=n < count, other=0.0)[:, None]
    tl.store(into, value, mask=here)


def lazy_noise(
    table: Tensor,
    rows: Tensor,
    std: Tensor,
    source: RowNoise,
    mean: Tensor | None,
    where: Tensor | None = None,
) -> None:
    """Write mean · table[rows] + std · N(0, 1) over table[rows], all float32; with a mask `where` (n,), only there."""
    count, width = len(rows), table.shape[1]
    block, pairs = tile(width)
    with torch.cuda.device_of(table):
        lazy_noise_fwd_kernel[(triton.cdiv(count, block), triton.cdiv(width, 2 * pairs))](
            table, rows, rows.contiguous(), std.contiguous(), std if mean is None else mean.contiguous(),
            rows if where is None else where.contiguous(), count, width, source.step, source.stream,
            *reference.keys(source.seed), DECAYS=mean is not None, CHOSEN=where is not None, SEVERAL=False, BN=block,
            BP=pairs,
        )  # fmt: skip


def of_tables(
    tables: Tables, which: Tensor, rows: Tensor, std: Tensor, source: RowNoise, mean: Tensor | None, where: Tensor
) -> None:
    """Do the same, where `where` (n,) says so, with rows (n,) of the tables that `which` (n,) numbers."""
    block, pairs = tile(tables.widest)
    with torch.cuda.device_of(rows):
        lazy_noise_fwd_kernel[(triton.cdiv(len(rows), block), triton.cdiv(tables.widest, 2 * pairs))](
            tables.places, which.contiguous(), rows.contiguous(), std.contiguous(),
            std if mean is None else mean.contiguous(), where.contiguous(), len(rows), 0,
            source.step, source.stream, *reference.keys(source.seed),
            DECAYS=mean is not None, CHOSEN=True, SEVERAL=True, BN=block, BP=pairs,
        )  # fmt: skip
