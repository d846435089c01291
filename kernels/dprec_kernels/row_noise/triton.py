# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""The same normals, made where they are used.

The rounds are written out, since a compiler's own generator may change from one release to the next.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.row_noise import reference

TILE = 512  # counters of a program

FIRST = tl.constexpr(reference.MULTIPLIERS[0])
SECOND = tl.constexpr(reference.MULTIPLIERS[1])
FIRST_STEP = tl.constexpr(reference.KEY_STEPS[0])
SECOND_STEP = tl.constexpr(reference.KEY_STEPS[1])
ROUNDS = tl.constexpr(reference.ROUNDS)
LOW = tl.constexpr(reference.WORD)
SHRINK = tl.constexpr(2.0**-32)
ANGLE = tl.constexpr(2 * 3.141592653589793 * 2.0**-32)


@triton.jit
def philox(a, b, c, d, k, l):  # noqa: E741
    """The four words that Philox4x32-10 makes of a counter; all are uint32."""
    for _ in tl.static_range(ROUNDS):
        first, second = tl.umulhi(a, FIRST), tl.umulhi(c, SECOND)
        a, b, c, d = second ^ b ^ k, c * SECOND, first ^ d ^ l, a * FIRST
        k, l = k + FIRST_STEP, l + SECOND_STEP  # noqa: E741
    return a, b, c, d


@triton.jit
def normals(row, step, pair, stream, key_low, key_high, row_shift, step_shift, WIDE: tl.constexpr = False):
    """Columns 2 pair and 2 pair + 1, one after the other, for int64 row [BN], step [BN] and pair [BP]: [BN, 2 BP].

    They are float64 where WIDE, rounded to float32 otherwise.
    """
    row, step, pair = row[:, None], step[:, None], pair[None, :]
    every = tl.zeros_like(row + pair)  # what the words are broadcast to
    a = (((row & LOW) ^ row_shift) + every).to(tl.uint32)
    b = ((row >> 32) | (pair << 16)).to(tl.uint32)
    c = (((step & LOW) ^ step_shift) + every).to(tl.uint32)
    d = (((step >> 32) | (stream.to(tl.int64) << 16)) + every).to(tl.uint32)
    a, b, c, d = philox(a, b, c, d, (key_low + every).to(tl.uint32), (key_high + every).to(tl.uint32))
    uniform = (a.to(tl.float64) + (b.to(tl.float64) + 0.5) * SHRINK) * SHRINK
    angle = (c.to(tl.float64) + d.to(tl.float64) * SHRINK) * ANGLE
    radius = tl.sqrt(-2.0 * tl.log(uniform))
    even, odd = radius * tl.cos(angle), radius * tl.sin(angle)
    if not WIDE:
        even, odd = even.to(tl.float32), odd.to(tl.float32)
    return tl.interleave(even, odd)


@triton.jit(do_not_specialize=["count", "stream", "key_low", "key_high", "row_shift", "step_shift"])
def row_noise_fwd_kernel(
    rows, steps, out, count, width, stream, key_low: tl.int64, key_high: tl.int64, row_shift: tl.int64,
    step_shift: tl.int64, BN: tl.constexpr, BP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: BP pairs of columns of BN rows."""
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)  # [BN]
    pair = tl.program_id(1).to(tl.int64) * BP + tl.arange(0, BP)  # [BP]
    column = tl.program_id(1).to(tl.int64) * 2 * BP + tl.arange(0, 2 * BP)  # [2 BP]
    row = tl.load(rows + n, mask=n < count, other=0)
    step = tl.load(steps + n, mask=n < count, other=0)
    z = normals(row, step, pair, stream, key_low, key_high, row_shift, step_shift, WIDE)
    here = (n < count)[:, None] & (column < width)[None, :]
    tl.store(out + n[:, None] * width + column[None, :], z, mask=here)


def row_noise(seed: int, stream: int, rows: Tensor, steps: Tensor, out: Tensor) -> None:
    """Write standard normals over a contiguous float32 or float64 out (n, width), for rows (n,) and steps (n,)."""
    count, width = out.shape
    block, pairs = tile(width)
    with torch.cuda.device_of(out):
        row_noise_fwd_kernel[(triton.cdiv(count, block), triton.cdiv(width, 2 * pairs))](
            rows.contiguous(), steps.contiguous(), out, count, width, stream, *reference.keys(seed),
            BN=block, BP=pairs, WIDE=out.dtype == torch.float64,
        )  # fmt: skip


def tile(width: int) -> tuple[int, int]:
    """Return how many rows, and pairs of columns of theirs, a program takes."""
    pairs = min(TILE, triton.next_power_of_2((width + 1) // 2))
    return TILE // pairs, pairs
