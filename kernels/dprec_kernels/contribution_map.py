"""Chooses rows that enough users touch, by noisy counts, in memory that grows with the touched rows only.

The result has the distribution of the dense map: touched rows are decided one by one, and for the others the gaps
between survivors are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dprec_kernels.ordering import ascending, ordered

Uniforms = Callable[[int], Tensor]  # draws so many float64 numbers in [0, 1)

MOST_ROWS = 1 << 53  # up to here a float64 counts without rounding
GAPS = 1 << 20  # most gaps drawn at once


def contribution_map(
    rows: Tensor,
    users: Tensor,
    size: int,
    *,
    clip: float,
    noise_multiplier: float,
    threshold: float,
    uniforms: Uniforms,
    domain: Tensor | None = None,
) -> Tensor:
    """Return the sorted int64 rows, out of `size`, whose noisy contributions reach `threshold`.

    rows (m,) are the rows that users (m,) touched, user by user. Every user is a vector of zeros and ones, one at each
    distinct row, scaled down to L2 norm `clip`; the map is their sum, plus N(0, (noise_multiplier · clip)²) at each of
    the `size` rows. With a `domain`, sorted and distinct, the map has only its rows: other rows that a user touches are
    left out.

    The result has the distribution of the dense map, which is never built. Touched rows are decided one by one; for the
    others, the gaps between survivors are drawn. Time and memory grow with the touched and the surviving rows only.
    `uniforms(n)` draws n float64 numbers in [0, 1).

    >>> rows, users = torch.tensor([3, 5, 3, 3, 3, 7]), torch.tensor([0, 0, 0, 1, 2, 2])
    >>> contribution_map(rows, users, 10, clip=1.0, noise_multiplier=0.0, threshold=2.0, uniforms=torch.rand)
    tensor([3])
    """
    if rows.dim() != 1 or rows.dtype != torch.int64 or users.shape != rows.shape or bool((users.diff() < 0).any()):
        raise ValueError(f"rows must be int64 (m,), and users (m,) ascending, not {rows.dtype} {tuple(rows.shape)}")
    if not (clip > 0 and noise_multiplier >= 0):
        raise ValueError(f"clip {clip} must be above 0 and noise_multiplier {noise_multiplier} at least 0")
    if not 0 <= size < MOST_ROWS:
        raise ValueError(f"size {size} must be from 0 to 2**53 - 1")
    if domain is not None:
        there = torch.isin(rows, domain)
        rows, users, size = torch.searchsorted(domain, rows[there]), users[there], len(domain)
    with torch.no_grad():
        touched, sums = contributions(rows, users, size, clip)
        found = survivors(touched, sums, size, threshold, noise_multiplier * clip, uniforms)
    return found if domain is None else domain[found]


def contributions(rows: Tensor, users: Tensor, size: int, clip: float) -> tuple[Tensor, Tensor]:
    """Return the sorted distinct rows that users touched, and the float64 sum of the users' shares in each.

    One stable sort by row leaves a user's repeats next to each other, since the reads come user by user.
    """
    flat, order = ordered(rows)
    if len(flat) and not 0 <= int(flat[0]) <= int(flat[-1]) < size:
        raise ValueError(f"rows must be from 0 to {size - 1}: {int(flat[0])} to {int(flat[-1])}")
    owner = users[order]
    if len(flat):
        first = torch.ones_like(flat, dtype=torch.bool)
        first[1:] = (flat[1:] != flat[:-1]) | (owner[1:] != owner[:-1])
        kept = first.nonzero().squeeze(1)
        flat, owner = flat[kept], owner[kept]
    share = (clip / torch.bincount(owner).double().sqrt_()).clamp_(max=1.0)
    touched, group = flat.unique_consecutive(return_inverse=True)
    sums = torch.zeros(len(touched), dtype=torch.float64, device=rows.device)
    return touched, sums.index_add_(0, group, share[owner])


def survivors(touched: Tensor, sums: Tensor, size: int, threshold: float, std: float, uniforms: Uniforms) -> Tensor:
    """Return the sorted rows out of `size` that reach the threshold; all except the touched ones have sum 0."""
    if std == 0:
        seen, chance = sums >= threshold, float(threshold <= 0)
    else:
        uniform = 1 - uniforms(len(sums)).to(sums)  # (0, 1]
        seen = uniform <= torch.special.ndtr((sums - threshold) / std)
        chance = 0.5 * math.erfc(threshold / std / math.sqrt(2))
    others = successes(size - len(touched), chance, uniforms).to(touched)
    # The r-th untouched row comes after all touched rows that have at most r untouched ones before them.
    others += torch.searchsorted(touched - torch.arange(len(touched), device=touched.device), others, right=True)
    return ascending(torch.cat([touched[seen], others]))


def successes(trials: int, chance: float, uniforms: Uniforms) -> Tensor:
    """Return the sorted places of the successes among independent trials, by drawing the gaps between them.

    A gap is the integer part of an exponential variable of rate -log(1 - chance). Its uniform has 106 bits near 0, so
    that the first trial's probability is accurate even if it is tiny.
    """
    if chance >= 1:
        return torch.arange(trials)
    found, last = [torch.empty(0, dtype=torch.int64)], -1.0
    while chance > 0 and last < trials - 1:
        expected = (trials - 1 - last) * chance
        count = min(GAPS, int(expected + 4 * math.sqrt(expected)) + 8)
        uniform, finer = uniforms(count), uniforms(count)
        uniform += (1 - finer) * 2.0**-53  # (0, 1]
        gap = uniform.neg_().log1p_().div_(math.log1p(-chance)).floor_()
        place = gap.add_(1.0).cumsum_(0).add_(last)
        found.append(place[place < trials].long())
        last = float(place[-1])
    return torch.cat(found)
