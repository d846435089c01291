# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""Kernels of sparse updates, with one program a row, which reads and writes it once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.row_noise import RowNoise, reference
from dprec_kernels.row_noise.triton import normals
from dprec_kernels.sparse_update.pieces import SGD
from dprec_kernels.tables import Tables


@triton.jit(
    do_not_specialize=["lr", "decay", "std", "step", "stream", "key_low", "key_high", "row_shift", "step_shift"]
)
def sparse_update_fwd_kernel(
    table, table_of, rows, starts, values, width, lr, decay, std, step, stream, key_low: tl.int64,
    key_high: tl.int64, row_shift: tl.int64, step_shift: tl.int64, SEVERAL: tl.constexpr, NOISY: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    """One program: all columns of one row, in BP pairs.

    Of SEVERAL tables, `table` has the place and the columns of each, `table_of` says which one a row is of, and
    `starts` where its gradient lies in `values`.
    """
    n = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, 2 * BP)  # [2 BP]
    row = tl.load(rows + n)  # int64, and so is every offset below
    if SEVERAL:
        own = tl.load(table_of + n)
        wide = tl.load(table + 2 * own + 1)
        into = tl.load(table + 2 * own).to(tl.pointer_type(tl.float32)) + row * wide + column
        start, here, drawn = tl.load(starts + n), column < wide, stream + own
    else:
        into = table + (row * width + column)
        start, here, drawn = n * width, column < width, stream
    gradient = tl.load(values + start + column, mask=here, other=0.0)
    if NOISY:  # before the row is rounded
        one = tl.zeros([1], tl.int64)
        z = normals(one + row, one + step, tl.arange(0, BP), drawn, key_low, key_high, row_shift, step_shift)
        gradient += std * tl.reshape(z, (2 * BP,))
    weight = tl.load(into, mask=here, other=0.0)
    tl.store(into, weight - lr * (gradient + decay * weight), mask=here)


def step_rows(
    table: Tensor, rows: Tensor, gradient: Tensor, rule: SGD, std: float = 0.0, source: RowNoise | None = None
) -> None:
    """Step rows (n,) of a contiguous float32 table by their gradients (n, d)."""
    width, gradient = table.shape[1], gradient.to(table.dtype).contiguous()
    with torch.cuda.device_of(table):
        sparse_update_fwd_kernel[(len(rows),)](
            table, rows, rows.contiguous(), rows, gradient, width, float(rule.lr), float(rule.decay),
            *_noise(std, source), SEVERAL=False, NOISY=source is not None, BP=_pairs(width),
        )  # fmt: skip


def step_tables(
    tables: Tables, which: Tensor, rows: Tensor, values: Tensor, starts: Tensor, rule: SGD, std: float = 0.0,
    source: RowNoise | None = None,
) -> None:  # fmt: skip
    """Step rows (n,) of the tables that `which` (n,) numbers; their gradients lie in `values` from `starts`."""
    with torch.cuda.device_of(rows):
        sparse_update_fwd_kernel[(len(rows),)](
            tables.places, which.contiguous(), rows.contiguous(), starts.contiguous(), values.contiguous(), 0,
            float(rule.lr), float(rule.decay), *_noise(std, source), SEVERAL=True, NOISY=source is not None,
            BP=_pairs(tables.widest),
        )  # fmt: skip


def _noise(std: float, source: RowNoise | None) -> tuple[float, ...]:
    """Return what the kernel is told of noise: its size, step and stream, and the words of its key."""
    if source is None:
        return 0.0, 0, 0, *reference.keys(0)
    return float(std), source.step, source.stream, *reference.keys(source.seed)


def _pairs(width: int) -> int:
    return max(1, triton.next_power_of_2(width) // 2)
