# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""The same with one program a row, which reads and writes it once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.sparse_update.sgd import SGD
from dprec_kernels.tables import Tables


@triton.jit(do_not_specialize=["lr", "decay"])
def sparse_update_fwd_kernel(
    table, table_of, rows, starts, values, width, lr, decay, SEVERAL: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """One program: all columns of one row.

    Of SEVERAL tables, `table` has the place and the columns of each, `table_of` says which one a row is of, and
    `starts` where its gradient lies in `values`.
    """
    n = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BD)  # [BD]
    row = tl.load(rows + n)  # int64, and so is every offset below
    if SEVERAL:
        own = tl.load(table_of + n)
        wide = tl.load(table + 2 * own + 1)
        into = tl.load(table + 2 * own).to(tl.pointer_type(tl.float32)) + row * wide + column
        start, here = tl.load(starts + n), column < wide
    else:
        into = table + (row * width + column)
        start, here = n * width, column < width
    gradient = tl.load(values + start + column, mask=here, other=0.0)
    weight = tl.load(into, mask=here, other=0.0)
    tl.store(into, weight - lr * (gradient + decay * weight), mask=here)


def step_rows(table: Tensor, rows: Tensor, gradient: Tensor, rule: SGD) -> None:
    """Step rows (n,) of a contiguous float32 table by their gradients (n, d)."""
    width, gradient = table.shape[1], gradient.to(table.dtype).contiguous()
    with torch.cuda.device_of(table):
        sparse_update_fwd_kernel[(len(rows),)](
            table, rows, rows.contiguous(), rows, gradient, width, float(rule.lr), float(rule.decay),
            SEVERAL=False, BD=triton.next_power_of_2(width),
        )  # fmt: skip


def step_tables(tables: Tables, which: Tensor, rows: Tensor, values: Tensor, starts: Tensor, rule: SGD) -> None:
    """Step rows (n,) of the tables that `which` (n,) numbers; their gradients lie in `values` from `starts`."""
    with torch.cuda.device_of(rows):
        sparse_update_fwd_kernel[(len(rows),)](
            tables.places, which.contiguous(), rows.contiguous(), starts.contiguous(), values.contiguous(), 0,
            float(rule.lr), float(rule.decay), SEVERAL=True, BD=triton.next_power_of_2(tables.widest),
        )  # fmt: skip
