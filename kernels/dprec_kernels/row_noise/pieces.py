"""Row noise by whole-tensor integer arithmetic, in pieces that fit a cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dprec_kernels.row_noise.reference import KEY_STEPS, MULTIPLIERS, ROUNDS, WORD, keys

PIECE = 1 << 15  # counters at once: each word of theirs takes 256 KB; measured
PLACES = 48  # bits of a row, and of a step
STREAMS = 1 << 16
WIDEST = 1 << 17  # columns: 16 bits number their pairs

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def row_noise(seed: int, stream: int, rows: Tensor, steps: Tensor, out: Tensor) -> None:
    """Write standard normals over out (n, width), for rows (n,) and steps (n,)."""
    pairs = torch.arange((out.shape[1] + 1) // 2, device=rows.device)
    piece = max(1, PIECE // len(pairs))
    for start in range(0, len(rows), piece):
        part = slice(start, start + piece)
        words, key = counters(seed, stream, rows[part, None], steps[part, None], pairs)
        _write(out[part], philox(words, key))


def counters(seed: int, stream: int, rows: Tensor, steps: Tensor, pairs: Tensor) -> tuple[Words, tuple[int, int]]:
    """Return four words that together are different for every place, in tensors that broadcast, and the key."""
    k, l, row_shift, step_shift = keys(seed)  # noqa: E741
    words = (
        (rows & WORD) ^ row_shift,
        rows >> 32 | pairs << 16,
        (steps & WORD) ^ step_shift,
        steps >> 32 | stream << 16,
    )
    return words, (k, l)


def philox(words: Words, key: tuple[int, int]) -> Words:
    """Return Philox4x32-10's words for counters; all are int64 that hold 32 bits.

    Products of 32-bit words fill all 64 bits. Words that are not multiplied next keep the upper half, until the end.
    """
    (a, b, c, d), (k, l) = words, key  # noqa: E741
    for _ in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = (second >> 32).bitwise_xor(b).bitwise_xor_(k).bitwise_and_(WORD), second
        c, d = (first >> 32).bitwise_xor(d).bitwise_xor_(l).bitwise_and_(WORD), first
        k, l = (k + KEY_STEPS[0]) & WORD, (l + KEY_STEPS[1]) & WORD  # noqa: E741
    return a, b & WORD, c, d & WORD


def radius(high: Tensor, low: Tensor) -> Tensor:
    """Return √(-2 ln u) in float64 for the 64-bit uniform u of two words, which is never 0."""
    uniform = low.double().add_(0.5).mul_(2.0**-32).add_(high).mul_(2.0**-32)
    return uniform.log_().mul_(-2.0).sqrt_()


def _write(out: Tensor, words: Words) -> None:
    length = radius(words[0], words[1])
    angle = words[3].double().mul_(2.0**-32).add_(words[2]).mul_(2 * math.pi * 2.0**-32)
    torch.mul(length, angle.cos(), out=out[:, 0::2])
    torch.mul(length, angle.sin_(), out=angle)
    out[:, 1::2] = angle[:, : out.shape[1] // 2]
