# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""Kernels of sample norms, with every tile of a user's gradient on chip.

Sums are float32 over STEPS terms and float64 beyond; a tile's square has one writer, so results repeat bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.joint import Measure, Products
from dprec_kernels.joint.triton import measured

TILE = 64  # rows and columns of a gradient on chip at once
STEPS = 32  # reads merged at once


@triton.jit(do_not_specialize=["reads", "blocks"])
def rows_norms_fwd_kernel(
    ids, order, stop, values, partial, reads, width, blocks, columns, BN: tl.constexpr, BD: tl.constexpr
):
    """One program: BD columns of the rows that begin among BN sorted reads, merged, squared and summed."""
    pid = tl.program_id(0).to(tl.int64)
    user, block = pid // (blocks * columns), pid // columns % blocks
    k = (pid % columns) * BD + tl.arange(0, BD)  # [BD]
    n = block * BN + tl.arange(0, BN)  # [BN]
    row = tl.load(ids + user * reads + n, mask=n < reads, other=0)
    before = tl.load(ids + user * reads + n - 1, mask=(n > 0) & (n < reads), other=0)
    begins = (n < reads) & ((n == 0) | (row != before))
    merged = tl.zeros([BN, BD], tl.float64)
    for start in range(block * BN, tl.load(stop + user * blocks + block), BN):
        m = start + tl.arange(0, BN)  # [BN]
        other = tl.load(ids + user * reads + m, mask=m < reads, other=0)
        place = user * reads + tl.load(order + user * reads + m, mask=m < reads, other=0)
        value = tl.load(
            values + place[:, None] * width + k[None, :], mask=(m < reads)[:, None] & (k < width)[None, :], other=0.0
        )
        same = (row[:, None] == other[None, :]).to(tl.float32)  # [BN, BN]
        merged += tl.dot(same, value.to(tl.float32), input_precision="ieee").to(tl.float64)
    merged = tl.where(begins[:, None], merged, 0.0)
    tl.store(partial + pid, tl.sum(tl.sum(merged * merged, 1), 0))


def linear(left: Tensor, right: Tensor) -> Tensor:
    """Return (B,) ‖Σ_t left_t rightᵀ_t‖² in float64.

    Always the direct form: on chip a tile costs no memory, and there is no cancellation.
    """
    if len(left) == 0:
        return torch.zeros(0, dtype=torch.float64, device=left.device)
    return measured([Measure([Products(left.float(), right.float())], rounds=False)], left, 0.0)[0][0]


def rows(ids: Tensor, values: Tensor) -> Tensor:
    """Return (B,) ‖Σ_n e_ids ⊗ values_n‖² in float64; repeated ids of a user add up."""
    users, reads = ids.shape
    if ids.numel() == 0 or values.numel() == 0:
        return torch.zeros(users, dtype=torch.float64, device=ids.device)
    values = values.reshape(users, reads, -1).contiguous()
    width, block = values.shape[2], min(STEPS, max(16, triton.next_power_of_2(reads)))
    taken = _width(width)
    blocks, columns = triton.cdiv(reads, block), triton.cdiv(width, taken)
    each, order = ids.long().sort(dim=1, stable=True)
    ends = torch.arange(1, blocks + 1, device=ids.device).mul_(block).clamp_(max=reads) - 1  # last read of a block
    stop = torch.searchsorted(each, each[:, ends].contiguous(), right=True)  # (B, blocks) where its last row ends
    partial = torch.empty(users, blocks * columns, dtype=torch.float64, device=ids.device)
    with torch.cuda.device_of(values):
        rows_norms_fwd_kernel[(partial.numel(),)](
            each, order, stop, values, partial, reads, width, blocks, columns, BN=block, BD=taken
        )
    return partial.sum(1)


def _width(size: int) -> int:
    return min(TILE, max(16, triton.next_power_of_2(size)))
