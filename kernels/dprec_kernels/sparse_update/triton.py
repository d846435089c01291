# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""The same with one program a row, which reads and writes it once.

A row's reads are summed by one program, in the order of the batch, so that results repeat bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.row_noise import RowNoise, reference
from dprec_kernels.row_noise.triton import normals
from dprec_kernels.sparse_update.pieces import Reads, without_repeats
from dprec_kernels.sparse_update.sgd import SGD
from dprec_kernels.tables import Tables


@triton.jit(do_not_specialize=[
    "count", "reads", "lr", "decay", "std", "step", "stream", "key_low", "key_high", "row_shift", "step_shift",
])  # fmt: skip
def sparse_update_fwd_kernel(
    table, table_of, rows, begins, which, weights, values, count, reads, width, stride, lr, decay,
    std, step, stream, key_low, key_high, row_shift, step_shift,
    WEIGHTED: tl.constexpr, NOISY: tl.constexpr, SEVERAL: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """One program: all columns of one row.

    Of SEVERAL tables, `table` has the place and the columns of each, `table_of` says which one a row is of.
    """
    n = tl.program_id(0).to(tl.int64)
    pair, column = tl.arange(0, BP).to(tl.int64), tl.arange(0, 2 * BP)  # [BP], [2 BP]
    row = tl.load(rows + n)  # int64, and so is every offset below
    if SEVERAL:
        own = tl.load(table_of + n)
        wide = tl.load(table + 2 * own + 1)
        into = tl.load(table + 2 * own).to(tl.pointer_type(tl.float32)) + row * wide + column
        here = column < wide
    else:
        into = table + (row * width + column)
        here = column < width
    end = tl.load(begins + n + 1, mask=n + 1 < count, other=reads)
    gradient = tl.zeros([2 * BP], tl.float32)
    for read in range(tl.load(begins + n), end):
        value = tl.load(values + tl.load(which + read) * stride + column, mask=here, other=0.0)
        if WEIGHTED:
            value *= tl.load(weights + read)
        gradient += value
    if NOISY:
        one = row + tl.zeros([1], tl.int64)
        z = normals(one, tl.zeros_like(one) + step, pair, stream, key_low, key_high, row_shift, step_shift)
        gradient += std * tl.reshape(z, [2 * BP])
    weight = tl.load(into, mask=here, other=0.0)
    tl.store(into, weight - lr * (gradient + decay * weight), mask=here)


def sparse_update(table: Tensor, reads: Reads, values: Tensor, rule: SGD, std: float, source: RowNoise | None) -> None:
    """Step the rows of `reads` by their merged, noised gradients, in a contiguous float32 table of fewer columns."""
    each, which = without_repeats(values, reads)
    each = each.to(table.dtype)
    each = each if each.stride(1) == 1 else each.contiguous()
    width, noise = table.shape[1], source if source is not None and std > 0 else None
    with torch.cuda.device_of(table):
        sparse_update_fwd_kernel[(len(reads.rows),)](
            table, reads.rows, reads.rows.contiguous(), reads.begins, which,
            each if reads.weights is None else reads.weights.to(table.dtype),
            each, len(reads.rows), len(which), width, each.stride(0),
            float(rule.lr), float(rule.decay), float(std),
            *((noise.step, noise.stream, *reference.keys(noise.seed)) if noise else (0,) * 6),
            WEIGHTED=reads.weights is not None, NOISY=noise is not None, SEVERAL=False,
            BP=max(1, triton.next_power_of_2(width) // 2),
        )  # fmt: skip


def step_tables(tables: Tables, which: Tensor, rows: Tensor, values: Tensor, starts: Tensor, rule: SGD) -> None:
    """Step rows (n,) of the tables that `which` (n,) numbers; their gradients lie in `values` from `starts`."""
    with torch.cuda.device_of(rows):
        sparse_update_fwd_kernel[(len(rows),)](
            tables.places, which.contiguous(), rows.contiguous(), torch.arange(len(rows), device=rows.device),
            starts.contiguous(), values, values.contiguous(), len(rows), len(rows), 0, 1,
            float(rule.lr), float(rule.decay), 0.0, *(0,) * 6,
            WEIGHTED=False, NOISY=False, SEVERAL=True, BP=max(1, triton.next_power_of_2(tables.widest) // 2),
        )  # fmt: skip
