# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""Kernels of dense noise: drawn in registers and added to every entry; then rows of a sparse gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.row_noise import RowNoise, reference
from dprec_kernels.row_noise.triton import TILE, normals, tile
from dprec_kernels.tables import sent


@triton.jit(do_not_specialize=["keep", "scale", "step", "stream", "key_low", "key_high", "row_shift", "step_shift"])
def dense_noise_fwd_kernel(
    table, places, count, width, keep, scale, step, stream, key_low: tl.int64, key_high: tl.int64,
    row_shift: tl.int64, step_shift: tl.int64, BM: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One program: BP pairs of columns of BN rows.

    Of several matrices, at most BM, `places` has the address, rows, columns and first program of each.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    if BM > 0:
        m = tl.arange(0, BM)  # [BM]
        own = tl.sum((tl.load(places + 4 * m + 3, mask=m < count, other=row + 1) <= row).to(tl.int32), 0) - 1
        into = tl.load(places + 4 * own)
        table = into.to(tl.pointer_type(tl.float64)) if WIDE else into.to(tl.pointer_type(tl.float32))
        row -= tl.load(places + 4 * own + 3)
        count, width, stream = tl.load(places + 4 * own + 1), tl.load(places + 4 * own + 2), stream + own
        blocks = (width + 2 * BP - 1) // (2 * BP)
        row, block = row // blocks, row % blocks
    row = row * BN + tl.arange(0, BN)  # [BN]
    pair = block * BP + tl.arange(0, BP)  # [BP]
    column = block * 2 * BP + tl.arange(0, 2 * BP)  # [2 BP]
    at, here = row[:, None] * width + column[None, :], (row < count)[:, None] & (column < width)[None, :]
    z = normals(row, tl.zeros_like(row) + step, pair, stream, key_low, key_high, row_shift, step_shift, WIDE)
    tl.store(table + at, tl.load(table + at, mask=here, other=0.0) * keep + z * scale, mask=here)


def dense_noise(
    table: Tensor, std: float, source: RowNoise, alpha: float, keep: float, rows: Tensor, values: Tensor
) -> None:
    """Set a contiguous float32 or float64 table to keep · table + alpha · (std · N(0, 1) + gradient).

    Rows with a gradient are made again, with the same noise, so that what has none yet is rounded to no row.
    """
    before = table[rows]
    count, width = table.shape
    block, pairs = tile(width)
    if table.numel():
        with torch.cuda.device_of(table):
            dense_noise_fwd_kernel[(triton.cdiv(count, block), triton.cdiv(width, 2 * pairs))](
                table, table, count, width, float(keep), float(alpha * std), source.step, source.stream,
                *reference.keys(source.seed), BM=0, BN=block, BP=pairs, WIDE=table.dtype == torch.float64,
            )  # fmt: skip
    if len(rows):
        noisy = source(torch.empty_like(before), rows).mul_(std).add_(values)
        table[rows] = before.mul_(keep).add_(noisy, alpha=alpha)


def of_matrices(matrices: Sequence[Tensor], std: float, source: RowNoise) -> None:
    """Add std · N(0, 1) to contiguous matrices, all float32 or all float64; the next one has the next stream."""
    places, programs = [], 0
    for each in matrices:
        places.append((each.data_ptr(), *each.shape, programs))
        programs += len(each) * triton.cdiv(each.shape[1], 2 * TILE)
    with torch.cuda.device_of(matrices[0]):
        dense_noise_fwd_kernel[(programs,)](
            matrices[0], _listed(tuple(places), matrices[0].device), len(places), 0, 1.0, float(std),
            source.step, source.stream, *reference.keys(source.seed),
            BM=triton.next_power_of_2(len(places)), BN=1, BP=TILE, WIDE=matrices[0].dtype == torch.float64,
        )  # fmt: skip


@lru_cache(maxsize=4)  # the sums of a run lie where they lay in the step before
def _listed(places: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    return sent(places, device)
