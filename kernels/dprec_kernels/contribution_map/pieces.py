"""The same law from the touched rows, and from the gaps between the others' survivors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dprec_kernels.ordering import ascending, ordered_reads

Uniforms = Callable[[int], Tensor]  # so many float64 numbers from 0 up to, but without, 1

MOST_ROWS = 1 << 53  # up to here a float64 counts without rounding
GAPS = 1 << 20  # most gaps drawn at once


def places(rows: Tensor, domain: Tensor, ignore: int) -> Tensor:
    """Return where in the sorted domain each row is, and -1 for what is not in it and for `ignore`."""
    if len(domain) == 0:
        return torch.full_like(rows, -1)
    place = torch.searchsorted(domain, rows).clamp_(max=len(domain) - 1)
    return place.masked_fill_((domain[place] != rows) | (rows == ignore), -1)


def contributions(rows: Tensor, size: int, clip: float, offsets: Tensor | None, ignore: int) -> tuple[Tensor, Tensor]:
    """Return the sorted distinct rows that users touched, and the float64 sum of the users' shares in each.

    One stable sort by row leaves a user's repeats next to each other, since the reads come user by user.
    """
    users = len(rows) if offsets is None else len(offsets) - 1
    flat, order = ordered_reads(rows, ignore)
    if len(flat) and not 0 <= int(flat[0]) <= int(flat[-1]) < size:
        raise ValueError(f"rows must be from 0 to {size - 1}, or {ignore} for none: {int(flat[0])} to {int(flat[-1])}")
    owner = order // rows.shape[1] if offsets is None else torch.searchsorted(offsets, order, right=True) - 1
    if len(flat):
        first = torch.ones_like(flat, dtype=torch.bool)
        first[1:] = (flat[1:] != flat[:-1]) | (owner[1:] != owner[:-1])
        kept = first.nonzero().squeeze(1)
        flat, owner = flat[kept], owner[kept]
    share = (clip / torch.bincount(owner, minlength=users).double().sqrt_()).clamp_(max=1.0)
    touched, group = flat.unique_consecutive(return_inverse=True)
    sums = torch.zeros(len(touched), dtype=torch.float64, device=rows.device)
    return touched, sums.index_add_(0, group, share[owner])


def survivors(touched: Tensor, sums: Tensor, size: int, threshold: float, std: float, uniforms: Uniforms) -> Tensor:
    """Return the sorted rows out of `size` that reach the threshold, where all but the touched ones have sum 0."""
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

    A gap is the whole part of an exponential variable of rate -log(1 - chance). Its uniform has 106 bits near 0, so
    that a first trial succeeds as rarely as it should.
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
