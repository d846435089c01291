"""The reference: one number at a time, in Python's integers and floats."""

from __future__ import annotations

import math

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57  # of Philox4x32; the key moves on by the golden ratio and √3 - 1
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
WORD = 0xFFFFFFFF

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Return Philox4x32-10's four 32-bit words for a counter."""
    (a, b, c, d), (k, l) = counter, key  # noqa: E741
    for _ in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = (second >> 32) ^ b ^ k, second & WORD, (first >> 32) ^ d ^ l, first & WORD
        k, l = (k + KEY_STEPS[0]) & WORD, (l + KEY_STEPS[1]) & WORD  # noqa: E741
    return a, b, c, d


def keys(seed: int) -> Words:
    """Return four words that are unique to a 128-bit seed: two are the key, two shift the counter."""
    return philox((seed & WORD, seed >> 32 & WORD, seed >> 64 & WORD, seed >> 96), (0, 0))


def counter(seed: int, stream: int, row: int, step: int, pair: int) -> tuple[Words, tuple[int, int]]:
    """Return the counter and key of columns 2 pair and 2 pair + 1; different places have different counters."""
    k, l, row_shift, step_shift = keys(seed)  # noqa: E741
    words = (row & WORD ^ row_shift, row >> 32 | pair << 16, step & WORD ^ step_shift, step >> 32 | stream << 16)
    return words, (k, l)


def normals(words: Words) -> tuple[float, float]:
    """Return two independent standard normals from four uniform words, by Box and Muller's method."""
    radius = math.sqrt(-2 * math.log(((words[0] << 32 | words[1]) + 0.5) / (1 << 64)))
    angle = 2 * math.pi * (words[2] << 32 | words[3]) / (1 << 64)
    return radius * math.cos(angle), radius * math.sin(angle)


def row_noise(seed: int, stream: int, rows: list[int], steps: list[int], width: int) -> list[list[float]]:
    """Return (n, width) standard normals."""
    pairs = range((width + 1) // 2)
    return [
        [z for pair in pairs for z in normals(philox(*counter(seed, stream, row, step, pair)))][:width]
        for row, step in zip(rows, steps, strict=True)
    ]
